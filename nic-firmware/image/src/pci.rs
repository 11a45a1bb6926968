//! PCI Express: what is on the bus, and where its registers and memory go. The image does this itself: there is no
//! firmware below.

use crate::{board, mmu};
use core::ops::Range;
use core::ptr::NonNull;
use heapless::Vec;
use virtio_drivers::transport::pci::bus::{
    BarInfo, Command, ConfigurationAccess, DeviceFunction, DeviceFunctionInfo, MemoryBarType, PciRoot,
};
use volatile::{VolatileFieldAccess, VolatileRef};

/// Devices that one question finds at most.
const DEVICES: usize = 8;
/// The capability of message-signalled interrupts (PCI 3.0, 6.8.2).
const MSI_X: u8 = 0x11;

/// An entry of a device's vector table (PCI 3.0, 6.8.2.6 to 6.8.2.9).
#[repr(C)]
#[derive(VolatileFieldAccess)]
struct Vector {
    /// Where to the device writes: the lower half.
    address: u32,
    /// The upper half.
    upper_address: u32,
    /// What it writes.
    data: u32,
    /// Bit 0 holds the vector back.
    control: u32,
}

/// Access to configuration space: one of our own, because the crate's cannot write to a capability.
#[derive(Clone, Copy)]
pub(crate) struct Config;

impl Config {
    fn word(function: DeviceFunction, offset: u8) -> VolatileRef<'static, u32> {
        let number = (usize::from(function.bus) << 8)
            | (usize::from(function.device & 31) << 3)
            | usize::from(function.function & 7);
        let place = board::PCI_CONFIG.start + (number << 12) + usize::from(offset & !3);
        let Some(place) = NonNull::new(place as *mut u32) else {
            unreachable!("configuration space does not start at zero");
        };
        // SAFETY: an aligned word of configuration space, which is mapped as device memory. The bus answers for functions
        // that are not there. The reference is used for one access, on one core.
        unsafe { VolatileRef::new(place) }
    }
}

impl ConfigurationAccess for Config {
    fn read_word(&self, function: DeviceFunction, offset: u8) -> u32 {
        Self::word(function, offset).as_ptr().read()
    }

    fn write_word(&mut self, function: DeviceFunction, offset: u8, data: u32) {
        Self::word(function, offset).as_mut_ptr().write(data);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}

/// Where a device's registers or memory are.
pub(crate) type Places = [Option<Range<usize>>; 6];

/// The bus, and what is free of the windows for registers and for memory.
pub(crate) struct Bus {
    pub(crate) root: PciRoot<Config>,
    registers: Range<usize>,
    memory: Range<usize>,
}

impl Bus {
    /// The bus. Called once: there is one.
    pub(crate) fn new() -> Self {
        for (place, info) in PciRoot::new(Config).enumerate_bus(0) {
            crate::log::info!("PCI {place}: {info}");
        }
        Self {
            root: PciRoot::new(Config),
            registers: board::PCI_REGISTERS,
            memory: board::PCI_MEMORY,
        }
    }

    /// The devices that `wanted` says yes to.
    pub(crate) fn find(&self, wanted: impl Fn(&DeviceFunctionInfo) -> bool) -> Vec<DeviceFunction, DEVICES> {
        let found = self.root.enumerate_bus(0).filter(|(_, info)| wanted(info));
        found.map(|(place, _)| place).take(DEVICES).collect()
    }

    /// Gives a device's ranges addresses and switches the device on. All are registers but `memory`, if it has that, which
    /// is mapped as memory. (Whether a range may be fetched ahead says nothing: virtio's registers say that they may.)
    /// Nothing where a window is too small or the device says nonsense.
    pub(crate) fn enable(
        &mut self,
        map: &mut mmu::Map,
        place: DeviceFunction,
        memory: Option<u8>,
    ) -> Option<Places> {
        let mut places = Places::default();
        for (index, bar) in (0..).zip(self.root.bars(place).ok()?) {
            let Some(BarInfo::Memory {
                address_type, size, ..
            }) = bar
            else {
                continue;
            };
            let is_memory = memory == Some(index);
            let window = if is_memory {
                &mut self.memory
            } else {
                &mut self.registers
            };
            let range = allocate(window, size)?;
            match address_type {
                MemoryBarType::Width64 => self.root.set_bar_64(place, index, range.start as u64),
                MemoryBarType::Width32 => {
                    self.root
                        .set_bar_32(place, index, u32::try_from(range.start).ok()?)
                }
                MemoryBarType::Below1MiB => return None,
            }
            if is_memory {
                map.memory(&range);
            }
            *places.get_mut(usize::from(index))? = Some(range);
        }
        self.root
            .set_command(place, Command::MEMORY_SPACE | Command::BUS_MASTER);
        Some(places)
    }

    /// Lets a device's first interrupt vector arrive as `message`; nothing where the device cannot.
    pub(crate) fn interrupt(
        &mut self,
        device: DeviceFunction,
        places: &Places,
        message: board::Message,
    ) -> Option<()> {
        let capability = self.root.capabilities(device).find(|found| found.id == MSI_X)?;
        let table = Config.read_word(device, capability.offset.checked_add(4)?);
        let range = places.get((table & 7) as usize)?.as_ref()?;
        let entry = range.start + (table & !7) as usize;
        let entry = NonNull::new(entry as *mut Vector)
            .filter(|entry| entry.is_aligned() && entry.addr().get() + size_of::<Vector>() <= range.end)?;
        // SAFETY: inside of the device's registers, which are mapped, and aligned; this is its only user.
        let mut entry = unsafe { VolatileRef::new(entry) };
        let entry = entry.as_mut_ptr();
        entry.address().write(message.address as u32);
        entry.upper_address().write((message.address >> 32) as u32);
        entry.data().write(message.data);
        // Lets the vector through.
        entry.control().write(0);
        let control = Config.read_word(device, capability.offset);
        Config.write_word(device, capability.offset, control | 1 << 31);
        Some(())
    }
}

/// A place of `size` bytes, a power of two, aligned to it and to a page.
fn allocate(window: &mut Range<usize>, size: u64) -> Option<Range<usize>> {
    let size = usize::try_from(size).ok().filter(|size| size.is_power_of_two())?;
    let start = window.start.checked_next_multiple_of(size.max(4096))?;
    let end = start.checked_add(size).filter(|&end| end <= window.end)?;
    window.start = end;
    Some(start..end)
}
