//! Ports: a program's endpoints on a node.

use std::ffi::c_int;

use netvm::{Port, PortConfig, PortId};

use crate::argument::{Led, fill, out, structure};
use crate::call::call;
use crate::fault::Fault;
use crate::handle::{self, handles};
use crate::node::netvm_node;

/// An endpoint on a node: it owns regions, exports and imports, posts operations and receives notifications.
pub struct netvm_port;

handles! {
    netvm_port = 2: Port;
}

/// How to open a port. What is 0 is left to the library.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_port_options {
    /// `sizeof(struct netvm_port_options)`.
    pub size: usize,
    /// The port's number, which others name to import from it; 0: any free one.
    pub port: u16,
    /// Not used; 0.
    pub reserved: u16,
    /// How often a wait looks before it blocks.
    pub spins: u32,
    /// Bytes of the region through which bytes pass that the card cannot reach where they are.
    pub staging_bytes: u64,
    /// One-shot notifications that are taken out of the card's queue ahead of the program.
    pub one_shot_backlog: u64,
}

// SAFETY: integers.
unsafe impl Led for netvm_port_options {
    const FIRST: usize = 32;
    const ZERO: Self = Self {
        size: 0,
        port: 0,
        reserved: 0,
        spins: 0,
        staging_bytes: 0,
        one_shot_backlog: 0,
    };
}

const _: () = assert!(size_of::<netvm_port_options>() == netvm_port_options::FIRST);

/// What a port has done since it was opened.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_port_stats {
    /// `sizeof(struct netvm_port_stats)`.
    pub size: usize,
    /// Write calls posted.
    pub writes: u64,
    /// Messages that they were cut into.
    pub write_messages: u64,
    /// Read calls posted.
    pub reads: u64,
    /// Messages that they were cut into.
    pub read_messages: u64,
    /// Waits posted for what has landed.
    pub remote_flushes: u64,
    /// Waits posted for what the other card has received.
    pub received_flushes: u64,
    /// Atomics posted.
    pub atomics: u64,
    /// Bytes that travelled inside of descriptors.
    pub inline_bytes: u64,
    /// Bytes transferred straight from or to a region.
    pub zero_copy_bytes: u64,
    /// Bytes copied through the port's own region.
    pub staged_bytes: u64,
    /// How often a call found no room and waited.
    pub queue_full: u64,
    /// Operations reported as failed.
    pub failures: u64,
    /// Signals acknowledged.
    pub acknowledged: u64,
    /// Times a caller blocked instead of spinning.
    pub blocked: u64,
}

// SAFETY: integers.
unsafe impl Led for netvm_port_stats {
    const FIRST: usize = 120;
    const ZERO: Self = Self {
        size: 0,
        writes: 0,
        write_messages: 0,
        reads: 0,
        read_messages: 0,
        remote_flushes: 0,
        received_flushes: 0,
        atomics: 0,
        inline_bytes: 0,
        zero_copy_bytes: 0,
        staged_bytes: 0,
        queue_full: 0,
        failures: 0,
        acknowledged: 0,
        blocked: 0,
    };
}

const _: () = assert!(size_of::<netvm_port_stats>() == netvm_port_stats::FIRST);

/// Opens a port on a node. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_port_open(
    node: *mut netvm_node,
    options: *const netvm_port_options,
    port: *mut *mut netvm_port,
) -> c_int {
    call(|| {
        let place = out(port, "port")?;
        // SAFETY: the header asks for such arguments, here and below.
        let options = unsafe { structure(options) }?;
        if options.reserved != 0 {
            return Err(Fault::argument(
                libc::EINVAL,
                "what is not used of a structure must be 0",
            ));
        }
        let mut config = PortConfig::default();
        config.port = (options.port > 0).then_some(PortId(options.port));
        if options.spins > 0 {
            config.spins = options.spins;
        }
        if options.staging_bytes > 0 {
            config.staging_bytes = options.staging_bytes;
        }
        if options.one_shot_backlog > 0 {
            config.one_shot_backlog = usize::try_from(options.one_shot_backlog).unwrap_or(usize::MAX);
        }
        let opened = Port::open(&handle::get(node)?.node(), config)?;
        let made = handle::make(opened)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// The port's number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_port_id(port: *mut netvm_port, id: *mut u16) -> c_int {
    call(|| {
        let place = out(id, "id")?;
        let number = handle::get(port)?.id();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(number.0) };
        Ok(())
    })
}

/// The number of the port's node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_port_node(port: *mut netvm_port, node: *mut u16) -> c_int {
    call(|| {
        let place = out(node, "node")?;
        let number = handle::get(port)?.node().id();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(number.0) };
        Ok(())
    })
}

/// Nanoseconds on the clock that the port's time-outs go by.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_port_now(port: *mut netvm_port, nanoseconds: *mut u64) -> c_int {
    call(|| {
        let place = out(nanoseconds, "nanoseconds")?;
        let now = handle::get(port)?.now();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(now.0) };
        Ok(())
    })
}

/// Lets the card work on what waits for it, and does not wait: a program that polls memory, or counts of signals, calls this between
/// its looks. Calls that wait do so by themselves.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_port_progress(port: *mut netvm_port) -> c_int {
    call(|| {
        handle::get(port)?.progress();
        Ok(())
    })
}

/// What the port has done so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_port_get_stats(port: *mut netvm_port, stats: *mut netvm_port_stats) -> c_int {
    call(|| {
        let all = handle::get(port)?.stats();
        let value = netvm_port_stats {
            size: 0,
            writes: all.writes,
            write_messages: all.write_messages,
            reads: all.reads,
            read_messages: all.read_messages,
            remote_flushes: all.remote_flushes,
            received_flushes: all.received_flushes,
            atomics: all.atomics,
            inline_bytes: all.inline_bytes,
            zero_copy_bytes: all.zero_copy_bytes,
            staged_bytes: all.staged_bytes,
            queue_full: all.queue_full,
            failures: all.failures,
            acknowledged: all.acknowledged,
            blocked: all.blocked,
        };
        // SAFETY: the header asks for such a structure.
        unsafe { fill(stats, &value, "stats") }
    })
}

/// Closes a port, at any time and in any order with what was made from it: its exports end, remote operations are refused, and calls
/// with what is left answer -ESHUTDOWN. Calls under way in other threads that wait for a notification or a message end; a port that is
/// in another call closes when that returns.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_port_close(port: *mut netvm_port) -> c_int {
    call(|| handle::close(port))
}
