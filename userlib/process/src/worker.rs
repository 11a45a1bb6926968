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
    while !closed.load(Ordering::Acquire) && !host.stop.load(Ordering::Acquire) {
        let token = work.token();
        if paging::serve_one(pager).is_none() {
            work.wait(token, None);
        }
    }
    // No work is in hand. What comes now finds the port closed in the core.
    while paging::serve_one(pager).is_some() {}
}
