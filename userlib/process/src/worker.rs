//! The thread of a port's paging worker, which pages in what the card missed, and empties bounce pages with one copy (thesis 5.6).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::HostSide;
use crate::machine::Machine;
use netvm_abi::PortId;

/// Serves a port until it is closed: `serve` does all the work that there is.
pub fn run<M: Machine>(host: &HostSide<M>, port: PortId, closed: &AtomicBool, serve: impl Fn()) {
    let Some(work) = host.work.get(port.index()) else {
        return;
    };
    loop {
        // Before the ends are looked at, or the call that tells of one could come between the look and the token.
        let token = work.token();
        if closed.load(Ordering::Acquire) || host.stop.load(Ordering::Acquire) {
            break;
        }
        serve();
        work.wait(token, None);
    }
    // No work is in hand. What comes now finds the port closed in the core.
    serve();
}
