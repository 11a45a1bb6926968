//! What the image is for: a card for a host outside.

use crate::arena::Arena;
use crate::card::Card;
use crate::host::{Call, Shared, ivshmem};
use crate::wire::home::Home;
use crate::wire::virtio::{Network, Trouble};
use crate::{board, clock, entropy, interrupts, log, mmu, pci};
use netvm_abi::attach::DriverPlace;
use netvm_abi::{Nanos, NodeId};
use netvm_nic::Config;

/// How often a card without a driver looks for one, and a card without work at its host's words, though nothing has
/// called it.
const LOOK: Nanos = Nanos::from_millis(10);
const REST: Nanos = Nanos::from_millis(1000);

/// Serves the host for ever; comes back only with the reason why it cannot.
// Not inlined: each of these has a card on its stack, and only one of them runs.
#[inline(never)]
pub(crate) fn run(arena: &mut Arena, map: &mut mmu::Map) -> &'static str {
    let mut bus = pci::Bus::new();
    let (devices, bell) = match ivshmem::Devices::find(map, &mut bus) {
        Ok(Some(found)) => found,
        Ok(None) => return "there is no device that shows a host",
        Err(trouble) => {
            log::error!("the devices that show the host: {trouble:?}");
            return "the host's devices cannot be used";
        }
    };
    let mut config = Config {
        node: NodeId(board::node()),
        geometry: board::geometry(),
        ..Config::default()
    };
    let timers = &mut config.timers;
    for (time, patience) in [
        (&mut timers.probe_interval, board::PATIENCE_FOR_PEERS),
        (&mut timers.gap_timeout, board::PATIENCE_FOR_ANSWERS),
        (&mut timers.queueing, board::PATIENCE_FOR_QUEUES),
    ] {
        *time = Nanos(time.0.saturating_mul(patience));
    }
    let config = entropy::draw(config, map, &mut bus);
    let wire = match Network::start(arena, map, &mut bus, config.node) {
        Ok(wire) => wire,
        Err(Trouble::NoDevice) => return "there is no network device",
        Err(Trouble::NoPlace) => return "the network device's registers found no place",
        Err(Trouble::Device) => return "the network device cannot be used",
    };
    let wire = Home::new(arena, config.node, wire);
    let Ok(shared) = devices.nic_memory(&config.geometry) else {
        return "NIC memory is too small";
    };
    let mut card = match Card::start(arena, config, shared, wire) {
        Ok(card) => card,
        Err(error) => {
            log::error!("{error}");
            return "the configuration is refused";
        }
    };
    card.around.call = Call::Bell(bell);
    log::info!("card of node {} waits for its driver", config.node);
    loop {
        interrupts::passed();
        if DriverPlace::is_withdrawn(shared.bar) {
            begin_anew(&shared);
        }
        if let Some(found) = devices.driver_memory(&shared, &config.geometry) {
            card.around.shared = found;
            break;
        }
        interrupts::sleep(Some(clock::now().after(LOOK)), || true);
    }
    log::info!("the driver is there");
    loop {
        interrupts::passed();
        if DriverPlace::is_withdrawn(shared.bar) {
            card.farewell();
            begin_anew(&shared);
        }
        let progress = card.pass();
        card.publish();
        if !progress.worked && !progress.more {
            let rest = clock::now().after(REST);
            card.sleep(progress.deadline.map_or(rest, |deadline| deadline.min(rest)));
        }
    }
}

/// The driver goes: lets go of the host's memory, and starts this machine again, for the next driver.
///
/// Only this core reaches the host's memory, and only in [`Card::pass`]: between two passes nothing is under way.
fn begin_anew(shared: &Shared) -> ! {
    log::info!("the driver has gone; beginning anew");
    DriverPlace::let_go(shared.bar);
    board::restart()
}
