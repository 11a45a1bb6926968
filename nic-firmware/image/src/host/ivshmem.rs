//! A host outside of this machine, in QEMU: two devices show memory that both have.
//!
//! `ivshmem-doorbell` shows NIC memory, and rings: a write to its register interrupts the host, a message of the host
//! interrupts this core (QEMU, docs/specs/ivshmem-spec.txt). `ivshmem-plain` shows the host's RAM, whose bus page numbers
//! are places in it.
//!
//! A real card has its own NIC memory, which a PCI function of its own shows to the host, and a DMA engine or a window
//! on the host's bus addresses. Nothing above this file sees the difference.

use super::{Shared, Window};
use crate::{board, interrupts, mmu, pci};
use core::ops::Range;
use core::ptr::NonNull;
use netvm_abi::Geometry;
use netvm_abi::attach::DriverPlace;
use netvm_abi::bar::BarMap;
use netvm_abi::shared_map::SharedMap;
use volatile::access::{ReadOnly, ReadWrite, WriteOnly};
use volatile::{VolatileFieldAccess, VolatileRef};

const VENDOR: u16 = 0x1AF4;
const DEVICE: u16 = 0x1110;
/// The range that is memory.
const MEMORY: u8 = 2;
/// The host's number at the doorbell's server.
const HOST: u32 = 0;

/// The registers of `ivshmem-doorbell`.
#[repr(C)]
#[derive(VolatileFieldAccess)]
struct Registers {
    /// Mask and status of the interrupt by wire, which this image does not use.
    #[access(ReadWrite)]
    mask: u32,
    #[access(ReadWrite)]
    status: u32,
    /// The own number at the doorbell's server.
    #[access(ReadOnly)]
    position: u32,
    /// Peer in the upper half, vector in the lower.
    #[access(WriteOnly)]
    doorbell: u32,
}

/// The host's bell.
pub(crate) struct Bell {
    registers: VolatileRef<'static, Registers>,
    interrupt: arm_gic::IntId,
}

impl Bell {
    /// Interrupts the host.
    pub(super) fn ring(&mut self) {
        // Everything before is visible before the bell is heard.
        aarch64_cpu::asm::barrier::dsb(aarch64_cpu::asm::barrier::ST);
        self.registers.as_mut_ptr().doorbell().write(HOST << 16);
    }

    pub(super) fn arm(&self) {
        interrupts::expect(self.interrupt, true);
    }
}

/// The two devices.
pub(crate) struct Devices {
    nic: Window,
    ram: Window,
}

/// Why the devices cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// They found no place, or have not the ranges that they should have.
    Place,
    /// No interrupt.
    Interrupt,
    /// NIC memory is smaller than the geometry needs.
    Small,
}

impl Devices {
    /// The devices, if both are on the bus.
    ///
    /// # Errors
    /// They are, but cannot be used.
    pub(crate) fn find(map: &mut mmu::Map, bus: &mut pci::Bus) -> Result<Option<(Self, Bell)>, Trouble> {
        let (mut nic, mut ram) = (None, None);
        for place in bus.find(|info| (info.vendor_id, info.device_id) == (VENDOR, DEVICE)) {
            let places = bus.enable(map, place, Some(MEMORY)).ok_or(Trouble::Place)?;
            let [Some(registers), messages, Some(memory), ..] = &places else {
                return Err(Trouble::Place);
            };
            // SAFETY: `enable` has mapped it as memory, for ever; only what is made here reaches it.
            let window = unsafe { Window::over(memory) };
            if messages.is_none() {
                ram = Some(window);
                continue;
            }
            let message = board::message_interrupt();
            bus.interrupt(place, &places, message).ok_or(Trouble::Interrupt)?;
            nic = Some((window, bell(registers, message)?));
        }
        Ok(nic.zip(ram).map(|((nic, bell), ram)| (Self { nic, ram }, bell)))
    }

    /// What card and host share before the driver has said where its memory is: NIC memory, zeroed, and the host's RAM.
    ///
    /// # Errors
    /// [`Trouble::Small`].
    pub(crate) fn nic_memory(&self, geometry: &Geometry) -> Result<Shared, Trouble> {
        let bar = self
            .nic
            .words(BarMap::new(geometry).words)
            .ok_or(Trouble::Small)?;
        for word in bar {
            word.store(0, core::sync::atomic::Ordering::Relaxed);
        }
        Ok(Shared {
            bar,
            words: &[],
            pages: self.ram,
            bounce: Window::none(),
        })
    }

    /// The driver's memory, at its word; nothing where it has not said, or named what is not there.
    pub(crate) fn driver_memory(&self, shared: &Shared, geometry: &Geometry) -> Option<Shared> {
        let place = DriverPlace::load(shared.bar)?;
        let count = SharedMap::new(geometry).words;
        let pages = (count as usize).div_ceil(1024);
        Some(Shared {
            words: self.ram.part(place.memory.0, pages)?.words(count)?,
            bounce: self.ram.part(place.bounce.0, geometry.bounce_slots() as usize)?,
            ..*shared
        })
    }
}

fn bell(registers: &Range<usize>, message: board::Message) -> Result<Bell, Trouble> {
    let place = NonNull::new(registers.start as *mut Registers)
        .filter(|place| place.is_aligned() && registers.len() >= size_of::<Registers>())
        .ok_or(Trouble::Place)?;
    interrupts::edge(message.interrupt);
    Ok(Bell {
        // SAFETY: the device's registers, mapped for ever, aligned, and as many as they should be; the bell is their only
        // user.
        registers: unsafe { VolatileRef::new(place) },
        interrupt: message.interrupt,
    })
}
