//! Worlds of very many nodes that say little: up to 4,096, each with few windows, over wires that lose one frame of a hundred.
//!
//! A world of drawn faults grows with its nodes in all that is tried there. This one is about what a node costs that has many
//! peers, and about links that share windows ([`netvm_nic`]): each node has a program that writes to others, one after the other,
//! and flushes; all of it must succeed.

use crate::config::Config;
use crate::coroutine::Park;
use crate::dice::Dice;
use crate::workload::{Env, PORTS, Role};
use netvm::{Access, Port, PortConfig, Result, Timeout};
use netvm_abi::control::Modes;
use netvm_abi::{Geometry, Nanos, NodeId};
use std::time::Duration;

/// Of a million frames, so many are lost.
pub(crate) const LOSS: u32 = 10_000;
/// Windows of a card: this node's own one, and those that all others share.
const WINDOWS: u16 = 8;
/// The port of the programs.
const PORT: u16 = 1;
const NAME: &str = "here";
/// How long a program rests between two nodes, at most.
const REST: u64 = 2_000_000;

/// The tables of a card. With 4,096 nodes the hostile one has no number of its own.
pub(crate) fn geometry(config: &Config) -> Geometry {
    Geometry {
        ports: PORTS,
        nodes: (config.nodes + 1).min(4096),
        windows: WINDOWS,
        page_rows: 16,
        capabilities: 32,
        staging: 4,
        reads: 4,
        ..Geometry::default()
    }
}

/// A program for each node.
pub(crate) fn roles(config: &Config) -> Vec<Role> {
    let nodes = config.nodes;
    let role = |id| {
        let mut role = Role::new("sparse", NodeId(id), move |mut env: Env| {
            let end = visit(&mut env, nodes);
            if let Err(error) = end {
                env.complain(format!("a program ends with \"{error}\""));
            }
        });
        role.server = true;
        role
    };
    (0..nodes).map(role).collect()
}

/// Exports a page, and writes to that of other nodes.
fn visit(env: &mut Env, nodes: u16) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(PORT))?;
    let region = port.alloc(4096)?;
    let access = Access::everyone()
        .modes(Modes::WRITE | Modes::NOTIFY)
        .notify(1..=1);
    let _here = port.export(NAME, &region, .., access)?;
    let here = u64::from(env.id.0) % 512 * 8;
    let mut times = 0u64;
    while !env.stage.closing() {
        pause(env, &mut times);
        if env.stage.stopped() {
            continue;
        }
        let to = NodeId(env.dice.below(u64::from(nodes)) as u16);
        let patience = Timeout::After(Duration::from_secs(2));
        let remote = port.import_with(
            to,
            netvm_abi::PortId(PORT),
            NAME,
            Modes::WRITE | Modes::NOTIFY,
            patience,
        )?;
        for _ in 0..3 {
            remote.write(here, &times.to_le_bytes()[..]).notify(1).post()?;
        }
        port.flush_remote(to)?;
    }
    Ok(())
}

fn pause(env: &mut Env, times: &mut u64) {
    *times += 1;
    let span = Nanos(Dice::below(&mut env.dice, REST));
    if let Some(sim) = env.sim.upgrade() {
        sim.parker.park(Park::Until(sim.now().after(span)));
    }
}
