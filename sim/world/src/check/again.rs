//! P2: what is sent again is what was sent, and what is said to have been received has been.
//!
//! A message may leave more than once. Each time it is the same, but for its stamp and the wish for an acknowledgement.
//! The other checkers judge it once: [`Again::filter`] keeps the repetitions from them. That nothing *acts* twice is
//! theirs to see: in memory, in counts, in answers.

use super::message::{ACK, Message, NUMBER, answer_number};
use crate::seen::{Seen, digest};
use std::collections::{BTreeMap, BTreeSet};

/// Sender, receiver, and whether answers or requests are numbered.
type Lane = (u16, u16, bool);

/// Numbers of a lane that are remembered behind the latest: more than a card may have on its way.
const KEPT: u32 = 4096;

/// One life of a link, in one direction.
#[derive(Debug, Default)]
struct Numbers {
    lives: (u32, u32),
    /// What was sent, by number.
    sent: BTreeMap<u32, u64>,
    /// What has arrived.
    arrived: BTreeSet<u32>,
    /// Up to here all has been said to have been received.
    said: Option<u32>,
}

/// What has left and what has arrived.
#[derive(Debug, Default)]
pub(super) struct Again {
    lanes: BTreeMap<Lane, Numbers>,
}

fn word(frame: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

/// The lane, the lives and the number of a frame that its sender keeps until it has been received.
fn kept(frame: &[u8], message: &Message) -> Option<(Lane, (u32, u32), u32)> {
    let number = if message.windowed() {
        message.seq
    } else {
        answer_number(frame)?
    };
    let lane = (message.source, message.destination, !message.windowed());
    Some((lane, (message.source_life, message.destination_life), number))
}

/// All of a frame that must be the same each time that it leaves.
fn essence(frame: &[u8]) -> u64 {
    let mut bytes = frame.to_vec();
    // The wish for an acknowledgement, and the stamp.
    bytes[4] &= !1;
    bytes[60..64].fill(0);
    digest(&bytes)
}

impl Again {
    fn numbers(&mut self, lane: Lane, lives: (u32, u32)) -> &mut Numbers {
        let numbers = self.lanes.entry(lane).or_default();
        if numbers.lives != lives {
            *numbers = Numbers {
                lives,
                ..Numbers::default()
            };
        }
        numbers
    }

    /// Whether the other checkers are to see a fact: it is no repetition.
    ///
    /// # Errors
    /// What is sent again is another message, or something is said to have been received that has not.
    pub(super) fn filter(&mut self, fact: &Seen) -> Result<bool, String> {
        match fact {
            Seen::Sent { frame } => self.sent(frame),
            Seen::Arrived { frame, .. } => {
                self.arrived(frame);
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    fn sent(&mut self, frame: &[u8]) -> Result<bool, String> {
        let Some(message) = Message::read(frame) else {
            return Ok(true);
        };
        if message.kind == ACK {
            self.said(frame, &message)?;
        }
        let Some((lane, lives, number)) = kept(frame, &message) else {
            return Ok(true);
        };
        let numbers = self.numbers(lane, lives);
        let essence = essence(frame);
        if let Some(&first) = numbers.sent.get(&number) {
            if first != essence {
                return Err(format!(
                    "message {number} of node {} to {} is another one when it is sent again",
                    lane.0, lane.1
                ));
            }
            return Ok(false);
        }
        numbers.sent.insert(number, essence);
        if numbers.sent.len() > KEPT as usize {
            let old = |&kept: &u32| number.wrapping_sub(kept) as i32 > KEPT as i32 / 2;
            numbers.sent.retain(|number, _| !old(number));
            numbers.arrived.retain(|number| !old(number));
        }
        Ok(true)
    }

    fn arrived(&mut self, frame: &[u8]) {
        let Some(message) = Message::read(frame) else {
            return;
        };
        if let Some((lane, lives, number)) = kept(frame, &message)
            && let Some(numbers) = self.lanes.get_mut(&lane)
            && numbers.lives == lives
        {
            numbers.arrived.insert(number);
        }
    }

    /// An acknowledgement says what has been received of both lanes of the other direction.
    fn said(&mut self, frame: &[u8], message: &Message) -> Result<(), String> {
        let pair = |at| u64::from(word(frame, at)) | u64::from(word(frame, at + 4)) << 32;
        let lives = (message.destination_life, message.source_life);
        for (answers, next, from, beyond) in [
            (false, word(frame, 28), word(frame, 72), pair(32)),
            (true, word(frame, NUMBER), word(frame, 76), pair(64)),
        ] {
            let lane = (message.destination, message.source, answers);
            let Some(numbers) = self.lanes.get_mut(&lane).filter(|numbers| numbers.lives == lives) else {
                continue;
            };
            let mut claimed: Vec<u32> = Vec::new();
            // The first one of a life is not known; from then on every number counts.
            let mut number = numbers.said.unwrap_or(next.wrapping_sub(1));
            while number != next && (next.wrapping_sub(number) as i32) > 0 && claimed.len() < KEPT as usize {
                claimed.push(number);
                number = number.wrapping_add(1);
            }
            claimed.retain(|number| numbers.sent.contains_key(number) || numbers.said.is_some());
            claimed.extend(
                (0..64)
                    .filter(|bit| beyond >> bit & 1 != 0)
                    .map(|bit| from.wrapping_add(bit)),
            );
            if let Some(number) = claimed.iter().find(|number| !numbers.arrived.contains(number)) {
                return Err(format!(
                    "node {} says that it has received {} {number} of node {}, which has not arrived",
                    message.source,
                    if answers { "answer" } else { "message" },
                    message.destination
                ));
            }
            numbers.said = Some(next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{arrived, caught, sent};
    use super::*;
    use netvm_abi::wire::{Body, Header, Kind, Receipt, Received};
    use netvm_abi::{Incarnation, NodeId, Seq};

    fn all(facts: &[Seen]) -> Result<Vec<bool>, String> {
        let mut again = Again::default();
        facts.iter().map(|fact| again.filter(fact)).collect()
    }

    fn ack(next: u32, beyond: u64) -> Seen {
        let mut header = Header::of(Body::Ack, NodeId(1), NodeId(0));
        header.source_incarnation = Incarnation(8);
        header.destination_incarnation = Incarnation(7);
        header.set_receipt(&Receipt {
            requests: Received {
                beyond,
                ..Received::before(Seq(next))
            },
            ..Receipt::default()
        });
        sent(header.encode().to_vec())
    }

    #[test]
    fn a_repetition_is_the_same_message_with_another_stamp() {
        let first = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let mut again = first.clone();
        (again[4], again[60]) = (again[4] | 1, 77);
        assert_eq!(all(&[sent(first.clone()), sent(again)]), Ok(vec![true, false]));
        for at in [4, 28, 40, 70, 80] {
            let mut other = first.clone();
            other[at] ^= 2;
            let verdict = all(&[sent(first.clone()), sent(other)]);
            caught(verdict.map(|_| ()), "another one");
        }
    }

    #[test]
    fn what_has_not_arrived_has_not_been_received() {
        let [five, six, seven] = [5, 6, 7].map(|seq| frame(Kind::Write, seq, 0x1000, b"data", 0));
        let facts = |last: Seen| {
            let sent = [&five, &six, &seven].map(|frame| sent(frame.clone()));
            let came = [&five, &seven].map(|frame| arrived(frame.clone()));
            sent.into_iter()
                .chain(came)
                .chain([ack(6, 1), last])
                .collect::<Vec<_>>()
        };
        assert!(all(&facts(ack(6, 1))).is_ok());
        for nonsense in [ack(7, 0), ack(8, 0), ack(6, 2)] {
            caught(all(&facts(nonsense)).map(|_| ()), "has not arrived");
        }
    }
}
