//! Control messages between host drivers: taken from the driver's slots, sent in order to each
//! peer, and at the other side always handed to the driver through the bounce page of their window
//! slot.

use crate::dma::Holder;
use crate::nic::Nic;
use crate::platform::{Payload, Platform};
use crate::receive::Step;
use crate::slot::SlotState;
use netvm_abi::control::{CONTROL_BYTES, CONTROL_SLOTS, CONTROL_WORDS};
use netvm_abi::event::NicEvent;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, OwnHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Nanos, NodeId, PortId, Token};

/// The host driver's port.
const DRIVER: PortId = PortId(0);

/// A control message that waits for its link or a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) peer: NodeId,
    pub(crate) slot: u16,
    pub(crate) token: Token,
}

impl<S: Storage> Nic<S> {
    /// The host wants a control message sent.
    pub(crate) fn control_posted<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        peer: NodeId,
        slot: u16,
        token: Token,
    ) {
        if peer.0 >= self.env.config.geometry.nodes {
            self.control_sent(p, token, Status::NoSuchNode);
            return;
        }
        let waiting = Waiting { peer, slot, token };
        if slot >= CONTROL_SLOTS || self.controls.push(waiting).is_err() {
            self.env.counters.host_events_refused += 1;
            self.control_sent(p, token, Status::TableFull);
            return;
        }
        self.connect(p, now, peer);
        self.send_controls(p, now);
    }

    /// Sends the control messages that have a link and a credit; what goes to one peer keeps its
    /// order, and waits for no other peer. Returns whether one was sent.
    pub(crate) fn send_controls<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        let waiting = core::mem::take(&mut self.controls);
        let before = waiting.len();
        for control in waiting {
            let blocked = self.controls.iter().any(|earlier| earlier.peer == control.peer);
            if blocked || !self.send_control(p, now, control) {
                // It came out of a list of the same size.
                let _ = self.controls.push(control);
            }
        }
        self.controls.len() < before
    }

    fn send_control<P: Platform>(&mut self, p: &mut P, now: Nanos, control: Waiting) -> bool {
        let id = control.peer;
        let up = self
            .peers
            .get(id.index())
            .is_some_and(|peer| peer.link == crate::peer::Link::Up);
        if !up || !self.reserve_credit(id, DRIVER) {
            return false;
        }
        let mut words = [0; CONTROL_WORDS];
        p.shared()
            .load_slice(self.env.shared.control_slot(control.slot), &mut words);
        let mut header = Header::of(Body::Control, self.env.config.node, id);
        header.len = CONTROL_BYTES as u16;
        let mut header = OwnHeader::new(&header);
        self.number(&mut header);
        self.env.counters.control_sent += 1;
        p.transmit(&header, Payload::Inline(&words));
        self.arm_probe(id, now);
        self.control_sent(p, control.token, Status::Ok);
        true
    }

    /// The link to a peer has failed: its control messages have too.
    pub(crate) fn fail_controls<P: Platform>(&mut self, p: &mut P, id: NodeId, status: Status) {
        let waiting = core::mem::take(&mut self.controls);
        for control in waiting {
            if control.peer == id {
                self.control_sent(p, control.token, status);
            } else {
                let _ = self.controls.push(control);
            }
        }
    }

    fn control_sent<P: Platform>(&mut self, p: &mut P, token: Token, status: Status) {
        self.env.tell_host(p, NicEvent::ControlSent { token, status });
    }

    /// A control message has arrived: it goes to the driver.
    pub(crate) fn control_arrives<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.slot(at) else {
            return Step::Ended(Status::Malformed);
        };
        let header = slot.header.decode();
        let from_driver = header.source_port == DRIVER && header.destination_port == DRIVER;
        if !from_driver || usize::from(header.len) != CONTROL_BYTES {
            self.env.counters.refused_malformed += 1;
            return Step::Ended(Status::Malformed);
        }
        let Some(ticket) = self.dmas.ticket() else {
            self.set_slot(at, SlotState::Queued);
            self.dmas.park(&mut self.env, Holder::Window(at));
            return Step::Pending;
        };
        self.env.counters.control_received += 1;
        self.bounce_message(p, ticket, at);
        Step::Pending
    }
}
