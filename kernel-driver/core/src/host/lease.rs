//! Giving leases, asking the card what is left of one, and taking them back.

use super::Host;
use crate::bounce::State;
use crate::events::Notice;
use crate::exports;
use crate::grants::{GrantInfo, GrantState};
use crate::leases::{EVENTS_WAITING, Lease, LeaseId, LeaseQuestion, LeaseSpec, Lent, QUESTIONS, sure};
use crate::paging::WorkStep;
use crate::platform::Platform;
use crate::revoke::Revoke;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::control::Modes;
use netvm_abi::event::HostEvent;
use netvm_abi::lease::{Terms, lease_at};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, CapabilitySlot, Generation, Nanos, NotificationId, PortId, Status, Token};

/// The token of a question that is about no bounced message.
const NO_BOUNCE: Token = Token(u32::MAX);

impl<S: Storage> Host<S> {
    /// Lends a part of a port's export. `None`: the card has to take some events first; try again.
    ///
    /// # Errors
    /// [`Status::NoSuchExport`], [`Status::OutOfRange`], [`Status::NotAllowed`] (modes that the export does not have), [`Status::Malformed`]
    /// (a duration of 0, or longer than the longest life), [`Status::NoSuchNode`], [`Status::TableFull`], [`Status::CardGone`].
    pub fn lend<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        spec: &LeaseSpec,
        now: Nanos,
    ) -> Result<Option<Lent>, Status> {
        if !self.is_alive() {
            return Err(Status::CardGone);
        }
        let mut capability = self.lease_of(port, spec)?;
        if !self.to_nic.has_fewer_than(platform.shared(), EVENTS_WAITING) {
            return Ok(None);
        }
        if self.grants.free.is_empty() {
            // More may be over than one look takes.
            self.request_barrier(platform, now);
            self.reap();
            self.tell_grants_again(platform);
        }
        if !self.grants.shares.take(port) {
            return Err(Status::TableFull);
        }
        let Some(index) = self.grants.free.pop_front(&mut self.grants.table) else {
            self.grants.shares.give(port);
            return Err(Status::TableFull);
        };
        capability.secret = platform.secret();
        let export = self.exports.index(spec.export).unwrap_or(0);
        let Some(entry) = self.grants.table.get_mut(index as usize) else {
            return Err(Status::TableFull);
        };
        entry.state = GrantState::Live;
        entry.capability = capability;
        entry.export = export;
        entry.request = Token(0);
        entry.tell = false;
        entry.lease = Some(Lease::GIVEN);
        // It begins no sooner than now.
        entry.sure_until = sure(now, spec.duration);
        let lease = LeaseId {
            slot: CapabilitySlot(index),
            generation: Generation(entry.generation),
        };
        if let Some(export) = self.exports.table.get_mut(export as usize) {
            export.grants.push_back(&mut self.grants.table, index);
        }
        let terms = Terms {
            generation: lease.generation,
            duration: spec.duration,
            longest: spec.longest,
        };
        terms.publish(platform.bar(), lease_at(self.bar_map.leases, lease.slot));
        let at = capability_at(self.bar_map.capabilities, lease.slot);
        capability.publish(platform.bar(), at);
        self.counters.leases += 1;
        let LeaseId { slot, generation } = lease;
        self.post(platform, &HostEvent::LeaseBegin { slot, generation });
        let grant = self.grants.as_grant(index).ok_or(Status::TableFull)?;
        Ok(Some(Lent { lease, grant }))
    }

    /// The capability of a lease, without its secret.
    fn lease_of(&self, port: PortId, spec: &LeaseSpec) -> Result<Capability, Status> {
        let export = self.exports.live(spec.export);
        let export = export
            .filter(|export| export.root.port == port && export.state == exports::State::Live)
            .ok_or(Status::NoSuchExport)?;
        if spec.duration.0 == 0 || spec.duration > spec.longest {
            return Err(Status::Malformed);
        }
        let root = &export.root;
        let end = spec.start.checked_add(spec.len).ok_or(Status::OutOfRange)?;
        if spec.len == 0 || spec.start < root.start || end > root.end {
            return Err(Status::OutOfRange);
        }
        let modes = spec.modes;
        if modes.is_empty() || modes.contains(Modes::APPEND) || !root.modes.contains(modes) {
            return Err(Status::NotAllowed);
        }
        if spec.node.index() >= self.peers.len() {
            return Err(Status::NoSuchNode);
        }
        let notifies = modes.contains(Modes::NOTIFY);
        let notified = |id| if notifies { id } else { NotificationId::NONE };
        Ok(Capability {
            modes,
            holder: spec.node,
            holder_port: spec.port,
            start: spec.start,
            end,
            queue: QueueShape::NONE,
            notify_first: notified(root.notify_first),
            notify_last: notified(root.notify_last),
            // Until the card begins it.
            expires: Nanos(0),
            ..*root
        })
    }

    /// The lease of this name, if it lives and is this port's.
    fn lease(&mut self, port: PortId, id: LeaseId) -> Option<(&mut Lease, Nanos)> {
        let entry = self.grants.table.get_mut(id.slot.index())?;
        let ours = entry.state == GrantState::Live
            && entry.generation == id.generation.0
            && entry.capability.port == port;
        let sure_until = entry.sure_until;
        let lease = entry.lease.as_mut().filter(|_| ours)?;
        Some((lease, sure_until))
    }

    /// Begins to ask how much of a port's lease is left.
    pub fn lease_left_begin(&mut self, port: PortId, lease: LeaseId) -> LeaseQuestion {
        let answers = self.lease(port, lease).map_or(0, |(lease, _)| lease.answers);
        LeaseQuestion { lease, answers }
    }

    /// How much is left: at least so much, from now on. 0: it is over for good, or was taken back. `None`: the card has not answered.
    ///
    /// # Errors
    /// [`Status::CardGone`].
    pub fn lease_left_step<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        question: &LeaseQuestion,
        now: Nanos,
    ) -> Result<Option<Nanos>, Status> {
        if !self.is_alive() {
            return Err(Status::CardGone);
        }
        let id = question.lease;
        let Some((lease, sure_until)) = self.lease(port, id) else {
            return Ok(Some(Nanos(0)));
        };
        if lease.over {
            return Ok(Some(Nanos(0)));
        }
        if lease.answers != question.answers {
            // It was not over a moment ago.
            let left = sure_until.0.saturating_sub(now.0).max(1);
            return Ok(Some(Nanos(left)));
        }
        let is_out = lease.asked.is_some();
        let room =
            self.leases_asked < QUESTIONS && self.to_nic.has_fewer_than(platform.shared(), EVENTS_WAITING);
        if !is_out && room {
            self.leases_asked += 1;
            if let Some((lease, _)) = self.lease(port, id) {
                lease.asked = Some(now);
            }
            self.ask_card(platform, id, NO_BOUNCE);
        }
        Ok(None)
    }

    fn ask_card<P: Platform>(&mut self, platform: &mut P, id: LeaseId, token: Token) {
        self.counters.leases_asked += 1;
        let LeaseId { slot, generation } = id;
        let event = HostEvent::LeaseAsk {
            slot,
            generation,
            token,
        };
        self.post(platform, &event);
    }

    /// The card says how much of a lease is left.
    pub(crate) fn lease_left<P: Platform>(
        &mut self,
        platform: &mut P,
        id: LeaseId,
        token: Token,
        left: Nanos,
        now: Nanos,
    ) -> Option<Notice> {
        let entry = self.grants.table.get_mut(id.slot.index());
        let entry = entry.filter(|entry| entry.generation == id.generation.0);
        if token == NO_BOUNCE {
            if let Some(entry) = entry
                && let Some(asked) = entry.lease.as_mut().and_then(|lease| lease.asked.take())
            {
                entry.lease_left(asked, left);
            }
            if self.leases_asked == 0 {
                self.counters.nic_events_bad += 1;
                return None;
            }
            self.leases_asked -= 1;
            return Some(Notice::Progress);
        }
        let bounce = BounceId(token.0);
        let work = self.work.get(bounce.index());
        // Its link may have been lost meanwhile.
        let asked = work
            .filter(|work| work.state == State::Asking)
            .map(|work| work.asked)?;
        if let Some(entry) = entry {
            entry.lease_left(asked, left);
        }
        self.take_up(platform, bounce, now)
    }

    /// Why a piece of work is refused, or the lease that the card has to be asked about first.
    #[cold]
    pub(crate) fn refusal(&self, index: u32, status: Status) -> Result<LeaseId, Status> {
        let unsure = self.unsure_lease(index).filter(|_| status == Status::Expired);
        unsure.ok_or(status)
    }

    /// The lease under which a piece of work copies, if it may live longer than the host knows.
    fn unsure_lease(&self, index: u32) -> Option<LeaseId> {
        let work = self.work.get(index as usize)?;
        let slot = work.grant()?;
        let entry = self.grants.table.get(slot.index())?;
        let lease = entry.lease.as_ref()?;
        let generation = Generation(entry.generation);
        (!lease.over).then_some(LeaseId { slot, generation })
    }

    /// Puts a piece of work aside, which no worker has in hand, until the card has said whether its lease is over.
    pub(crate) fn ask_for_work<P: Platform>(
        &mut self,
        platform: &mut P,
        index: u32,
        lease: LeaseId,
        now: Nanos,
    ) -> WorkStep {
        if let Some(work) = self.work.get_mut(index as usize) {
            work.state = State::Asking;
            work.asked = now;
            work.ticket = None;
        }
        self.asking.push_back(&mut self.work, index);
        self.ask_card(platform, lease, Token(index));
        WorkStep::Ended {
            status: Status::Expired,
        }
    }

    /// Work that was put aside goes on: first in its port's queue.
    fn take_up<P: Platform>(&mut self, platform: &mut P, bounce: BounceId, now: Nanos) -> Option<Notice> {
        let index = bounce.0;
        self.asking.remove(&mut self.work, index);
        let work = self.work.get_mut(bounce.index())?;
        work.state = State::Queued;
        let (port, generation) = (work.port, work.port_generation);
        if self.open_generation(port) != Some(generation) {
            self.count_refused(index);
            self.answer(platform, index, Status::NoSuchPort, now);
            return None;
        }
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.queue.push_front(&mut self.work, index);
        }
        self.has_page_work(port, now);
        Some(Notice::Work(port))
    }

    /// The card is dead: what waits for its answer is refused.
    pub(crate) fn refuse_asking<P: Platform>(&mut self, platform: &mut P, now: Nanos) {
        while let Some(index) = self.asking.pop_front(&mut self.work) {
            self.count_refused(index);
            self.answer(platform, index, Status::CardGone, now);
        }
    }

    /// Begins to take a port's lease back: messages under it are refused from now on. `None`: it is gone already, or another's.
    pub fn recall_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        lease: LeaseId,
        now: Nanos,
    ) -> Option<Revoke> {
        self.lease(port, lease)?;
        let entry = self.grants.table.get(lease.slot.index())?;
        let grant = GrantInfo {
            slot: lease.slot,
            generation: lease.generation,
            export: self.exports.id(entry.export),
            holder: entry.capability.holder,
            holder_port: entry.capability.holder_port,
        };
        self.counters.leases_recalled += 1;
        self.revoke_begin(platform, grant, now)
    }
}
