//! A bounded buffer in a monitor: `cargo run --example bounded_buffer`.
//!
//! Node 0 has a shelf with four places. Bakers on nodes 1 and 2 put loaves there, customers on nodes 3 and 4 take
//! them. One of them at a time is at the shelf; a baker waits while it is full, a customer while it is
//! empty. Node 0's own program does nothing meanwhile: the monitor and the shelf are memory that the cards serve.
//!
//! `pipeline` does the same for one producer and one consumer with a channel, which is faster. A monitor is for what has
//! more rules than a queue.

use netvm::sync::{Condition, Monitor};
use netvm::{Access, Node, Port, PortConfig, RemoteSegment, Result, Timeout};
use netvm_emulator::Emulator;
use std::collections::BTreeSet;
use std::time::Duration;

const BAKERS: u64 = 2;
const CUSTOMERS: u64 = 2;
/// Loaves of each baker, and of each customer.
const EACH: u64 = 25;
const PLACES: u64 = 4;
/// On the shelf's page: loaves put there so far, loaves taken so far, then the places.
const PUT: u64 = 0;
const TAKEN: u64 = 8;
const FIRST_PLACE: u64 = 64;
/// Longest wait until a node has joined the shelf.
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));

/// The shelf, as another node sees it. The words are to be looked at inside of the monitor alone.
struct Shelf {
    monitor: Monitor,
    has_room: Condition,
    has_loaves: Condition,
    memory: RemoteSegment,
}

impl Shelf {
    fn join(port: &Port) -> Result<Self> {
        let (node, home) = (0.into(), 7.into());
        Ok(Self {
            monitor: Monitor::join(port, node, home, "shelf", PATIENCE)?,
            has_room: Condition::join(port, node, home, "has room", PATIENCE)?,
            has_loaves: Condition::join(port, node, home, "has loaves", PATIENCE)?,
            memory: port.import(node, home, "places", PATIENCE)?,
        })
    }

    fn load(memory: &RemoteSegment, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        memory.read(at, &mut word).call()?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(memory: &RemoteSegment, at: u64, value: u64) -> Result<()> {
        memory.write(at, &value.to_le_bytes()).post().map(drop)
    }

    fn put(&mut self, loaf: u64) -> Result<()> {
        let memory = &self.memory;
        let mut inside = self.monitor.enter()?;
        // In a loop: between the signal and our coming in again, another baker may have been here.
        let put = loop {
            let put = Self::load(memory, PUT)?;
            if put - Self::load(memory, TAKEN)? < PLACES {
                break put;
            }
            inside.wait(&mut self.has_room)?;
        };
        Self::store(memory, FIRST_PLACE + 8 * (put % PLACES), loaf)?;
        Self::store(memory, PUT, put + 1)?;
        self.has_loaves.signal()?;
        // The next thread inside sees what we have written, without any flush of ours.
        inside.leave()
    }

    fn take(&mut self) -> Result<u64> {
        let memory = &self.memory;
        let mut inside = self.monitor.enter()?;
        let taken = loop {
            let taken = Self::load(memory, TAKEN)?;
            if taken < Self::load(memory, PUT)? {
                break taken;
            }
            inside.wait(&mut self.has_loaves)?;
        };
        let loaf = Self::load(memory, FIRST_PLACE + 8 * (taken % PLACES))?;
        Self::store(memory, TAKEN, taken + 1)?;
        self.has_room.signal()?;
        inside.leave()?;
        Ok(loaf)
    }
}

fn bake(node: &Node, first: u64) -> Result<()> {
    let port = Port::open(node, PortConfig::default())?;
    let mut shelf = Shelf::join(&port)?;
    (first..first + EACH).try_for_each(|loaf| shelf.put(loaf))
}

fn buy(node: &Node) -> Result<Vec<u64>> {
    let port = Port::open(node, PortConfig::default())?;
    let mut shelf = Shelf::join(&port)?;
    (0..EACH).map(|_| shelf.take()).collect()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new((1 + BAKERS + CUSTOMERS) as u16)?;
    let home = Port::open(&network.node(0), PortConfig::number(7))?;
    let _monitor = Monitor::create(&home, "shelf", Access::everyone())?;
    let _has_room = Condition::create(&home, "has room", Access::everyone())?;
    let _has_loaves = Condition::create(&home, "has loaves", Access::everyone())?;
    let memory = home.alloc(4096)?;
    let _places = home.export("places", &memory, .., Access::everyone())?;

    let bakers: Vec<_> = (0..BAKERS)
        .map(|baker| (network.node(1 + baker as usize), baker * EACH))
        .map(|(node, first)| std::thread::spawn(move || bake(&node, first)))
        .collect();
    let customers: Vec<_> = (0..CUSTOMERS)
        .map(|customer| network.node((1 + BAKERS + customer) as usize))
        .map(|node| std::thread::spawn(move || buy(&node)))
        .collect();
    for baker in bakers {
        baker.join().map_err(|_| "a baker panicked")??;
    }
    let mut loaves = BTreeSet::new();
    for customer in customers {
        loaves.extend(customer.join().map_err(|_| "a customer panicked")??);
    }
    println!(
        "{} loaves baked, {} different ones bought, never more than {PLACES} on the shelf",
        BAKERS * EACH,
        loaves.len()
    );
    assert!(
        loaves.into_iter().eq(0..BAKERS * EACH),
        "a loaf was lost, or sold twice"
    );
    Ok(())
}
