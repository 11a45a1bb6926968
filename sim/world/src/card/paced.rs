//! A card whose core takes time: one input after the other, each for as long as its instructions take.
//!
//! Inputs stand in one line, in the order in which they came. The time of an input passes *before* the core is given
//! it, so that whatever it does with it happens at the right time: stores, answers, interrupts. What the core does of its
//! own accord (commands that it finds in queues, operations that it takes up again) is known when it is done: its DMAs
//! and messages leave later by what it costs, and the card is busy for that time.

use super::{Card, CardDevice};
use crate::node::Node;
use crate::sim::Sim;
use crate::timing::CostModel;
use netvm_abi::atomic::Atomic;
use netvm_abi::descriptor::Opcode;
use netvm_abi::wire::{Header, Kind, OwnHeader};
use netvm_abi::{Geometry, Incarnation, Nanos, NodeId, Seq};
use netvm_nic::platform::Dma;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Inputs of each kind that a pass of the shipped loop takes before it looks at everything else.
const PASS: u32 = 16;

/// No acknowledgement speaks of more messages: that is the widest window.
const MOST: u32 = Geometry::MAX_WINDOW as u32;

/// Where an input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Frame,
    Dma,
    Sent,
}

/// An input that waits, and the instructions that it will take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    source: Source,
    instructions: u32,
}

/// How far another card has said that it has got with this one's messages, in a life of their link.
#[derive(Debug)]
struct Said {
    life: Incarnation,
    /// All before this number have landed.
    landed: Seq,
    /// The lowest number that it has not received.
    next: Seq,
    /// Numbers past that which it has.
    beyond: BTreeSet<u32>,
}

impl Said {
    /// Takes in an acknowledgement: of how many messages it is the first to speak.
    fn hears(&mut self, header: &Header) -> u32 {
        let received = OwnHeader::new(header).receipt().requests;
        let ahead = |from: Seq, to: Seq| Some(to.since(from)).filter(|&ahead| ahead <= MOST).unwrap_or(0);
        let landed = ahead(self.landed, header.seq);
        self.landed = self.landed.plus(landed);
        let mut new = 0;
        for _ in 0..ahead(self.next, received.next) {
            new += u32::from(!self.beyond.remove(&self.next.0));
            self.next = self.next.plus(1);
        }
        for bit in (0..u64::BITS).filter(|bit| received.beyond >> bit & 1 != 0) {
            let number = received.from.plus(bit);
            let is_past = ahead(self.next, number) > 0;
            new += u32::from(is_past && self.beyond.insert(number.0));
        }
        landed.max(new)
    }
}

/// The line of a card's inputs.
#[derive(Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    said: BTreeMap<NodeId, Said>,
}

impl Line {
    /// An input has come.
    pub(super) fn push(&mut self, source: Source, instructions: u32) {
        self.waiting.push_back(Waiting { source, instructions });
    }

    /// A frame has come.
    pub(super) fn push_frame(&mut self, model: &CostModel, frame: &[u8]) {
        let steps = &model.steps;
        let instructions = match Header::decode(frame) {
            Ok(header) if header.kind == Kind::Ack => steps.acknowledgement(self.hears(&header)),
            Ok(header) => steps.frame(&header),
            Err(_) => steps.ack_one,
        };
        self.push(Source::Frame, instructions);
    }

    /// An acknowledgement: of how many messages it is the first to speak.
    fn hears(&mut self, header: &Header) -> u32 {
        let life = header.source_incarnation;
        match self.said.get_mut(&header.source) {
            Some(said) if said.life == life => said.hears(header),
            _ => {
                let said = Said {
                    life,
                    landed: header.seq,
                    next: OwnHeader::new(header).receipt().requests.next,
                    beyond: BTreeSet::new(),
                };
                self.said.insert(header.source, said);
                1
            }
        }
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.said.clear();
    }
}

/// What the core is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing that came from outside.
    Own,
    /// A frame.
    Frame {
        kind: Kind,
        opcode: Option<Opcode>,
        notifies: bool,
    },
    /// Another input.
    Other,
}

/// The core's time.
pub(super) struct Pace {
    model: CostModel,
    /// The input that is paid for, and is to be handed out next.
    granted: Option<Source>,
    doing: Doing,
    /// Instructions of its own accord in this pass.
    owed: u32,
}

impl Pace {
    pub(super) const fn new(model: CostModel) -> Self {
        Self {
            model,
            granted: None,
            doing: Doing::Own,
            owed: 0,
        }
    }

    /// Whether the input to be handed out is one of these.
    pub(super) fn grants(&mut self, source: Source) -> bool {
        self.doing = Doing::Own;
        let grants = self.granted == Some(source);
        if grants {
            self.granted = None;
            self.doing = Doing::Other;
        }
        grants
    }

    /// The input is this frame.
    pub(super) fn frame(&mut self, frame: &[u8]) {
        if let Ok(header) = Header::decode(frame) {
            self.doing = Doing::Frame {
                kind: header.kind,
                opcode: Atomic::requested(&header)
                    .filter(|_| header.kind == Kind::AtomicRequest)
                    .map(|atomic| atomic.opcode),
                notifies: header.notification.is_some(),
            };
        }
    }

    fn owe(&mut self, instructions: u32) {
        if self.doing == Doing::Own {
            self.owed += instructions;
        }
    }

    /// When what is sent now leaves the core.
    pub(super) fn sends(&mut self, now: Nanos, kind: Kind) -> Nanos {
        self.owe(self.model.steps.command(kind));
        now.after(self.model.card_time(self.owed))
    }

    /// When a DMA that is started now starts, and the instructions that its end will take.
    pub(super) fn starts(&mut self, now: Nanos, dma: Dma) -> (Nanos, u32) {
        let steps = self.model.steps;
        self.owe(match dma {
            Dma::PageToStaging { .. } => steps.command_4096,
            Dma::PageToOperand { .. } => steps.resumed(),
            _ => 0,
        });
        let end = match (dma, self.doing) {
            (
                Dma::PageToStaging { .. },
                Doing::Frame {
                    kind: Kind::ReadRequest,
                    ..
                },
            ) => steps.fetched_read,
            (Dma::PageToStaging { .. } | Dma::BounceToStaging { .. }, _) => steps.fetched_4096,
            (
                Dma::ReceiveToPage { .. },
                Doing::Frame {
                    kind: Kind::ReadReply,
                    ..
                },
            ) => steps.placed_read,
            (Dma::ReceiveToPage { .. }, Doing::Frame { notifies: true, .. }) => {
                steps.landed + steps.notification
            }
            (Dma::ReceiveToPage { .. }, _) => steps.landed,
            (Dma::ReceiveToBounce { .. }, _) => steps.landed_miss,
            (Dma::PageToOperand { page }, doing) => {
                let opcode = match doing {
                    Doing::Frame { opcode, .. } => opcode,
                    _ => None,
                };
                steps.fetched(opcode, page.len.0 > 8)
            }
            (Dma::OperandToPage { .. }, _) => steps.stored_atomic,
        };
        (now.after(self.model.card_time(self.owed)), end)
    }
}

/// A pass of a modelled card: it begins with an input, or hands it to the core when its time has passed. Gives what
/// [`super::pass`] does: when it wants to be called again, if nothing happens.
pub(super) fn pass(sim: &Sim, node: &Node, card: &mut Card) -> Option<Nanos> {
    let Card {
        nic,
        event_loop,
        device,
        ..
    } = card;
    let now = sim.now();
    let CardDevice { pace: Some(pace), .. } = device else {
        return None;
    };
    if pace.granted.is_none() {
        let next = node.bus.borrow_mut().line.waiting.pop_front();
        if let Some(next) = next {
            pace.granted = Some(next.source);
            node.works(next.instructions);
            node.paused_until
                .set(now.after(pace.model.card_time(next.instructions)));
            node.kick(sim, Nanos(0));
            return None;
        }
    }
    (pace.owed, pace.doing) = (0, Doing::Own);
    let progress = event_loop.poll_once(nic, device);
    device.begins(None);
    let waits = !node.bus.borrow().line.waiting.is_empty();
    let asleep = !waits && !progress.more && event_loop.try_sleep(nic, device);
    device.begins(None);
    let pace = device.pace.as_mut()?;
    pace.granted = None;
    node.works(pace.owed);
    // The loop looks at everything once for each round of inputs.
    let idle = pace.model.steps.idle;
    let look = if waits { idle / PASS } else { idle };
    node.paused_until
        .set(now.after(pace.model.card_time(pace.owed + look)));
    if asleep {
        return progress.deadline;
    }
    node.kick(sim, Nanos(0));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::wire::{Receipt, Received};

    #[test]
    fn an_acknowledgement_is_the_first_to_speak_of_what_none_before_has() {
        let mut line = Line::default();
        let mut hears = |(source, life): (u16, u32), landed: u32, next: u32, from: u32, beyond: u64| {
            let mut header = Header::new(Kind::Ack, NodeId(source), NodeId(0));
            (header.seq, header.source_incarnation) = (Seq(landed), Incarnation(life));
            let requests = Received {
                next: Seq(next),
                from: Seq(from),
                beyond,
            };
            header.set_receipt(&Receipt {
                requests,
                ..Receipt::default()
            });
            line.hears(&header)
        };
        let one = (1, 5);
        assert_eq!(
            hears(one, 100, 100, 101, 0),
            1,
            "nothing is known before the first"
        );
        assert_eq!(hears(one, 132, 132, 133, 0), 32);
        assert_eq!(hears(one, 132, 132, 133, 0b111), 3, "past a gap");
        assert_eq!(hears((2, 5), 500, 500, 501, 0), 1, "another card");
        assert_eq!(hears(one, 132, 132, 200, 0b11), 2, "of others, further on");
        assert_eq!(hears(one, 132, 132, 133, 0b1111), 1, "all but one were spoken of");
        assert_eq!(
            hears(one, 132, 137, 138, 0),
            1,
            "the gap is filled, and nothing has landed"
        );
        assert_eq!(hears(one, 135, 135, 136, 0), 3, "three have");
        assert_eq!(hears(one, 133, 133, 134, 0), 0, "a later one has overtaken it");
        assert_eq!(hears(one, 137, 137, 138, 0), 2, "which has not set it back");
        assert_eq!(hears((1, 6), 7, 7, 8, 0), 1, "another life");
    }
}
