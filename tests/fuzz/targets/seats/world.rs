//! The homes and the other participants, made of words: right unless the fuzzer says otherwise.

use netvm::backend::Refusal;
use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::control::{Grant, Modes};
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::port_area::{PORT_STATE, SHADOW_SIGNALS};
use netvm_abi::{Nanos, NodeId, NotificationId, PortId, Status, VirtAddr};
use netvm_kit::port::Card;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type Memory = Arc<Vec<AtomicU64>>;

/// The objects. Each has a home of its own, at one of these ports of node 1.
pub(crate) const LOCK: usize = 0;
pub(crate) const QUEUE: usize = 1;
pub(crate) const SEMAPHORE: usize = 2;
pub(crate) const HOME: NodeId = NodeId(1);
pub(crate) const PORTS: [PortId; 3] = [PortId(2), PortId(4), PortId(5)];

/// Words of a seat, and of a block of seats, which begins with the block's head.
const SEAT: usize = 8;
const BLOCK: usize = 64;
const NEXT: usize = 0;
const PLACE: usize = 1;
const GRANT: usize = 4;
const GRANTS: u64 = 4;
/// The notification number of seat 0.
const NUMBERS: u32 = 896;

/// A name: node, port, seat, turn, mark, and the lower half of the port's generation.
pub(crate) const MARK: u64 = 1 << 47;

pub(crate) const fn seat_of(name: u64) -> usize {
    (name >> 32) as usize % 64
}

pub(crate) const fn turn_of(name: u64) -> u64 {
    name >> 38 & 511
}

/// The words of a participant's seat: its successor's name, and the grant of this epoch or turn.
pub(crate) const fn next_at(seat: usize) -> usize {
    seat * SEAT + NEXT
}

pub(crate) const fn grant_at(seat: usize, number: u64) -> usize {
    seat * SEAT + GRANT + (number % GRANTS) as usize
}

pub(crate) const fn low(word: u64) -> u64 {
    word & 0xFFFF_FFFF
}

/// A participant of another node, by the fuzzer's word.
const fn peer(word: u64) -> u64 {
    (2 + (word & 1)) | (3 + (word >> 1 & 1)) << 16 | (word >> 2 & 7) << 32 | (word >> 5 & 511) << 38
}

/// How often the library may look in a call: then its port ends, and the call does after as many looks.
const MOST_LOOKS: u32 = 2500;
/// What keeps a round trip from being answered at once: no more of them, and for no longer.
const MOST_HELD: usize = 32;
pub(crate) const LONGEST_TRIP: Nanos = Nanos::from_millis(1600);

/// What a round trip is answered with, where that is not what is right.
#[derive(Clone, Copy)]
struct Answer {
    status: Status,
    value: Option<u64>,
    second: Option<u64>,
    after: Nanos,
}

const RIGHT: Answer = Answer {
    status: Status::Ok,
    value: None,
    second: None,
    after: Nanos(0),
};

/// What the fuzzer wants done, now or while a call runs.
#[derive(Clone, Copy)]
pub(crate) struct Act {
    pub(crate) what: u8,
    pub(crate) place: u8,
    pub(crate) word: u64,
}

/// A round trip that has ended.
pub(crate) struct Ended {
    pub(crate) command: Command,
    pub(crate) status: Status,
    pub(crate) result: AtomicResult,
    /// The first words that a read has brought.
    pub(crate) brought: [u64; 4],
}

/// A message to another participant's seat.
pub(crate) struct Sent {
    pub(crate) command: Command,
    pub(crate) word: u64,
}

#[derive(Default)]
pub(crate) struct World {
    /// What an import gives.
    all: Option<Grant>,
    homes: [Vec<u64>; 3],
    peers: Vec<u64>,
    /// The page of the library's own seats.
    seats: Memory,
    /// What others have written there, and how much of that before the last turn of each object began.
    pub(crate) written: Vec<(usize, u64)>,
    turn_from: [usize; 3],
    /// By object: the participant's name in its last turn, the epoch or count in which it stands, and the one before it.
    pub(crate) me: [u64; 3],
    epoch: [u64; 3],
    before: [u64; 3],
    /// What comes next: answers of round trips, failures of writes, imports; and what others do, after so many looks.
    answers: VecDeque<Answer>,
    failing: VecDeque<Status>,
    grants: VecDeque<Result<Grant, Refusal>>,
    beside: VecDeque<(u8, Act)>,
    held: VecDeque<(Nanos, Command, Answer)>,
    /// Something has ended with an error, or an import gave less than all.
    pub(crate) failed: bool,
    /// Of the present call: how often the library has looked, and how often after its port has ended; whether this call
    /// was too long for the port; the time that the fuzzer has let pass; and what has ended, and was sent.
    looks: u32,
    after: u32,
    pub(crate) too_long: bool,
    pub(crate) passed: u64,
    from: usize,
    pub(crate) ended: Vec<Ended>,
    pub(crate) sent: Vec<Sent>,
    /// Tokens that the library has given in it.
    pub(crate) given: u32,
}

impl World {
    /// Homes that are as they begin, and participants that have never done anything.
    pub(crate) fn new(all: Grant) -> Self {
        let home = |kind: u8| {
            let mut home = vec![0; 512];
            home[5] = u64::from_le_bytes([b'N', b'e', b't', b'V', b'M', b's', 1, kind]);
            if kind > 1 {
                // A grant that was never written is of another epoch.
                home[3] = 9 << 32;
            }
            home
        };
        Self {
            homes: [home(1), home(2), home(3)],
            peers: vec![0; BLOCK],
            all: Some(all),
            ..Self::default()
        }
    }

    pub(crate) fn begin(&mut self, card: &Card) {
        self.catch_up(card);
        (self.looks, self.after, self.too_long, self.passed) = (0, 0, false, 0);
        self.from = self.written.len();
        self.ended.clear();
        self.sent.clear();
        self.given = 0;
    }

    pub(crate) fn sits_at(&mut self, seats: Memory) {
        self.seats = seats;
    }

    /// A word of the own page, now.
    pub(crate) fn seat_word(&self, at: usize) -> u64 {
        self.seats.get(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// What has ended last of this kind, at this home, without an error.
    pub(crate) fn last(&self, object: usize, opcode: Opcode, offset: u64) -> Option<&Ended> {
        self.ended.iter().rev().find(|ended| {
            let command = &ended.command;
            (command.node, command.port) == (HOME, PORTS[object])
                && (command.opcode, command.remote.0 % 4096) == (opcode, offset)
                && ended.status == Status::Ok
        })
    }

    /// Whether another one has named itself as the successor of this turn: its name without the mark.
    pub(crate) fn follows(&self, object: usize, is: impl Fn(u64) -> bool) -> bool {
        let me = self.me[object];
        let marked = if turn_of(me) % 2 == 1 { MARK } else { 0 };
        let mut written = self.written[self.turn_from[object]..].iter();
        written.any(|&(at, name)| at == next_at(seat_of(me)) && name & MARK == marked && is(name & !MARK))
    }

    /// The library looks, and meanwhile time passes: ever more of it.
    pub(crate) fn serve(&mut self, card: &Card) {
        self.looks += 1;
        card.pass(match self.looks {
            0..100 => Nanos(0),
            100..600 => Nanos::from_micros(100),
            _ => Nanos::from_millis(10),
        });
        if card.area.get(PORT_STATE) != 0 {
            self.after += 1;
            assert!(self.after < MOST_LOOKS, "a call goes on at a port that has ended");
            return;
        }
        if self.looks > MOST_LOOKS {
            self.too_long = true;
            card.area.set(PORT_STATE, Status::LinkLost.code().into());
            return;
        }
        while let Some((looks, act)) = self.beside.front_mut() {
            if *looks > 0 {
                *looks -= 1;
                break;
            }
            let act = *act;
            self.beside.pop_front();
            self.act(card, act);
        }
        self.catch_up(card);
        while let Some(&(due, command, answer)) = self.held.front() {
            if due > card.now() && self.held.len() <= MOST_HELD {
                break;
            }
            self.held.pop_front();
            self.answer(card, command, answer);
        }
    }

    /// Takes what the library has posted.
    pub(crate) fn catch_up(&mut self, card: &Card) {
        for (command, bytes) in card.take() {
            self.take(card, command, &bytes);
        }
    }

    fn take(&mut self, card: &Card, command: Command, bytes: &[u8]) {
        if command.opcode.is_write() {
            self.sent(&command, bytes);
            if let Some(status) = self.failing.pop_front() {
                self.failed = true;
                card.fail(&command, status);
            }
            card.end(&command, Status::Ok);
            return;
        }
        if let Some(object) = object_of(&command) {
            self.asked(object, &command);
        }
        let next = match command.opcode {
            Opcode::FlushRemote => None,
            _ => self.answers.pop_front(),
        };
        let answer = next.unwrap_or(RIGHT);
        if answer.after.0 == 0 {
            self.answer(card, command, answer);
            return;
        }
        self.held
            .push_back((card.now().after(answer.after), command, answer));
        self.held.make_contiguous().sort_by_key(|held| held.0);
    }

    /// What goes to another's seat is a name for its `next`, or a grant with the signal of that seat.
    fn sent(&mut self, command: &Command, bytes: &[u8]) {
        let word = u64::from_le_bytes(bytes.try_into().expect("a message has one word"));
        let at = (command.remote.0 % 4096) as usize / 8;
        assert!(at < BLOCK, "a message to word {at} of a block of seats");
        assert_eq!(command.len.0, 8);
        if command.notification == NotificationId::NONE {
            assert_eq!(at % SEAT, NEXT, "a name for another word");
        } else {
            assert!(at % SEAT >= GRANT, "a grant in another word");
            let seat = command.notification.0.wrapping_sub(NUMBERS) as usize;
            assert_eq!(seat % 8, at / SEAT, "another seat's signal");
        }
        self.sent.push(Sent {
            command: *command,
            word,
        });
    }

    /// The participant tells its name with what it asks for.
    fn asked(&mut self, object: usize, command: &Command) {
        let asks = match (object, command.opcode) {
            (LOCK, Opcode::Swap) => true,
            (LOCK, Opcode::CompareSwap) => command.remote.0.is_multiple_of(4096) && command.compare == 0,
            (QUEUE, Opcode::Enqueue) => true,
            (SEMAPHORE, Opcode::SemP) => command.operand != 0,
            _ => false,
        };
        if asks {
            self.me[object] = command.operand;
            self.turn_from[object] = self.from;
        }
        match command.opcode {
            Opcode::NewHead => assert!(
                self.follows(object, |name| name == command.operand),
                "{:#x} is made the first, and has not named itself",
                command.operand
            ),
            Opcode::SemV => self.given += 1,
            _ => {}
        }
    }

    /// The memory that this is for, from there on.
    fn memory(&mut self, command: &Command) -> &mut [u64] {
        let page = match object_of(command) {
            Some(object) => &mut self.homes[object],
            None => &mut self.peers,
        };
        let at = (command.remote.0 % 4096) as usize / 8 % page.len();
        &mut page[at..]
    }

    fn answer(&mut self, card: &Card, command: Command, answer: Answer) {
        let (mut result, mut brought) = (AtomicResult::default(), [0; 4]);
        let memory = self.memory(&command);
        if answer.status != Status::Ok {
            // The operation has not been carried out, or its answer is lost.
        } else if command.opcode == Opcode::Read {
            let mut words = memory.to_vec();
            if let (Some(value), at) = (answer.value, answer.second.unwrap_or(0) as usize % 8) {
                words.resize(words.len().max(8), 0);
                words[at] = value;
            }
            for (first, word) in brought.iter_mut().zip(&words) {
                *first = *word;
            }
            card.bring(&command, &words);
        } else if command.opcode.is_atomic() {
            let atomic = Atomic {
                opcode: command.opcode,
                wide: command.flags.contains(CommandFlags::WIDE),
                operand: command.operand,
                compare: command.compare,
            };
            let mut operand = Operand::default();
            for (word, there) in operand.iter_mut().zip(memory.iter()) {
                *word = *there;
            }
            let (right, _) = atomic.apply(&mut operand);
            memory
                .iter_mut()
                .zip(operand)
                .for_each(|(there, word)| *there = word);
            result.value = answer.value.unwrap_or(right.value);
            result.second = answer.second.unwrap_or(right.second);
        }
        self.failed |= answer.status != Status::Ok;
        if let Some(object) = object_of(&command).filter(|_| answer.status == Status::Ok) {
            match command.opcode {
                Opcode::Swap => self.before[object] = result.value,
                Opcode::Enqueue | Opcode::SemP => self.epoch[object] = result.second >> 32,
                _ => {}
            }
        }
        card.answer_atomic(&command, answer.status, result);
        self.ended.push(Ended {
            command,
            status: answer.status,
            result,
            brought,
        });
    }

    /// The next import gives all, or what the fuzzer wants.
    pub(crate) fn import(&mut self, card: &Card) {
        let Some(all) = self.all else { return };
        let grant = self.grants.pop_front().unwrap_or(Ok(all));
        self.failed |= grant != Ok(all);
        *card.grant.lock().unwrap() = grant;
    }

    fn write(&mut self, at: usize, word: u64) {
        let Some(place) = self.seats.get(at) else { return };
        place.store(word, Ordering::Release);
        self.written.push((at, word));
    }

    /// After so many looks of the library.
    pub(crate) fn put_beside(&mut self, looks: u8, act: Act) {
        self.beside.push_back((looks, act));
    }

    pub(crate) fn act(&mut self, card: &Card, Act { what, place, word }: Act) {
        let (object, at) = (usize::from(place) % 3, usize::from(place) / 3);
        let (me, flags) = (self.me[object], place / 3);
        match what % 12 {
            // What another participant may write: anywhere, or where it is looked at.
            0 => self.write(usize::from(place) % BLOCK, word),
            1 => {
                let late = flags & 1 == 1;
                let marked = (turn_of(me) % 2 == 1) != late;
                let name = peer(word) | if marked { MARK } else { 0 };
                self.write(next_at(seat_of(me)), name);
            }
            2 => {
                let (number, grant) = match object {
                    LOCK if flags & 1 == 1 => (turn_of(me), !self.before[LOCK]),
                    LOCK => (
                        turn_of(me),
                        self.before[LOCK] ^ if flags & 2 == 2 { MARK } else { 0 },
                    ),
                    _ => (self.epoch[object], (self.epoch[object] << 32) | (word % 3)),
                };
                let wrong = if flags & 4 == 4 { word & 0xFF << 32 } else { 0 };
                self.write(grant_at(seat_of(me), number), grant ^ wrong);
                if flags & 8 == 0 {
                    card.signal(NUMBERS + seat_of(me) as u32, true);
                }
            }
            3 => card.signal(NUMBERS + seat_of(me) as u32, flags & 1 == 0),
            4 => card.signal(word as u32 % 1024, flags & 1 == 0),
            // What lies at a home: its block, the recovery words, members, what it is.
            5 => self.homes[object][[0, 1, 2, 3, 8, 9, 32, 33, 40, 5][at % 10]] = word,
            6 => self.homes[object][[0, 8, 32, 33, 1][at % 5]] = peer(word),
            // What lies in another's seat.
            7 => self.peers[usize::from(place) % BLOCK] = word,
            8 => {
                let seat = (word >> 2 & 7) as usize * SEAT;
                self.peers[seat + PLACE] = u64::from(flags % 6) | turn_of(peer(word)) << 8;
                self.peers[seat + PLACE + 1] = me;
                self.peers[seat + PLACE + 2] = if word >> 63 == 1 { me } else { 0 };
            }
            9 => {
                let failed = Status::from_code((word % 32) as u8);
                let right = Answer {
                    after: Nanos::from_millis(u64::from(place >> 4) * 100),
                    ..RIGHT
                };
                self.answers.push_back(match place % 8 {
                    0 => Answer {
                        status: failed,
                        ..right
                    },
                    1 => Answer {
                        value: Some(word),
                        ..right
                    },
                    2 => Answer {
                        second: Some(word),
                        ..right
                    },
                    3 => Answer {
                        value: Some(peer(word)),
                        ..right
                    },
                    4 => Answer {
                        value: Some(0),
                        ..right
                    },
                    5 => Answer {
                        value: Some(me),
                        second: Some(word),
                        ..right
                    },
                    _ => right,
                });
            }
            10 if flags % 4 == 0 => self.failing.push_back(Status::from_code((1 + word % 24) as u8)),
            10 if flags % 4 == 1 && word % 8 == 0 => card.area.set(PORT_STATE, 1 + (word >> 3) as u32 % 25),
            10 => {
                let Some(mut grant) = self.all else { return };
                match flags % 4 {
                    1 => grant.len = word % 8192,
                    _ if flags & 4 == 0 => grant.modes = Modes::from_bits_truncate(word as u16),
                    _ => grant.start = VirtAddr(word & !4095),
                }
                let refused = Refusal::Status(Status::from_code((word % 32) as u8));
                self.grants
                    .push_back(if flags & 8 == 0 { Err(refused) } else { Ok(grant) });
            }
            _ => {
                let span = word % 600_000_000;
                self.passed += span;
                card.pass(Nanos(span));
            }
        }
    }

    /// Signals of a seat so far.
    pub(crate) fn signals(card: &Card, seat: usize) -> u32 {
        card.area.get(SHADOW_SIGNALS.plus(NUMBERS + seat as u32))
    }
}

/// The object whose home this goes to.
fn object_of(command: &Command) -> Option<usize> {
    let port = PORTS.iter().position(|&port| port == command.port);
    port.filter(|_| command.node == HOME)
}
