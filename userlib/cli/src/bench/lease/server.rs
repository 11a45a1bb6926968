//! The process that lends.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm::{Access, Modes, Port, PortConfig};
use netvm_lease::{Manager, ManagerConfig};
use netvm_process::SoftNode;

use super::{KEY, LONG, NAME, PART, PATIENCE, PLAIN, POOL, PORT, Ready};
use crate::failure::Failure;
use crate::output;
use crate::processes::cannot_start;

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Wrong(format!("the process that lends: {error}"))
}

/// Lends until standard input ends.
pub(super) fn run(client: u16) -> Result<(), Failure> {
    let node = SoftNode::builder().start().map_err(cannot_start)?;
    node.connect(&format!("#{client}"), PATIENCE).map_err(wrong)?;
    let port = Port::open(&node.node(), PortConfig::number(PORT.0)).map_err(wrong)?;
    let config = ManagerConfig::default().longest(2 * LONG);
    let mut manager = Manager::open(port, NAME, POOL, config).map_err(wrong)?;
    let part = manager.define(KEY, PART).map_err(wrong)?;
    // The same bytes, without a lease.
    let access = Access::everyone().modes(Modes::READ | Modes::WRITE);
    let plain = manager.port().export(PLAIN, manager.memory(), part, access);
    let _plain = plain.map_err(wrong)?;
    output::print_json(&Ready {
        node: node.number().0,
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let serve = move || -> netvm_lease::Result<()> {
        while !stopped.load(Ordering::Relaxed) {
            manager.serve(Duration::from_millis(20))?;
        }
        Ok(())
    };
    let serving = std::thread::Builder::new()
        .name("lender".into())
        .spawn(serve)
        .map_err(wrong)?;
    // The client's end is ours.
    io::stdin().read_to_end(&mut Vec::new()).map_err(wrong)?;
    stop.store(true, Ordering::Relaxed);
    match serving.join() {
        Ok(end) => end.map_err(wrong),
        Err(_) => Err(wrong("it has panicked")),
    }
}
