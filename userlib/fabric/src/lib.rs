//! NetVM as a provider of libfabric: `libnetvm-fi.so`, which libfabric finds by `FI_PROVIDER_PATH`.
//!
//! | part of libfabric | see |
//! |---|---|
//! | what is offered (`fi_getinfo`) | `info.rs` |
//! | addresses: of endpoints, and of services where these are asked for | `address.rs`, `service.rs` |
//! | fabric, domain, memory regions, address vectors | `fabric.rs`, `domain.rs`, `mr.rs`, `av.rs` |
//! | completion queues, counters, event queues, poll sets | `cq.rs`, `cntr.rs`, `eq.rs`, `poll.rs` |
//! | calls of an endpoint; those that are not offered | `ops/`, `absent.rs` |
//! | connections and messages | `ep/`, `wire.rs` |
//! | one-sided operations | `rma/` |
//!
//! One node of the software card serves a process. A domain has a port for remote access to memory, an endpoint one for messages.
//! Nothing is pinned: a memory region is a name for a range of addresses.

mod absent;
mod address;
mod av;
mod buffer;
mod cntr;
mod cq;
mod domain;
mod ep;
mod eq;
mod everything;
mod fabric;
mod ffi;
mod fi;
mod helper;
mod info;
mod log;
mod mr;
mod node;
mod ops;
mod poll;
mod rma;
mod service;
mod settings;
mod wait;
mod wire;

use core::cell::UnsafeCell;

use fi::{fi_context, fi_provider};

/// What libfabric holds of a provider. It writes to the context.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: only libfabric changes it, under a lock of its own.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: info::VERSION,
    fi_version: info::API,
    context: fi_context {
        internal: [core::ptr::null_mut(); 4],
    },
    name: info::NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// What libfabric calls when it has loaded the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    PROVIDER.0.get()
}

unsafe extern "C" fn cleanup() {
    let _ = std::panic::catch_unwind(ffi::forget_closed);
}
