//! QEMU's `virt` machine: where its devices are, and how it is switched off.
//!
//! Addresses and interrupt numbers: QEMU, `hw/arm/virt.c`. Tested with QEMU 7.2, GICv2, Cortex-A72.

pub(crate) use netvm_fw_common::board::geometry;

use arm_gic::IntId;
use core::ptr::NonNull;
use volatile::access::ReadOnly;
use volatile::{VolatileFieldAccess, VolatileRef};

/// PL011 UART.
pub(crate) const UART: usize = 0x0900_0000;
/// GICv2 distributor.
pub(crate) const GIC_DISTRIBUTOR: usize = 0x0800_0000;
/// GICv2 CPU interface.
pub(crate) const GIC_CPU: usize = 0x0801_0000;
/// Device windows of the processor's address space: everything below RAM that this image touches.
pub(crate) const DEVICES: core::ops::Range<usize> = 0x0800_0000..0x0A00_0000;
/// Configuration space of PCI Express, all of it.
pub(crate) const PCI_CONFIG: core::ops::Range<usize> = 0x40_1000_0000..0x40_2000_0000;
/// Where registers of PCI devices are put: the start of the window for 32-bit addresses, as much as this image maps.
pub(crate) const PCI_REGISTERS: core::ops::Range<usize> = 0x1000_0000..0x1100_0000;
/// Where memory of PCI devices is put: the start of the window for 64-bit addresses, for a host's RAM may be larger than the
/// other one. Mapped as it is given out.
pub(crate) const PCI_MEMORY: core::ops::Range<usize> = 0x80_0000_0000..0x81_0000_0000;
/// GICv2m: turns a write into an interrupt.
const MESSAGE_FRAME: usize = 0x0802_0000;
/// Register of the message frame: its first interrupt, and how many it has.
const MESSAGE_TYPE: usize = MESSAGE_FRAME + 8;
/// Register of the message frame: what is written here becomes an interrupt.
const MESSAGE_SET: usize = MESSAGE_FRAME + 0x40;
/// Multipliers of a card's usual patience: an emulator may leave a machine without time for a good part of a second. An
/// answer may be missing for this many times as long.
pub(crate) const PATIENCE_FOR_ANSWERS: u64 = 8;
/// A peer is asked each of this many times as long whether it lives: one that says nothing is lost after 31 of them, some
/// 6 s, which a machine without time seldom takes, and a person who waits bears.
pub(crate) const PATIENCE_FOR_PEERS: u64 = 2;
/// Frames wait this many times as long, some 10 ms, before that is taken for a full network: they wait for a machine that has no
/// time.
pub(crate) const PATIENCE_FOR_QUEUES: u64 = 400;
/// The page of the boot words; [`BootPage`] says what is in it.
pub(crate) const BOOT_PAGE: core::ops::Range<usize> = 0x4007_0000..0x4007_1000;
/// Virtual timer of the core: ends a sleep.
pub(crate) const SLEEP_TIMER: IntId = IntId::ppi(11);
/// Physical timer of the core: the watchdog.
pub(crate) const WATCHDOG_TIMER: IntId = IntId::ppi(14);

/// The interrupt line of the first pin of the PCI device in `slot`.
pub(crate) const fn pci_interrupt(slot: u8) -> IntId {
    IntId::spi(3 + (slot % 4) as u32)
}

/// A message-signalled interrupt.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    /// Where to the device writes.
    pub(crate) address: u64,
    /// What.
    pub(crate) data: u32,
    /// What arrives here.
    pub(crate) interrupt: IntId,
}

/// The first interrupt of the message frame.
pub(crate) fn message_interrupt() -> Message {
    let Some(place) = NonNull::new(MESSAGE_TYPE as *mut u32) else {
        unreachable!("a constant address that is not zero");
    };
    // SAFETY: a register of the frame, in a window of devices that is mapped; reading it changes nothing.
    let kind = unsafe { VolatileRef::new_read_only(place) };
    let data = (kind.as_ptr().read() >> 16) & 0x3FF;
    Message {
        address: MESSAGE_SET as u64,
        data,
        interrupt: IntId::spi(data.saturating_sub(32)),
    }
}

/// What QEMU's `loader` device puts into RAM before the machine starts. RAM's first content is zero.
#[repr(C)]
#[derive(VolatileFieldAccess)]
struct BootPage {
    /// What the starter of this machine asks for. Zero is the ordinary start.
    #[access(ReadOnly)]
    word: u32,
    /// Which node of the network this is.
    #[access(ReadOnly)]
    node: u16,
}

fn boot_page() -> VolatileRef<'static, BootPage, ReadOnly> {
    let Some(place) = NonNull::new(BOOT_PAGE.start as *mut BootPage) else {
        unreachable!("a constant address that is not zero");
    };
    // SAFETY: the page is RAM, mapped, aligned, and not written while the image runs.
    unsafe { VolatileRef::new_read_only(place) }
}

/// Which node of the network this is.
pub(crate) fn node() -> u16 {
    boot_page().as_ptr().node().read()
}

/// What the starter of this machine asks for; zero is the ordinary start.
pub(crate) fn boot_word() -> u32 {
    boot_page().as_ptr().word().read()
}

/// Switches the machine off: for tests only, a card in use halts.
pub(crate) fn power_off() {
    // An error leaves the caller to halt.
    let _ = smccc::psci::system_off::<smccc::Hvc>();
}

/// Starts the machine again, from its first instruction.
pub(crate) fn restart() -> ! {
    let refused = smccc::psci::system_reset::<smccc::Hvc>();
    panic!("the machine does not start again: {refused:?}");
}
