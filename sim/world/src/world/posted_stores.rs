//! A world in which nothing goes wrong but that stores across the bus lag behind: no doorbell and no notification is
//! lost (`docs/decisions/0015-posted-stores.md`).
//!
//! Two programs answer each other's signals. The simulator unblocks a program after 20 ms in any case; here
//! a program waits for half of that at most, so a lost wake-up shows as a wait that times out.

use super::World;
use crate::config::{Config, FaultLevel};
use crate::faults::FaultKind;
use crate::trace::NoTrace;
use crate::workload::{Env, Role};
use netvm::{Access, Notification, Port, PortConfig, RemoteSegment, Result};
use netvm_abi::{NodeId, NotificationId, PortId};
use std::time::Duration;

const PORT: PortId = PortId(1);
const ASK: u32 = 5;
const ANSWER: u32 = 6;
const ROUNDS: u32 = 150;
/// Far more than a round takes, and less than what the simulator lets pass.
const SOON: Duration = Duration::from_millis(10);

/// Lets some time pass.
fn rest(env: &mut Env, most: u64) {
    let span = env.dice.below(most + 1);
    if let Some(sim) = env.sim.upgrade() {
        let at = sim.now().after(netvm_abi::Nanos(span));
        sim.parker.park(crate::coroutine::Park::Until(at));
    }
}

/// A port that the peer may signal, and the way to the peer's.
fn meet(env: &Env) -> Result<(Port, netvm::Export, RemoteSegment)> {
    let port = Port::open(&env.node, PortConfig::number(PORT.0))?;
    let region = port.alloc(4096)?;
    let access = Access::everyone().notify(ASK..=ANSWER);
    let segment = port.export("bells", &region, .., access)?;
    let peer = port.import(NodeId(1 - env.id.0), PORT, "bells", Duration::from_secs(1))?;
    Ok((port, segment, peer))
}

/// Takes `count` signals as the queue names them, so that the card may let an entry stand for several.
fn take(port: &Port, bell: &Notification, count: u32) -> Result<()> {
    let queue = port.notifications();
    for _ in 0..count {
        let found = queue.wait(SOON)?;
        assert_eq!(found, bell.id(), "the queue names what was never signalled");
        bell.ack()?;
    }
    Ok(())
}

fn play(env: &mut Env, asks: bool) -> Result<()> {
    let (port, _segment, peer) = meet(env)?;
    let bell = port.notification(if asks { ANSWER } else { ASK })?;
    for round in 0..ROUNDS {
        let signals = 1 + round % 3;
        if asks {
            rest(env, 60_000);
            for _ in 0..signals {
                peer.notify(ASK)?;
                rest(env, 1_500);
            }
            // The queue in two rounds of three, else the number alone.
            if signals == 1 {
                bell.wait(SOON)?;
                bell.ack()?;
                continue;
            }
            take(&port, &bell, 1)?;
        } else {
            take(&port, &bell, signals)?;
            peer.notify(NotificationId(ANSWER))?;
        }
    }
    port.flush()
}

fn role(node: u16) -> Role {
    let mut role = Role::new(format!("player {node}"), NodeId(node), move |mut env| {
        if let Err(error) = play(&mut env, node == 0) {
            env.complain(format!("{error}, though everything it waits for has happened"));
        }
    });
    role.repeat = false;
    role.revive = false;
    role
}

#[test]
fn nothing_is_lost_when_stores_across_the_bus_lag_behind() {
    for seed in 1..=12 {
        let config = Config {
            nodes: 2,
            messages: u64::MAX,
            faults: FaultLevel::Benign,
            ..Config::default()
        };
        let world = World::with_roles(seed, config, false, |_, _| vec![role(0), role(1)]);
        for &kind in FaultKind::ALL {
            let rate = if kind == FaultKind::BusLag { 350_000 } else { 0 };
            world.sim.faults.borrow_mut().set(kind, rate);
        }
        let report = world
            .run(&mut NoTrace)
            .unwrap_or_else(|failure| panic!("{failure}"));
        let fired = report.coverage.total[FaultKind::BusLag as usize];
        assert!(fired > 1_000, "seed {seed}: only {fired} stores lagged");
    }
}
