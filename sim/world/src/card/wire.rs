//! Frames between cards: sent, overheard, arriving.

use crate::faults::FaultKind;
use crate::link::Fate;
use crate::script::Blow;
use crate::seen::Seen;
use crate::sim::{Event, Sim};
use netvm_abi::frame::{ETHERNET_BYTES, Endpoint, MAX_FRAME_BYTES, decode, encode};
use netvm_abi::wire::{DEFAULT_UDP_PORT, HEADER_BYTES, Header, Kind};
use netvm_abi::{Nanos, NodeId, ReceiveId};
use std::rc::Rc;

/// Puts a frame on the wire at this time.
pub(super) fn transmit(sim: &Sim, now: Nanos, from: NodeId, header: &Header, frame: Rc<[u8]>) {
    let to = header.destination;
    sim.note(
        from,
        send_label(header.kind),
        &[
            ("to", u64::from(to.0)),
            ("seq", u64::from(header.seq.0)),
            ("port", u64::from(header.source_port.0)),
            ("dport", u64::from(header.destination_port.0)),
            ("len", u64::from(header.len)),
            ("address", header.address.0),
            ("status", u64::from(header.raw.status)),
        ],
    );
    if now > sim.now() {
        sim.see(Seen::Leaves { at: now });
    }
    sim.see(Seen::Sent { frame: frame.clone() });
    if to.index() >= sim.nodes.len() {
        return;
    }
    count_states(sim, from, header);
    let states = sim.node(from).states();
    if header.kind.is_windowed() && header.seq.0 == 0 {
        sim.faults.borrow_mut().count(FaultKind::SeqWraps, states);
    }
    let drawn = sim.fabric.borrow_mut().send(
        now,
        (from, to),
        frame.len(),
        states,
        &mut sim.faults.borrow_mut(),
        &mut sim.dice.borrow_mut(),
    );
    let fate = match (sim.play.strikes(header), drawn) {
        // It is lost each time that it is sent, as behind a cut.
        (Some(Blow::Lost), _) => Fate::Cut,
        (Some(Blow::LostOnce), _) => Fate::Lost,
        (Some(Blow::Late(span)), Fate::Arrives(at)) => Fate::Late(at.after(span)),
        _ => drawn,
    };
    match fate {
        Fate::Arrives(at) => {
            overhear(sim, header, &frame);
            let next = if from != to && sim.fabric.borrow().has_switch() {
                Event::Switch { to, frame }
            } else {
                Event::Arrive { to, frame }
            };
            sim.at(at, next);
        }
        Fate::Twice(first, second) => {
            let again = frame.clone();
            sim.at(first, Event::Arrive { to, frame });
            sim.note(from, "repeated", &[("to", u64::from(to.0))]);
            sim.at(second, Event::Arrive { to, frame: again });
        }
        Fate::Late(at) => {
            sim.note(from, "late", &[("to", u64::from(to.0)), ("at", at.0)]);
            sim.at(at, Event::Arrive { to, frame });
        }
        Fate::Cut => {
            sim.note(from, "cut", &[("to", u64::from(to.0))]);
            sim.see(Seen::Cut { frame });
        }
        Fate::Lost => {
            sim.note(from, "lost", &[("to", u64::from(to.0))]);
            sim.see(Seen::FrameLost { frame });
        }
        Fate::Spoilt => {
            sim.note(from, "bit flip", &[("to", u64::from(to.0))]);
            match flipped(sim, header, &frame) {
                // The flip hit what does not matter: UDP's own checksum.
                Ok(()) => sim.at(now, Event::Arrive { to, frame }),
                Err(true) => sim.see(Seen::FrameLost { frame }),
                Err(false) => sim.complain("a frame's checksum let a flipped bit through".into()),
            }
        }
    }
}

/// A frame is at the switch.
pub(crate) fn at_switch(sim: &Sim, to: NodeId, frame: Rc<[u8]>) {
    let leaves = sim.fabric.borrow_mut().leaves_switch(sim.now(), to, frame.len());
    match leaves {
        Some(at) => sim.at(at, Event::Arrive { to, frame }),
        None => sim.see(Seen::FrameLost { frame }),
    }
}

/// Flips one bit of a frame as it is on Ethernet, behind the Ethernet header (which has a check sequence of its own).
/// Whether the message is still the same; else whether the receiver refuses it.
fn flipped(sim: &Sim, header: &Header, message: &[u8]) -> Result<(), bool> {
    let end = |node: NodeId| Endpoint {
        mac: [2, 0, 0, 0, (node.0 >> 8) as u8, node.0 as u8],
        ip: [10, 0, (node.0 >> 8) as u8, node.0 as u8],
        port: DEFAULT_UDP_PORT,
    };
    let mut bytes = vec![0; MAX_FRAME_BYTES];
    let (from, to) = (end(header.source), end(header.destination));
    let payload = message.get(HEADER_BYTES..).unwrap_or_default();
    let len = encode(&from, &to, header, payload, &mut bytes).map_err(|_| false)?;
    bytes.truncate(len);
    let bit = sim.below((len - ETHERNET_BYTES) as u64 * 8);
    let at = ETHERNET_BYTES + (bit / 8) as usize;
    bytes[at] ^= 1 << (bit % 8);
    match decode(&bytes) {
        Err(_) => Err(true),
        // From or to another port: that is no node of the table.
        Ok(got) if got.from != from || got.to != to => Err(true),
        Ok(got) if got.header == *header && got.payload == payload => Ok(()),
        Ok(_) => Err(false),
    }
}

/// Now and then a genuine frame is kept, to be played again. A greeting always is: it may come when any number of lives
/// of its link are over.
fn overhear(sim: &Sim, header: &Header, frame: &Rc<[u8]>) {
    let (from, to) = (header.source, header.destination);
    if header.kind == Kind::Hello {
        sim.greetings
            .borrow_mut()
            .entry((from, to))
            .or_default()
            .push(frame.clone());
    }
    if sim.fires(FaultKind::HostileReplay, from) {
        let delay = sim.span(Nanos::from_micros(1), Nanos::from_micros(500));
        let greetings = sim.greetings.borrow();
        let frame = match greetings.get(&(from, to)) {
            Some(kept) if sim.below(4) == 0 => kept[sim.below(kept.len() as u64) as usize].clone(),
            _ => frame.clone(),
        };
        sim.after(delay, Event::Arrive { to, frame });
    } else if sim.below(200) == 0 {
        let mut kept = sim.overheard.borrow_mut();
        if kept.len() < 64 {
            kept.push(frame.clone());
        } else {
            let at = sim.below(64) as usize;
            kept[at] = frame.clone();
        }
    }
}

fn count_states(sim: &Sim, from: NodeId, header: &Header) {
    let activity = &sim.node(from).activity;
    let to = &sim.node(header.destination).activity;
    match header.kind {
        Kind::Hello => activity.greeting.set(1),
        Kind::HelloAck => {
            activity.greeting.set(0);
            to.greeting.set(0);
        }
        Kind::ReadRequest => activity.reads.set(activity.reads.get() + 1),
        Kind::ReadReply => to.reads.set((to.reads.get() - 1).max(0)),
        Kind::Error => to.poisoned.set(1),
        Kind::Ack => to.in_flight.set(0),
        Kind::Write if to.poisoned.get() > 0 && header.epoch.0 > 0 => activity.poisoned.set(0),
        _ => {}
    }
    if header.kind.is_windowed() {
        activity.in_flight.set(activity.in_flight.get() + 1);
    }
}

const fn send_label(kind: Kind) -> &'static str {
    match kind {
        Kind::Write => "send write",
        Kind::ReadRequest => "send read request",
        Kind::AtomicRequest => "send atomic request",
        Kind::Flush => "send flush",
        Kind::Control => "send control",
        Kind::ReadReply => "send read reply",
        Kind::AtomicReply => "send atomic reply",
        Kind::FlushReply => "send flush reply",
        Kind::Ack => "send ack",
        Kind::Error => "send error",
        Kind::Hello => "send hello",
        Kind::HelloAck => "send hello ack",
        Kind::Probe => "send probe",
        Kind::Bye => "send bye",
    }
}

/// A frame reaches a card.
pub(crate) fn arrive(sim: &Sim, to: NodeId, frame: Rc<[u8]>) {
    let node = sim.node(to);
    if node.card_gone.get() || node.card.try_borrow().is_ok_and(|card| card.is_none()) {
        if let Ok(header) = Header::decode(&frame) {
            sim.see(Seen::Lost {
                from: header.source,
                to,
            });
        }
        return;
    }
    let mut bus = node.bus.borrow_mut();
    let receive = ReceiveId(match bus.free_receive.pop() {
        Some(free) => free,
        None => {
            bus.next_receive += 1;
            bus.next_receive - 1
        }
    });
    bus.receive.insert(receive.0, frame.clone());
    if let Some(model) = &sim.model {
        bus.line.push_frame(model, &frame);
    }
    bus.frames.push_back((receive, frame));
    drop(bus);
    node.kick(sim, sim.lag(50));
}
