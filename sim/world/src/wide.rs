//! Worlds whose nodes have large tables and many ports that do nothing: what a body does there must cost the cores no
//! more (promise P7).

use crate::backend::SimBackend;
use crate::cluster::{self, Prospect};
use crate::config::{Config, FaultLevel};
use crate::coroutine::Park;
use crate::dice::Dice;
use crate::report::{Failure, Report};
use crate::trace::NoTrace;
use crate::workload::{Env, PORTS, Role};
use crate::world::World;
use netvm::backend::{Backend, OpenRequest};
use netvm_abi::{Geometry, Nanos, NodeId, PortId};
use netvm_conformance::Case;

/// Ports that the tables have room for: the most that a geometry admits.
const TABLE: u16 = 1024;
/// Nodes that have idle ports: bodies run on the first ones.
const CROWDED: u16 = 2;

/// Plays a body in a world of its own, and gives what it comes to; its longest steps are those behind the opening of the
/// idle ports. On the first nodes `idle` ports are open beside its own. No fault fires that a
/// correct program notices.
///
/// # Errors
/// [`Failure`] as [`run_seed`](crate::run_seed).
pub fn run(case: &'static Case, seed: u64, nodes: u16, idle: u16) -> Result<Report, Box<Failure>> {
    let config = Config {
        nodes,
        messages: u64::MAX,
        faults: FaultLevel::Benign,
        ..Config::default()
    };
    let tables = |drawn: Geometry| Geometry {
        ports: TABLE,
        page_rows: drawn.page_rows * 64,
        ..drawn
    };
    let roles = |_: &mut Dice, _: &Config| {
        let crowds = (0..CROWDED.min(nodes)).map(NodeId).map(|node| {
            let mut role = Role::new("idle ports", node, move |env| stand_by(&env, case, idle));
            (role.repeat, role.revive) = (false, false);
            role
        });
        crowds
            .chain([cluster::role_of(case, seed, Prospect::Fair)])
            .collect()
    };
    World::with_tables(seed, config, false, roles, tables).run(&mut NoTrace)
}

/// Has ports open until the body has ended.
fn stand_by(env: &Env, case: &Case, idle: u16) {
    let backend: &SimBackend = &env.backend;
    let numbers = (PORTS..TABLE).take(usize::from(idle));
    let ports: Vec<_> = numbers
        .filter_map(|port| {
            let request = OpenRequest {
                port: Some(PortId(port)),
            };
            backend.open(&request).ok()
        })
        .collect();
    // What it costs to open them says nothing of what they cost while they are open.
    if let Some(sim) = env.sim.upgrade() {
        sim.longest.forget();
    }
    while let Some(sim) = env.sim.upgrade() {
        let over = |ran: &crate::Ran| ran.well != 0;
        if sim.bodies.borrow().bodies.get(case.name).is_some_and(over) {
            break;
        }
        let until = sim.now().after(Nanos::from_millis(1));
        sim.parker.park(Park::Until(until));
    }
    for port in ports {
        port.close();
    }
}
