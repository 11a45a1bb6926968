//! Completion: what is done here, received there, landed there.

use std::ffi::{c_int, c_void};

use crate::argument::{out, timeout, waited};
use crate::call::call;
use crate::fault::{Fault, last_error};
use crate::handle;
use crate::pending::{Under, lack, netvm_pending};
use crate::port::netvm_port;

/// The other card has received it, and needs nothing of this node any more.
pub const NETVM_RECEIVED: u32 = 1;
/// It has landed in the memory there.
pub const NETVM_LANDED: u32 = 2;

const NO_LEVEL: Fault = Fault::Argument(libc::EINVAL, "the level is NETVM_RECEIVED or NETVM_LANDED");

/// Returns when every earlier write of the port has left this node: what they were made from may change.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_flush_writes(port: *mut netvm_port) -> c_int {
    call(|| Ok(handle::get(port)?.flush_writes()?))
}

/// Returns when every earlier read of the port has ended: its bytes are there.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_flush_reads(port: *mut netvm_port) -> c_int {
    call(|| Ok(handle::get(port)?.flush_reads()?))
}

/// Returns when every earlier operation to a node has come so far: NETVM_RECEIVED or NETVM_LANDED. If one of them has failed, it says
/// which (netvm_error_failure()). After -EAGAIN or -ETIMEDOUT they are still under way.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_flush(port: *mut netvm_port, node: u16, level: u32, timeout_ns: i64) -> c_int {
    call(|| {
        let port = handle::get(port)?;
        let result = match level {
            NETVM_RECEIVED => port.flush_received_for(node.into(), timeout(timeout_ns)),
            NETVM_LANDED => port.flush_remote_for(node.into(), timeout(timeout_ns)),
            _ => return Err(NO_LEVEL),
        };
        waited(result, timeout_ns)
    })
}

/// Begins the same and never waits: -EAGAIN if there is no room. It is for what was posted before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_flush(
    port: *mut netvm_port,
    node: u16,
    level: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let port = handle::get(port)?;
        let begun = match level {
            NETVM_RECEIVED => port.begin_flush_received(node.into()),
            NETVM_LANDED => port.begin_flush_remote(node.into()),
            _ => return Err(NO_LEVEL),
        };
        // SAFETY: the header asks for such a place.
        unsafe { place.set(Under::Plain(begun?).handle(context)?) };
        Ok(())
    })
}

/// After a call of this thread that has answered -EAGAIN: waits until the port may have room for it. Another thread may take that first.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_wait_room(port: *mut netvm_port, timeout_ns: i64) -> c_int {
    call(|| {
        let port = handle::get(port)?;
        match lack(last_error()) {
            Some(lacks) => {
                let waited_for = port.block_on_for(port.room(lacks), timeout(timeout_ns));
                Ok(waited(waited_for, timeout_ns)??)
            }
            None => Ok(()),
        }
    })
}
