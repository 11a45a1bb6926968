//! What is asked of a world after its faults is asked in earnest: each of these worlds is broken on purpose.

use super::World;
use crate::config::{Config, FaultLevel};
use crate::report::Failure;
use crate::trace::NoTrace;
use crate::workload::{Env, Role};
use netvm_abi::{Nanos, NodeId};

/// Runs a role that returns at once, or again and again.
fn fails(repeat: bool, body: impl Fn(&Env) + 'static) -> Failure {
    let config = Config {
        messages: if repeat { 0 } else { u64::MAX },
        faults: FaultLevel::Off,
        ..Config::default()
    };
    let mut role = Role::new("breaker", NodeId(1), move |env| body(&env));
    (role.repeat, role.revive) = (repeat, repeat);
    let world = World::with_roles(1, config, false, |_, _| vec![role]);
    *world.run(&mut NoTrace).expect_err("nothing was found")
}

#[test]
fn a_pair_of_nodes_whose_link_never_heals_is_found() {
    let failure = fails(false, |env| {
        let sim = env.sim.upgrade().expect("a world");
        // Cuts that a run has made itself are mended by then.
        for _ in 0..100 {
            env.rest();
        }
        sim.fabric
            .borrow_mut()
            .cut_between(NodeId(1), NodeId(2), Nanos::MAX);
    });
    assert!(
        failure
            .what
            .contains("have not reached one another: 1 to 2, 2 to 1;"),
        "{failure}"
    );
}

#[test]
fn a_role_that_always_fails_is_found() {
    let failure = fails(true, |env| env.ends("this one", Err("no")));
    assert!(failure.what.contains("this one ends with \"no\""), "{failure}");
}

#[test]
fn what_a_node_still_holds_in_the_end_is_found() {
    let failure = fails(false, |env| {
        let sim = env.sim.upgrade().expect("a world");
        let node = sim.node(NodeId(3));
        let mut slot = node.driver(&sim);
        let driver = slot.as_mut().expect("a driver");
        driver.host.port_open(&mut driver.platform, None).expect("a port");
    });
    assert_eq!(failure.promise, Some(crate::check::Promise::P6));
    for held in ["card of node 3: 1 open_ports", "driver of node 3: 1 open_ports"] {
        assert!(failure.what.contains(held), "{failure}");
    }
}
