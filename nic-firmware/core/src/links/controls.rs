//! Control messages between host drivers: taken from the driver's slots, sent in order to each
//! peer, and at the other side always handed to the driver through the bounce page of their window
//! slot.

use super::{Links, Outgoing, Peer};
use crate::env::Env;
use crate::platform::{Payload, Platform};
use crate::windows::Wanted;
use netvm_abi::control::{CONTROL_BYTES, CONTROL_SLOTS, CONTROL_WORDS};
use netvm_abi::event::NicEvent;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, OwnHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, NodeId, PortId, Token};

/// A control message that waits for its link or a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    peer: NodeId,
    slot: u16,
    token: Token,
}

impl<S: Storage> Links<S> {
    /// Whether a control message waits.
    #[inline]
    pub(crate) fn any_control_waits(&self) -> bool {
        !self.controls.is_empty()
    }

    /// The host wants a control message sent.
    pub(crate) fn control_posted<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        (peer, slot): (NodeId, u16),
        token: Token,
    ) {
        if peer.0 >= env.config.geometry.nodes {
            control_sent(p, env, token, Status::NoSuchNode);
            return;
        }
        let waiting = Waiting { peer, slot, token };
        if slot >= CONTROL_SLOTS || self.controls.push(waiting).is_err() {
            env.counters.host_events_refused += 1;
            control_sent(p, env, token, Status::TableFull);
            return;
        }
        self.connect(p, env, now, peer);
        self.send_controls(p, env, now);
    }

    /// Sends the control messages that have a link and a credit; what goes to one peer keeps its
    /// order, and waits for no other peer. Returns whether one was sent.
    pub(crate) fn send_controls<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, now: Nanos) -> bool {
        let waiting = core::mem::take(&mut self.controls);
        let before = waiting.len();
        for control in waiting {
            let blocked = self.controls.iter().any(|earlier| earlier.peer == control.peer);
            if blocked || !self.send_control(p, env, now, control) {
                // It came out of a list of the same size.
                let _ = self.controls.push(control);
            }
        }
        self.controls.len() < before
    }

    fn send_control<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        control: Waiting,
    ) -> bool {
        let id = control.peer;
        if !self.get(id).is_some_and(Peer::is_up) || !self.has_window_to(env, now, Wanted::Control(id)) {
            return false;
        }
        let Some(mut way) = self.way(&env.config, id, PortId::DRIVER) else {
            return false;
        };
        if !way.reserve() {
            return false;
        }
        let mut words = [0; CONTROL_WORDS];
        p.shared()
            .load_slice(env.shared.control_slot(control.slot), &mut words);
        let mut header = Header::of(Body::Control, env.config.node, id);
        header.len = CONTROL_BYTES as u16;
        let mut header = OwnHeader::new(&header);
        let seq = way.assign();
        way.number(&env.config, now, &mut header, Outgoing::default(), seq);
        env.counters.messages_sent += 1;
        env.counters.bytes_sent += u64::from(header.payload_len());
        env.counters.control_sent += 1;
        self.keep_request(&env.config, now, id, &header, Payload::Inline(&words));
        p.transmit(&header, Payload::Inline(&words));
        self.arm_probe(env, id, now);
        control_sent(p, env, control.token, Status::Ok);
        true
    }

    /// The link to a peer has failed: its control messages have too.
    pub(crate) fn fail_controls<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        id: NodeId,
        status: Status,
    ) {
        let waiting = core::mem::take(&mut self.controls);
        for control in waiting {
            if control.peer == id {
                control_sent(p, env, control.token, status);
            } else {
                let _ = self.controls.push(control);
            }
        }
    }
}

fn control_sent<P: Platform, S: Storage>(p: &mut P, env: &mut Env<S>, token: Token, status: Status) {
    env.tell_host(p, NicEvent::ControlSent { token, status });
}
