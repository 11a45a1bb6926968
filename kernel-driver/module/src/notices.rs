// SPDX-License-Identifier: GPL-2.0

//! What the host core says, and where it goes.

use crate::host_card::{Core, HostCard};
use crate::shim;
use kernel::prelude::*;
use netvm_abi::control::Grant;
use netvm_abi::port_area::PORT_EVENTS;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::SharedWords;
use netvm_abi::{Incarnation, NodeId, PortId, Status, Token};
use netvm_host_platform::notice::Handler;

impl Handler for HostCard {
    fn work(&self, port: PortId) {
        if let Some(work) = self.work.get(port.index()) {
            work.signal();
        }
    }

    fn imported(&self, _: PortId, import: Token, result: Result<Grant, Status>) {
        {
            let mut core = self.lock();
            // A waiter that gave up has emptied the entry.
            if let Some(entry) = core.imports.get_mut(import_index(import)) {
                if entry.token == Some(import) {
                    entry.result = Some(result);
                }
            }
        }
        self.steps.signal();
    }

    /// The entry may have become another import's meanwhile, which has another token.
    fn import_over(&self, _: PortId, import: Token) {
        {
            let mut core = self.lock();
            if let Some(entry) = core.imports.get_mut(import_index(import)) {
                if entry.token == Some(import) {
                    entry.token = None;
                }
            }
        }
        self.steps.signal();
    }

    fn peer_up(&self, peer: NodeId, incarnation: Incarnation) {
        self.link(peer, true);
        // A peer that greets again and again fills no log.
        if shim::nv_may_log() {
            pr_info!(
                "netvm{}: the link to node {} is up ({:#x})\n",
                self.number(),
                peer,
                incarnation.0
            );
        }
    }

    fn peer_down(&self, peer: NodeId) {
        // A peer that greets for the first time ends a life that never was.
        if self.link(peer, false) && shim::nv_may_log() {
            pr_warn!("netvm{}: the link to node {} is down\n", self.number(), peer);
        }
    }

    fn progress(&self) {
        self.steps.signal();
    }
}

impl HostCard {
    /// A link goes up or down; whether it was up.
    fn link(&self, peer: NodeId, up: bool) -> bool {
        let mut core = self.lock();
        let known = core.links.get_mut(peer.index());
        known.is_some_and(|known| core::mem::replace(known, up))
    }

    /// The card has interrupted: it does not say which port it means. Every process that waits looks at its own words.
    pub(crate) fn tell_all(&self) {
        let mut core = self.lock();
        for port in 1..self.news.len() as u16 {
            self.tell_locked(&mut core, PortId(port));
        }
    }

    /// Wakes the process of a port, if it is open.
    pub(crate) fn tell(&self, port: PortId) {
        self.tell_locked(&mut self.lock(), port);
    }

    fn tell_locked(&self, core: &mut Core, port: PortId) {
        let at = SharedMap::new(core.host.geometry()).port_area(port);
        let listener = match core.listeners.get_mut(port.index()) {
            Some(listener) if listener.open => listener,
            _ => return,
        };
        // Before the wake-up: a waiter that sees the old count is woken after it.
        listener.events = listener.events.wrapping_add(1);
        core.glue
            .shared
            .store_release(at.plus(PORT_EVENTS.0), listener.events);
        if !listener.eventfd.is_null() {
            // SAFETY: it is given back only after it was taken out of here.
            unsafe { shim::nv_eventfd_signal(listener.eventfd) }
        }
        if let Some(news) = self.news.get(port.index()) {
            news.signal();
        }
    }
}

/// Where an import's entry is.
pub(crate) const fn import_index(token: Token) -> usize {
    (token.0 & 0xFFFF) as usize
}
