//! What is known of the operations of a port's present owner.

use super::Asked;
use crate::check::message::{ATOMIC_REQUEST, Posted};
use crate::seen::{Counts, Place, digest};
use netvm_abi::Nanos;
use netvm_abi::port_area::ErrorRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Commands that were passed by and are remembered, at most.
const KEPT: usize = 256;

/// A record that a port must find in its error ring, since when.
pub(super) struct Owed {
    /// The message that has failed.
    pub(super) of: Asked,
    pub(super) since: Nanos,
    pub(super) record: ErrorRecord,
    /// Its address is the receiver's choice.
    pub(super) anywhere: bool,
    /// Its port was not about to close, after which the card tells nothing, and no answer that left before is missing: a link at rest
    /// takes none out of order, as if the wire had lost it.
    pub(super) must: bool,
}

impl Owed {
    pub(super) fn is(&self, told: &ErrorRecord) -> bool {
        let mut expected = self.record;
        if self.anywhere {
            expected.address = told.address;
        }
        expected == *told
    }
}

/// How a round trip has been answered.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) since: Nanos,
    pub(super) status: u8,
    pub(super) values: (u64, u64),
    /// Digest of the data of a read.
    pub(super) came: Option<u64>,
    /// The same, while they have not been stored.
    pub(super) data: Option<u64>,
}

/// A round trip that has left.
pub(super) struct Trip {
    pub(super) command: Posted,
    pub(super) answer: Option<Answer>,
}

/// A command that ends when its node has received what left before it. Its turn has come.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) command: Posted,
    /// Of the messages to that node so many had left.
    pub(super) next: u32,
}

/// What is known of the operations of a port's present owner.
#[derive(Default)]
pub(super) struct Book {
    /// Commands that have not left.
    pub(super) queue: VecDeque<Posted>,
    /// The last one that was posted: a doorbell may be rung again.
    pub(super) last: Option<[u32; 16]>,
    /// Commands that were passed by, since when. What is held back may fail by itself before that, and is told of then.
    pub(super) passed: Vec<(Nanos, Posted)>,
    pub(super) trips: BTreeMap<Asked, Trip>,
    pub(super) waits: Vec<Wait>,
    pub(super) owed: Vec<Owed>,
    /// Messages of which an error has come.
    pub(super) heard: BTreeSet<Asked>,
    /// Nodes and epochs in which something failed of which the receiver does not know.
    pub(super) broken: BTreeSet<(u16, u16)>,
    /// Of some failures it is not known what failed.
    pub(super) missed: bool,
    /// Commands and writes that were posted, and round trips that have ended.
    pub(super) counts: [u32; 3],
    pub(super) ending: bool,
}

impl Book {
    pub(super) fn posted(&mut self, words: &[u32; 16], command: Posted) {
        if self.last.replace(*words) == Some(*words) {
            return;
        }
        self.counts[Counts::Taken as usize] += 1;
        self.counts[Counts::Writes as usize] += u32::from(command.is_write());
        self.queue.push_back(command);
    }

    pub(super) fn trip_ends(&mut self) {
        self.counts[Counts::Reads as usize] += 1;
    }

    /// The command at this place leaves: what stands before it has had its turn. Of those that wait for what has been
    /// received, `next` gives the number that their node's next message had then.
    pub(super) fn overtakes_waits(&mut self, place: usize, next: impl Fn(u16) -> u32) {
        for command in self.queue.iter().take(place) {
            if command.awaits_receipt() {
                let (command, next) = (*command, next(command.node));
                self.waits.push(Wait { command, next });
            }
        }
    }

    /// A command is over, and those before it: what is told of them may come from the card's store buffer a little later.
    pub(super) fn pass(&mut self, now: Nanos, place: usize) {
        let before = self
            .queue
            .drain(..place)
            .filter(|command| !command.awaits_receipt());
        self.passed.extend(before.map(|command| (now, command)));
        self.queue.pop_front();
        let surplus = self.passed.len().saturating_sub(KEPT);
        self.passed.drain(..surplus);
    }

    /// Whether nothing need be told of a command that was passed by: it is held back, or may have been lost.
    fn is_excused(&self, command: &Posted) -> bool {
        let broken = self.broken.contains(&(command.node, command.epoch));
        self.missed || (command.ends_without_a_word() && broken)
    }

    /// Takes out the first command that has not left for which this holds.
    pub(super) fn take(&mut self, now: Nanos, holds: impl Fn(&Posted) -> bool) -> Option<Posted> {
        if let Some(place) = self.passed.iter().position(|(_, command)| holds(command)) {
            return Some(self.passed.remove(place).1);
        }
        let place = self.queue.iter().position(holds)?;
        let command = self.queue[place];
        self.pass(now, place);
        Some(command)
    }

    /// A command has ended that waits for what has been received. If nothing has left after it, its turn has come by now.
    pub(super) fn wait_ends(&mut self, now: Nanos, op: u32, next: impl Fn(u16) -> u32) -> Option<Wait> {
        if let Some(place) = self.waits.iter().position(|wait| wait.command.op == op) {
            return Some(self.waits.remove(place));
        }
        let is_it = |command: &Posted| command.op == op && command.awaits_receipt();
        let place = self.queue.iter().position(is_it)?;
        let command = self.queue[place];
        self.overtakes_waits(place, &next);
        self.pass(now, place);
        let next = next(command.node);
        Some(Wait { command, next })
    }

    /// An operation has ended. A frame does not say which of equal atomics it is: if this one has left and has no answer, it
    /// was an equal one that has.
    pub(super) fn set_right(&mut self, now: Nanos, op: u32) {
        let of_op = |trip: &Trip| trip.command.op == op;
        if self
            .trips
            .values()
            .any(|trip| of_op(trip) && trip.answer.is_some())
        {
            return;
        }
        let Some((&asked, &Trip { command, .. })) = self.trips.iter().find(|(_, trip)| of_op(trip)) else {
            return;
        };
        let is_equal = |other: &Posted| {
            let same = Posted {
                op,
                reply: command.reply,
                local: command.local,
                ..*other
            };
            other.op != op && command.kind() == ATOMIC_REQUEST && same == command
        };
        let answered = self
            .trips
            .values_mut()
            .find(|trip| trip.answer.is_some() && is_equal(&trip.command));
        let equal = if let Some(trip) = answered {
            std::mem::replace(&mut trip.command, command)
        } else if let Some(place) = self.queue.iter().position(is_equal) {
            let equal = self.queue[place];
            self.pass(now, place);
            self.passed.push((now, command));
            equal
        } else {
            return;
        };
        if let Some(trip) = self.trips.get_mut(&asked) {
            trip.command = equal;
        }
    }

    /// A read's answer is stored there.
    pub(super) fn stored(&mut self, place: Place, bytes: &[u8]) {
        let of_place = |trip: &&mut Trip| {
            trip.command.local == place.start() && trip.command.len == place.len && trip.answer.is_some()
        };
        let mut value = None;
        for trip in self.trips.values_mut().filter(of_place) {
            let value = *value.get_or_insert_with(|| digest(bytes));
            if let Some(answer) = &mut trip.answer
                && answer.data == Some(value)
            {
                answer.data = None;
                return;
            }
        }
    }

    /// A read has ended whose data have not been stored. Those of an equal read, in the same place, may have been taken for
    /// another's: then it is that one that waits for its data.
    pub(super) fn stored_as_another(&mut self, command: &Posted, data: u64) -> bool {
        let is_equal = |other: &Posted| (other.local, other.len) == (command.local, command.len);
        let mut others = self.trips.values_mut().filter(|trip| is_equal(&trip.command));
        let vouched = others.find_map(|trip| {
            let answer = trip.answer.as_mut()?;
            (answer.data.is_none() && answer.came == Some(data)).then_some(answer)
        });
        vouched.is_some_and(|answer| {
            answer.data = Some(data);
            true
        })
    }

    /// What the card tells at once, when it must: since when, and of which operation.
    pub(super) fn untold(&self) -> impl Iterator<Item = (Nanos, u32)> {
        let owed = self.owed.iter().filter(|owed| owed.must);
        let passed = self
            .passed
            .iter()
            .filter(|(_, command)| !self.is_excused(command));
        let passed = passed.map(|(since, command)| (*since, command.op));
        owed.map(|owed| (owed.since, owed.record.op.0)).chain(passed)
    }

    /// What waits to be told, since when: an operation.
    pub(super) fn waits(&self) -> Option<(Nanos, u32)> {
        let answered = |trip: &Trip| Some((trip.answer?.since, trip.command.op));
        let answered = self.trips.values().filter_map(answered);
        self.untold().chain(answered).min()
    }
}
