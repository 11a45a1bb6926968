//! What this node's ports import: asking, hearing, letting go.

use super::Host;
use crate::control::Purpose;
use crate::events::Notice;
use crate::imports::{ImportError, ImportSpec, State};
use crate::lists::List;
use crate::platform::Platform;
use netvm_abi::control::Control;
use netvm_abi::storage::Storage;
use netvm_abi::{CapabilitySlot, Nanos, NodeId, PortId, Status, Token};

/// Pending imports that one call looks at (promise P7).
const IMPORTS_AT_A_TIME: u32 = 16;

impl<S: Storage> Host<S> {
    /// Begins to import. The end comes as [`Notice::Imported`].
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn import<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        spec: &ImportSpec,
        now: Nanos,
    ) -> Result<Token, ImportError> {
        if !self.is_alive() {
            return Err(ImportError::CardGone);
        }
        if !self.port_is_open(port) {
            return Err(ImportError::NoSuchPort);
        }
        if spec.node.index() >= self.peers.len() {
            return Err(ImportError::NoSuchNode);
        }
        let imports = &mut self.imports;
        if !imports.shares.take(port) {
            return Err(ImportError::TableFull);
        }
        let index = imports
            .free
            .pop_front(&mut imports.table)
            .ok_or(ImportError::TableFull)?;
        if let Some(entry) = imports.table.get_mut(index as usize) {
            entry.state = State::Pending;
            entry.port = port;
            entry.spec = Some(*spec);
            entry.asked = false;
            entry.told = false;
            entry.next_try = now;
        }
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.imports.push_back(&mut imports.table, index);
        }
        if let Some(peer) = self.peers.get_mut(spec.node.index()) {
            peer.imports.push_back(&mut imports.table, index);
        }
        imports.pending.push_back(&mut imports.table, index);
        self.ask(platform, index, now);
        Ok(self.imports.token(index))
    }

    /// Lets go of an import, or gives up one that is pending (no notice comes then). Where no message can be sent to the
    /// exporter now, [`poll`](Self::poll) sends it later; the token is over all the same.
    ///
    /// # Errors
    /// [`ImportError::NoSuchImport`].
    pub fn unimport<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        import: Token,
        now: Nanos,
    ) -> Result<(), ImportError> {
        let index = self
            .imports
            .entry(import)
            .filter(|(_, entry)| entry.port == port && !matches!(entry.state, State::Leaving(_)))
            .map(|(index, _)| index)
            .ok_or(ImportError::NoSuchImport)?;
        if !self.end_import(platform, index, now) {
            self.leave_later(index);
        }
        Ok(())
    }

    /// An import whose exporter cannot be told now waits for a free slot of farewells.
    fn leave_later(&mut self, index: u32) {
        let imports = &mut self.imports;
        let Some(entry) = imports.table.get_mut(index as usize) else {
            return;
        };
        let State::Live(grant) = entry.state else {
            return;
        };
        entry.state = State::Leaving(grant);
        if !core::mem::replace(&mut entry.told, true) {
            // The platform has let go before it heard of the grant.
            imports.news.remove(&mut imports.table, index);
        }
        imports.leaving.push_back(&mut imports.table, index);
        self.counters.releases_queued += 1;
    }

    /// Tells exporters what ports have let go of, as far as messages can be sent.
    pub(crate) fn leave<P: Platform>(&mut self, platform: &mut P, now: Nanos) {
        while let Some(index) = self.imports.leaving.first() {
            if !self.end_import(platform, index, now) {
                return;
            }
        }
    }

    /// Releases one import of a port that is being closed; true when none is left.
    pub(crate) fn end_imports<P: Platform>(&mut self, platform: &mut P, port: PortId, now: Nanos) -> bool {
        loop {
            let first = self.ports.get(port.index()).and_then(|port| port.imports.first());
            let Some(index) = first else {
                return true;
            };
            if !self.end_import(platform, index, now) {
                return false;
            }
        }
    }

    /// Ends an import; false: its exporter must be told, and cannot be now.
    fn end_import<P: Platform>(&mut self, platform: &mut P, index: u32, now: Nanos) -> bool {
        let Some(entry) = self.imports.table.get(index as usize) else {
            return true;
        };
        let node = entry.spec.map_or(self.node, |spec| spec.node);
        if let State::Live(grant) | State::Leaving(grant) = entry.state {
            if node == self.node {
                let _ = self.release_grant(platform, node, grant.capability, grant.secret, now);
            } else if self.peer(node).is_some() {
                let message = Control::Release {
                    capability: grant.capability,
                    secret: grant.secret,
                };
                if !self.send_farewell(platform, node, &message) && self.is_alive() {
                    return false;
                }
            }
        }
        self.free_import(index);
        true
    }

    fn free_import(&mut self, index: u32) {
        let imports = &mut self.imports;
        let Some(entry) = imports.table.get_mut(index as usize) else {
            return;
        };
        let (owner, node) = (entry.port, entry.spec.map(|spec| spec.node));
        let state = core::mem::replace(&mut entry.state, State::Free);
        let untold = !entry.told || state == State::Revoked;
        entry.generation = entry.generation.wrapping_add(1);
        if let Some(port) = self.ports.get_mut(owner.index()) {
            port.imports.remove(&mut imports.table, index);
        }
        if let Some(peer) = node.and_then(|node| self.peers.get_mut(node.index())) {
            peer.imports.remove(&mut imports.table, index);
        }
        if state == State::Pending {
            imports.pending.remove(&mut imports.table, index);
        } else if matches!(state, State::Leaving(_)) {
            imports.leaving.remove(&mut imports.table, index);
        } else if untold {
            imports.news.remove(&mut imports.table, index);
        }
        imports.free.push_back(&mut imports.table, index);
        imports.shares.give(owner);
    }

    /// Asks for a pending import (again).
    fn ask<P: Platform>(&mut self, platform: &mut P, index: u32, now: Nanos) {
        let token = self.imports.token(index);
        let Some(entry) = self.imports.table.get_mut(index as usize) else {
            return;
        };
        let (Some(spec), port) = (entry.spec, entry.port) else {
            return;
        };
        self.counters.imports_retried += u64::from(core::mem::replace(&mut entry.asked, true));
        entry.next_try = now.after(self.config.import_retry);
        self.connect(platform, spec.node);
        if spec.node == self.node {
            // A port may write as soon as it has the grant. The card refuses what is for a node that it knows no link to,
            // also where that is its own; it comes up by itself.
            if self.peer(spec.node).is_some() {
                let granted = self.answer_import(
                    platform, spec.node, spec.port, port, spec.modes, &spec.name, token,
                );
                self.import_answered(platform, spec.node, token, granted, now);
            }
        } else if self.peer(spec.node).is_some() {
            let message = Control::Import {
                token,
                port: spec.port,
                importer: port,
                modes: spec.modes,
                name: spec.name,
            };
            let sent = self.send_control(platform, spec.node, Purpose::Request(token), &message);
            if sent && let Some(entry) = self.imports.table.get_mut(index as usize) {
                // The answer needs a round trip and perhaps a busy driver.
                entry.next_try = now.after(Nanos(self.config.import_retry.0.saturating_mul(8)));
            }
        } else if !spec.wait {
            self.settle(index, State::Failed(Status::LinkLost));
        }
        if let Some(entry) = self.imports.table.get(index as usize)
            && entry.state == State::Pending
        {
            let due = entry.next_try.min(spec.deadline);
            self.imports.next_due = self.imports.next_due.min(due);
        }
    }

    /// Ends the pending state.
    pub(crate) fn settle(&mut self, index: u32, state: State) {
        let imports = &mut self.imports;
        let Some(entry) = imports.table.get_mut(index as usize) else {
            return;
        };
        if entry.state != State::Pending {
            return;
        }
        entry.state = state;
        imports.pending.remove(&mut imports.table, index);
        imports.news.push_back(&mut imports.table, index);
        match state {
            State::Live(_) => self.counters.imports_granted += 1,
            _ => self.counters.imports_failed += 1,
        }
    }

    /// The exporter has taken a capability back.
    pub(crate) fn import_revoked(&mut self, exporter: NodeId, slot: CapabilitySlot) {
        let Some(peer) = self.peers.get(exporter.index()) else {
            return;
        };
        let mut next = peer.imports.first();
        while let Some(index) = next {
            next = List::<1>::after(&self.imports.table, index);
            let live = self.imports.table.get(index as usize).map(|entry| entry.state);
            match live {
                Some(State::Live(grant)) if grant.capability == slot => self.void_import(index),
                // Both sides have let go.
                Some(State::Leaving(grant)) if grant.capability == slot => self.free_import(index),
                _ => {}
            }
        }
    }

    fn void_import(&mut self, index: u32) {
        let imports = &mut self.imports;
        let Some(entry) = imports.table.get_mut(index as usize) else {
            return;
        };
        self.counters.imports_revoked += 1;
        if entry.told {
            entry.state = State::Revoked;
            imports.news.push_back(&mut imports.table, index);
        } else {
            // Still in the news: it never was.
            entry.state = State::Failed(Status::Revoked);
        }
    }

    /// The link to a peer is down: what it granted is void, and pending imports that do not wait fail.
    pub(crate) fn peer_imports_lost(&mut self, peer: NodeId, now: Nanos) {
        let Some(entry) = self.peers.get(peer.index()) else {
            return;
        };
        let mut next = entry.imports.first();
        while let Some(index) = next {
            next = List::<1>::after(&self.imports.table, index);
            let Some(import) = self.imports.table.get_mut(index as usize) else {
                return;
            };
            match import.state {
                State::Live(_) => self.void_import(index),
                // Its grant went with the link.
                State::Leaving(_) => self.free_import(index),
                State::Pending if import.spec.is_some_and(|spec| spec.wait) => {
                    let retry = now.after(self.config.import_retry);
                    import.next_try = retry;
                    self.imports.next_due = self.imports.next_due.min(retry);
                }
                State::Pending => self.settle(index, State::Failed(Status::LinkLost)),
                State::Free | State::Revoked | State::Failed(_) => {}
            }
        }
    }

    /// The link to a peer is up: what waits for it asks at once.
    pub(crate) fn peer_imports_ask(&mut self, peer: NodeId, now: Nanos) {
        let Some(entry) = self.peers.get(peer.index()) else {
            return;
        };
        let mut next = entry.imports.first();
        while let Some(index) = next {
            next = List::<1>::after(&self.imports.table, index);
            if let Some(import) = self.imports.table.get_mut(index as usize)
                && import.state == State::Pending
            {
                import.next_try = now;
                self.imports.next_due = now;
            }
        }
    }

    /// Everything that is pending or live fails: the card is dead.
    pub(crate) fn all_imports_lost(&mut self) {
        for index in 0..self.imports.table.len() as u32 {
            match self.imports.table.get(index as usize).map(|entry| entry.state) {
                Some(State::Pending) => self.settle(index, State::Failed(Status::CardGone)),
                Some(State::Live(_)) => self.void_import(index),
                Some(State::Leaving(_)) => self.free_import(index),
                _ => {}
            }
        }
    }

    /// Asks again, and gives up what is overdue, of a slice of the pending imports. Tells whether there are more to look at.
    pub(crate) fn imports_due<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> bool {
        if self.imports.unseen == 0 {
            if now < self.imports.next_due {
                return false;
            }
            self.imports.next_due = Nanos::MAX;
            self.imports.unseen = self.imports.pending.len();
        }
        for _ in 0..self.imports.unseen.min(IMPORTS_AT_A_TIME) {
            self.imports.unseen -= 1;
            let imports = &mut self.imports;
            let Some(index) = imports.pending.pop_front(&mut imports.table) else {
                imports.unseen = 0;
                break;
            };
            imports.pending.push_back(&mut imports.table, index);
            let Some(entry) = imports.table.get(index as usize) else {
                continue;
            };
            let deadline = entry.spec.map_or(Nanos(0), |spec| spec.deadline);
            if now >= deadline {
                self.settle(index, State::Failed(Status::TimedOut));
            } else if now >= entry.next_try {
                self.ask(platform, index, now);
            } else {
                imports.next_due = imports.next_due.min(entry.next_try.min(deadline));
            }
        }
        self.imports.unseen > 0
    }

    /// What the platform has not heard yet of its imports.
    pub(crate) fn import_news(&mut self) -> Option<Notice> {
        let imports = &mut self.imports;
        let index = imports.news.pop_front(&mut imports.table)?;
        let import = imports.token(index);
        let entry = imports.table.get_mut(index as usize)?;
        let port = entry.port;
        entry.told = true;
        match entry.state {
            State::Live(grant) => Some(Notice::Imported {
                port,
                import,
                result: Ok(grant),
            }),
            State::Failed(status) => {
                self.free_import(index);
                Some(Notice::Imported {
                    port,
                    import,
                    result: Err(status),
                })
            }
            State::Revoked => Some(Notice::ImportRevoked { port, import }),
            State::Free | State::Pending | State::Leaving(_) => None,
        }
    }
}
