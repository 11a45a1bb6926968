// SPDX-License-Identifier: GPL-2.0

//! `netvm.ko`: the host side of NetVM in Linux 6.12.
//!
//! All policy is the host core's ([`netvm_host`]), which runs here unchanged, as in the emulator and in
//! the simulator. The module is its platform: it gives it a card (PCI), memory that the card reaches,
//! threads, and processes whose page events it watches; and it gives processes `/dev/netvmN`. What
//! 6.12's `kernel` crate does not bind is in C (`../shim`), without decisions.
//!
//! | file | idea |
//! |---|---|
//! | [`host_card`] | the host's side of a card: its lock, attaching, its thread, its death |
//! | [`withdraw`] | the card is let go of: for good, or while the machine sleeps |
//! | [`notices`] | what the host core says, and where it goes |
//! | [`port`] | an open port: a process, its worker, its life |
//! | [`pages`] | page events: the kernel takes a page away; what the card is told before it is gone |
//! | [`worker`] | bounced messages and missed pages: page in, copy once, map |
//! | [`calls`], [`leases`] | ioctls |
//! | [`callbacks`] | what C calls |
//! | [`words`] | NIC memory and driver memory |
//! | [`event`], [`tables`], [`errno`], [`shim`] | tools |
//!
//! **Locks**, in order: a port's chunks (mutex), page-table locks of the kernel, the card's lock (spin).
//! A thread that holds the card's lock does not allocate, fault, copy or wait; it is never taken in an interrupt, which
//! only counts an event. The address space's lock is never taken under any of them but the first.
//!
//! **No page is pinned.** The card has a page only between its publication and the end of the
//! invalidation that takes it away, and so long the process' own page table holds it.

use core::ffi::c_int;
use kernel::prelude::*;

mod callbacks;
mod calls;
mod errno;
mod event;
mod host_card;
mod leases;
mod notices;
mod pages;
mod port;
mod shim;
mod stat;
mod tables;
mod withdraw;
mod words;
mod worker;

module! {
    type: NetVm,
    name: "netvm",
    author: "The NetVM authors",
    description: "NetVM: remote memory access without pinning",
    license: "GPL",
}

struct NetVm;

impl kernel::Module for NetVm {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // SAFETY: once, at the beginning.
        let code: c_int = unsafe { shim::nv_pci_register() };
        kernel::error::to_result(code)?;
        Ok(Self)
    }
}

impl Drop for NetVm {
    fn drop(&mut self) {
        // SAFETY: registered in `init`. No file is open: each holds a reference to the module.
        unsafe { shim::nv_pci_unregister() }
    }
}
