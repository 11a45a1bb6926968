//! A client falls silent at any time. Its memory is another's within a millisecond after its lease, in virtual time, and not before.

use netvm::{Nanos, NodeId, PortId, Timeout};
use netvm_kit::length::is_whole;
use netvm_lease::{Client, ClientConfig, Error, Manager, ManagerConfig, Wish};
use netvm_world::stand::{Actor, Findings, Gate, Stand};
use netvm_world::timing::CostModel;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::rc::Rc;
use std::time::Duration;

const KEY: u64 = 3;
const MS: u64 = 1_000_000;
const MANAGER: (NodeId, PortId) = (NodeId(1), PortId(1));

/// When something may be over at the earliest, when at the latest, and when the next had it.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    earliest: u64,
    latest: u64,
    granted: u64,
}

fn complain<T>(actor: &Actor, result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            actor.complain(&error.to_string());
            None
        }
    }
}

fn connect(actor: &Actor) -> netvm::Result<Option<Client>> {
    let port = actor.open(1)?;
    let client = Client::connect(port, MANAGER, "memory", ClientConfig::default());
    Ok(complain(actor, client))
}

/// The lease of a silent client by key or by size, of which it extends some. `scarce`: by size, and another waits for room.
fn play(seed: u64, scarce: bool) -> Times {
    const POOL: u64 = 4096;
    let mut stand = Stand::new(&CostModel::committed().unwrap(), 3);
    let (found, gate, done) = (
        Findings::<Times>::default(),
        Rc::new(Gate::default()),
        Rc::new(Gate::default()),
    );
    let over = Rc::clone(&done);
    stand.process(1, "manager", move |actor| {
        let port = actor.open(1)?;
        let manager = Manager::open(port, "memory", POOL, ManagerConfig::default());
        let Some(mut manager) = complain(actor, manager) else {
            return Ok(());
        };
        if !scarce {
            complain(actor, manager.define(KEY, POOL));
        }
        while over.come() < 1 {
            complain(actor, manager.serve(Timeout::After(Duration::from_millis(5))));
        }
        Ok(())
    });
    let wish = move |duration: u64| Wish::read_write(Duration::from_nanos(duration)).exclusive();
    let ask = move |client: &mut Client, wish: Wish| match scarce {
        true => client.allocate(POOL, wish),
        false => client.acquire(KEY, wish),
    };
    let (times, there, over) = (found.clone(), Rc::clone(&gate), Rc::clone(&done));
    stand.process(2, "silent", move |actor| {
        let mut random = SmallRng::seed_from_u64(seed);
        let Some(mut client) = connect(actor)? else {
            return Ok(());
        };
        let asked = actor.now().0;
        let duration = random.random_range(MS / 2..5 * MS);
        let Some(lease) = complain(actor, ask(&mut client, wish(duration))) else {
            return Ok(());
        };
        let mut known = Times {
            earliest: asked + duration,
            latest: actor.now().0 + duration,
            granted: 0,
        };
        for _ in 0..random.random_range(0..4) {
            actor.rest(Nanos(random.random_range(0..duration / 4)));
            let (asked, by) = (actor.now().0, random.random_range(0..3 * MS));
            let Some(left) = complain(actor, lease.extend(Duration::from_nanos(by))) else {
                return Ok(());
            };
            let left = left.left.as_nanos() as u64;
            known.earliest = known.earliest.max(asked + left);
            known.latest = actor.now().0 + left;
            let _ = lease.write(0, &[7; 512]).post();
        }
        times.borrow_mut().push(known);
        there.pass(actor, 1);
        if random.random() {
            // It stands still, and tells nothing; or its process ends, which tells no more.
            actor.until(|| over.come() > 0);
        }
        Ok(())
    });
    let times = found.clone();
    stand.process(0, "heir", move |actor| {
        let client = connect(actor)?;
        actor.until(|| gate.come() > 0);
        if let Some(mut client) = client {
            let patient = wish(MS).waiting(Duration::from_secs(1));
            if complain(actor, ask(&mut client, patient)).is_some()
                && let Some(known) = times.borrow_mut().last_mut()
            {
                known.granted = actor.now().0;
            }
        }
        done.pass(actor, 1);
        Ok(())
    });
    stand.run(1).unwrap();
    found.borrow()[0]
}

#[test]
fn the_memory_of_a_silent_client_is_anothers_after_its_lease() {
    let seeds = if is_whole() { 1000 } else { 60 };
    let mut longest = 0;
    for seed in 0..seeds {
        let times = play(seed, seed % 2 == 0);
        assert!(
            times.granted > times.earliest,
            "seed {seed}: too early: {times:?}"
        );
        assert!(
            times.granted <= times.latest + MS,
            "seed {seed}: too late: {times:?}"
        );
        longest = longest.max(times.granted.saturating_sub(times.latest));
    }
    println!(
        "granted again at most {} us after the end, in {seeds} seeds",
        longest / 1000
    );
}
