//! What is between the machines: words, seats and messages under way.

use netvm::sync::protocol::{Answer, Centre, GRANTS, Place, SeatId, View, Want};
use netvm_abi::atomic::{Atomic, AtomicResult, EMPTY, NOBODY, Operand, QueueBlock};
use netvm_abi::descriptor::Opcode;
use netvm_abi::words::join;
use netvm_abi::{NodeId, PortId};

/// What carries out atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nic {
    /// What is shipped.
    Shipped,
    /// Thesis tables 19 and 22 to the letter: a queue is empty if C = 0.
    Thesis,
    /// No pending wake-ups: a signal that comes while the new head is on its way finds no waiter.
    NoPending,
}

impl Nic {
    fn apply(self, atomic: &Atomic, operand: &mut Operand) -> AtomicResult {
        let dequeues = matches!(atomic.opcode, Opcode::Dequeue | Opcode::SemV);
        let mut block = QueueBlock::decode(operand);
        let result = match self {
            Self::Thesis if dequeues && block.count > 0 => {
                let head = block.head;
                if head == EMPTY {
                    block.pending += 1;
                } else {
                    block.count -= 1;
                    block.head = EMPTY;
                }
                AtomicResult {
                    value: head,
                    second: join(block.count, block.epoch),
                }
            }
            Self::NoPending if dequeues && block.count > 0 && block.head == EMPTY => AtomicResult {
                value: EMPTY,
                second: join(NOBODY, block.epoch),
            },
            _ => return atomic.apply(operand).0,
        };
        *operand = block.encode();
        result
    }
}

/// A participant's words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// The successor.
    pub next: SeatId,
    /// Grants.
    pub grants: [u64; GRANTS as usize],
    /// Signals not acknowledged yet.
    pub signals: u8,
    /// Where it stands, as others see it; nothing once its process is dead.
    pub view: Option<View>,
}

impl Seat {
    fn stand(&mut self, me: SeatId, place: Place) {
        if let Some(view) = &mut self.view {
            view.place = place;
            view.turn = me.turn();
            if let Place::Over(given) = place
                && !given.is_nobody()
            {
                view.given = given;
            }
        }
    }
}

/// A one-way message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// What it carries.
    pub payload: Payload,
}

/// What a message carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// A successor's name.
    Next(SeatId),
    /// A grant whose word has not landed.
    Grant(u8, u64),
    /// A grant whose word has landed; the signal has not come yet.
    Signal,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivery(pub usize);

/// Everything but the machines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The centre's main words.
    pub main: Operand,
    /// A lock's recovery word.
    pub recovery: Operand,
    /// How often a lock has been recovered.
    pub recoveries: Operand,
    /// The members of a lock, by bit.
    pub members: u8,
    /// By participant: the table of members as it has last read it.
    pub tables: Vec<u8>,
    /// Control: how many participants, the last ones, do not show which turn they are in.
    pub turnless: usize,
    /// By participant; each is alone on its node.
    pub seats: Vec<Seat>,
    /// Sorted by pair; those of a pair in the order in which they were posted.
    pub messages: Vec<Message>,
}

impl World {
    /// So many participants, and nothing has happened.
    #[must_use]
    pub fn new(participants: usize) -> Self {
        let seat = Seat {
            next: SeatId::NOBODY,
            grants: [0; GRANTS as usize],
            signals: 0,
            view: Some(View {
                place: Place::Over(SeatId::NOBODY),
                turn: 0,
                given: SeatId::NOBODY,
            }),
        };
        Self {
            main: Operand::default(),
            recovery: Operand::default(),
            recoveries: Operand::default(),
            members: ((1u16 << participants) - 1) as u8,
            tables: vec![0; participants],
            turnless: 0,
            seats: vec![seat; participants],
            messages: Vec::new(),
        }
    }

    /// A participant's name.
    #[must_use]
    pub const fn id(who: usize) -> SeatId {
        SeatId::new(NodeId(who as u16), PortId(1), 0, 1)
    }

    /// The index of this participant.
    #[must_use]
    pub fn who(id: SeatId) -> usize {
        usize::from(id.node().0)
    }

    /// Whether it can be done now.
    #[must_use]
    pub fn ready<R>(&self, who: usize, want: &Want<R>) -> bool {
        match want {
            Want::AwaitNext => {
                let seat = &self.seats[who];
                let me = Self::id(who).in_turn(seat.view.map_or(0, |view| view.turn));
                !me.follower(seat.next).is_nobody()
            }
            Want::AwaitGrant { .. } => self.seats[who].signals > 0,
            Want::Pause | Want::Ended(_) => false,
            _ => true,
        }
    }

    /// Does what `me` wants, which is [ready](Self::ready).
    pub fn perform<R>(&mut self, me: SeatId, want: &Want<R>, nic: Nic) -> Answer {
        let who = Self::who(me);
        let seat = &mut self.seats[who];
        match *want {
            Want::Begin(place) => {
                seat.next = SeatId::NOBODY;
                seat.stand(me, place);
                Answer::Done
            }
            Want::Stand(place) => {
                seat.stand(me, place);
                Answer::Done
            }
            Want::Atomic(Centre::Main, ref atomic) => Answer::Atomic(nic.apply(atomic, &mut self.main)),
            Want::Atomic(Centre::Recovery, ref atomic) => {
                Answer::Atomic(nic.apply(atomic, &mut self.recovery))
            }
            Want::Atomic(Centre::Recoveries, ref atomic) => {
                Answer::Atomic(nic.apply(atomic, &mut self.recoveries))
            }
            Want::Link(to) => self.post(who, to, Payload::Next(me.linked_to(to))),
            Want::Grant { to, slot, word } => self.post(who, to, Payload::Grant(slot, word)),
            Want::LookNext | Want::AwaitNext => Answer::Next(me.follower(seat.next)),
            Want::AwaitGrant { slot } => {
                seat.signals -= 1;
                Answer::Granted(seat.grants[usize::from(slot)])
            }
            Want::View(of) => {
                let of = Self::who(of);
                let view = self.seats[of].view.map(|view| match of + self.turnless {
                    seen if seen < self.seats.len() => view,
                    _ => View { turn: 0, ..view },
                });
                Answer::View(view)
            }
            Want::Member(at) => {
                // Read whole when the first place is asked for.
                if at == 0 {
                    self.tables[who] = self.members;
                }
                let table = self.tables[who];
                let mut places = (0..self.seats.len()).filter(|place| table >> place & 1 == 1);
                let member = places.nth(at.into());
                if member.is_none() {
                    self.tables[who] = 0;
                }
                Answer::Next(member.map_or(SeatId::NOBODY, Self::id))
            }
            Want::Pause | Want::Ended(_) => Answer::Done,
        }
    }

    fn post(&mut self, from: usize, to: SeatId, payload: Payload) -> Answer {
        let to = Self::who(to);
        self.messages.push(Message { from, to, payload });
        // Stable: what a pair has posted stays in order.
        self.messages.sort_by_key(|message| (message.from, message.to));
        Answer::Done
    }

    /// What may happen to messages now. Data lands in any order; a signal comes after everything that its
    /// sender has posted to that node before it (promise P4).
    pub fn deliveries(&self) -> impl Iterator<Item = Delivery> + '_ {
        self.messages.iter().enumerate().filter_map(|(at, message)| {
            let first = at == 0 || {
                let before = &self.messages[at - 1];
                (before.from, before.to) != (message.from, message.to)
            };
            (message.payload != Payload::Signal || first).then_some(Delivery(at))
        })
    }

    /// A process dies: its memory is not read any more.
    pub fn die(&mut self, who: usize) {
        self.seats[who].view = None;
    }

    /// Whether a process lives.
    #[must_use]
    pub fn lives(&self, who: usize) -> bool {
        self.seats[who].view.is_some()
    }

    /// Messages that may be lost: those of the dead, and those to them.
    pub fn losses(&self) -> impl Iterator<Item = Delivery> + '_ {
        self.messages.iter().enumerate().filter_map(|(at, message)| {
            (!self.lives(message.from) || !self.lives(message.to)).then_some(Delivery(at))
        })
    }

    /// Names of successors on their way from one living process to another.
    pub fn names_between_the_living(&self) -> impl Iterator<Item = Delivery> + '_ {
        self.messages.iter().enumerate().filter_map(|(at, message)| {
            let name = matches!(message.payload, Payload::Next(_));
            (name && self.lives(message.from) && self.lives(message.to)).then_some(Delivery(at))
        })
    }

    /// Loses it.
    pub fn lose(&mut self, Delivery(at): Delivery) {
        self.messages.remove(at);
    }

    /// Lets it happen.
    pub fn deliver(&mut self, Delivery(at): Delivery) {
        let message = &mut self.messages[at];
        let seat = &mut self.seats[message.to];
        match message.payload {
            Payload::Next(id) => {
                seat.next = id;
                self.messages.remove(at);
            }
            Payload::Grant(slot, word) => {
                seat.grants[usize::from(slot)] = word;
                message.payload = Payload::Signal;
            }
            Payload::Signal => {
                seat.signals += 1;
                self.messages.remove(at);
            }
        }
    }
}
