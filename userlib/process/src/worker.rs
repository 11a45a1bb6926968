//! A port's paging worker: pages in what the card missed, and empties bounce pages with one copy (thesis 5.6).

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_abi::PortId;
use netvm_host_platform::paging;

use crate::driver::HostSide;
use crate::machine::Machine;

/// Serves a port until it is closed.
pub fn run<M: Machine, P>(host: &HostSide<M>, pager: &P, port: PortId, closed: &AtomicBool)
where
    P: paging::Pager<System = HostSide<M>, Wait = Infallible>,
{
    let Some(work) = host.work.get(port.index()) else {
        return;
    };
    loop {
        // Before the ends are looked at, or the call that tells of one could come between the look and the token.
        let token = work.token();
        if closed.load(Ordering::Acquire) || host.stop.load(Ordering::Acquire) {
            break;
        }
        if paging::serve_one(pager).is_none() {
            work.wait(token, None);
        }
    }
    // No work is in hand. What comes now finds the port closed in the core.
    while paging::serve_one(pager).is_some() {}
}
