//! QEMU's `virt` machine: where its devices are, and how it is switched off.
//!
//! Addresses and interrupt numbers: QEMU, `hw/arm/virt.c`. Tested with QEMU 7.2, GICv2, Cortex-A72.

mod sizes;

pub(crate) use sizes::geometry;

use arm_gic::IntId;

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
/// Multiplier of a card's usual patience: an emulator may leave a machine without time for a good part of a second.
pub(crate) const PATIENCE: u64 = 8;
/// The page of the boot words.
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
    // SAFETY: the frame's type register, in a window of devices that is mapped; reading it changes nothing.
    let kind = unsafe { ((MESSAGE_FRAME + 8) as *const u32).read_volatile() };
    let data = (kind >> 16) & 0x3FF;
    Message {
        address: MESSAGE_FRAME as u64 + 0x40,
        data,
        interrupt: IntId::spi(data.saturating_sub(32)),
    }
}

/// Which node of the network this is: a second word beside the boot word.
pub(crate) fn node() -> u16 {
    // SAFETY: as for `boot_word`.
    unsafe { core::ptr::read_volatile((BOOT_PAGE.start + 4) as *const u16) }
}

/// The request of this machine's starter: a word that QEMU's `loader` device puts into RAM.
/// Zero, RAM's first content, is the ordinary start.
pub(crate) fn boot_word() -> u32 {
    // SAFETY: the page is RAM, mapped, and not written while the image runs.
    unsafe { core::ptr::read_volatile(BOOT_PAGE.start as *const u32) }
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
