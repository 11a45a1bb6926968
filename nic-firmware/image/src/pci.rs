//! PCI Express: what is on the bus, and where its registers go. Nobody did that before us: there is no firmware below.

use crate::board;
use core::ops::Range;
use virtio_drivers::transport::pci::bus::{
    BarInfo, Cam, Command, DeviceFunction, DeviceFunctionInfo, MemoryBarType, MmioCam, PciRoot,
};

/// The bus, and the rest of the window for registers.
pub(crate) struct Bus {
    /// Access to configuration space.
    pub(crate) root: PciRoot<MmioCam<'static>>,
    free: Range<usize>,
}

impl Bus {
    /// The bus. Called once: there is one.
    pub(crate) fn new() -> Self {
        // SAFETY: all of the configuration space is mapped as device memory, and this is its only user.
        let cam = unsafe { MmioCam::new(board::PCI_CONFIG.start as *mut u8, Cam::Ecam) };
        Self {
            root: PciRoot::new(cam),
            free: board::PCI_REGISTERS,
        }
    }

    /// The first device that `wanted` says yes to; logs all that it sees on the way.
    pub(crate) fn find(&self, wanted: impl Fn(&DeviceFunctionInfo) -> bool) -> Option<DeviceFunction> {
        let found = self.root.enumerate_bus(0).find(|(place, info)| {
            crate::log::info!("PCI {place}: {info}");
            wanted(info)
        });
        found.map(|(place, _)| place)
    }

    /// Gives a device's memory registers addresses and switches the device on; false where the window is too small or
    /// the device says nonsense.
    pub(crate) fn enable(&mut self, place: DeviceFunction) -> bool {
        let Ok(bars) = self.root.bars(place) else {
            return false;
        };
        for (index, bar) in (0..).zip(bars) {
            let Some(BarInfo::Memory {
                address_type, size, ..
            }) = bar
            else {
                continue;
            };
            let Some(address) = self.allocate(size) else {
                return false;
            };
            match address_type {
                MemoryBarType::Width64 => self.root.set_bar_64(place, index, address.into()),
                MemoryBarType::Width32 => self.root.set_bar_32(place, index, address),
                MemoryBarType::Below1MiB => return false,
            }
        }
        self.root
            .set_command(place, Command::MEMORY_SPACE | Command::BUS_MASTER);
        true
    }

    /// A place of `size` bytes, a power of two, aligned to it.
    fn allocate(&mut self, size: u64) -> Option<u32> {
        let size = usize::try_from(size).ok().filter(|size| size.is_power_of_two())?;
        let start = self.free.start.checked_next_multiple_of(size)?;
        let end = start.checked_add(size).filter(|&end| end <= self.free.end)?;
        self.free.start = end;
        u32::try_from(start).ok()
    }
}
