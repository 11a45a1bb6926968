//! The common steps of all host platforms, over a modelled NIC: what runs under the lock and what does not, in which
//! order, and how each of them ends.

// The test world of the host core, which these tests share.
#[path = "../../../core/tests/host/memory.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod memory;
#[path = "../../../core/tests/host/rig.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod rig;

mod desk;
mod notice;
mod paging;
mod process;
mod unmap;
