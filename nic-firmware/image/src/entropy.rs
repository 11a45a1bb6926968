//! Random numbers, from a device that has them.

use crate::wire::virtio::hal::Machine;
use crate::{clock, log, mmu, pci};
use netvm_abi::page_table::HashKey;
use netvm_nic::Config;
use virtio_drivers::device::rng::VirtIORng;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};

/// Bytes of a hash key and an incarnation.
const BYTES: usize = 20;

/// Draws what of a configuration must be drawn anew at each start. Without a source of random numbers the card works,
/// but says that its page table can be aimed at; only the time that booting took tells its starts apart then.
pub(crate) fn draw(config: Config, map: &mut mmu::Map, bus: &mut pci::Bus) -> Config {
    let Some(bytes) = from_device(map, bus) else {
        log::warning!(
            "no source of random numbers: an attacker that knows this image can crowd rows of the page table"
        );
        return Config {
            incarnation_seed: clock::now().0 as u32,
            ..config
        };
    };
    let (key, seed) = bytes.split_at(16);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| (sum << 8) | u64::from(byte));
    let (first, second) = key.split_at(8);
    Config {
        hash_key: HashKey([number(first), number(second)]),
        incarnation_seed: number(seed) as u32,
        ..config
    }
}

fn from_device(map: &mut mmu::Map, bus: &mut pci::Bus) -> Option<[u8; BYTES]> {
    let found = bus.find(|info| virtio_device_type(info) == Some(DeviceType::EntropySource));
    let place = *found.first()?;
    bus.enable(map, place, None)?;
    let transport = PciTransport::new::<Machine, _>(&mut bus.root, place).ok()?;
    let mut device = VirtIORng::<Machine, _>::new(transport).ok()?;
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // The device may give fewer than asked for, but not none.
        filled += device.request_entropy(rest).ok().filter(|&more| more > 0)?;
    }
    Some(bytes)
}
