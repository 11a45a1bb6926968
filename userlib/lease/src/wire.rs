//! Requests and answers, as bytes. Both are checked when they come: the other side is not trusted.
//!
//! A request is a message of a shared queue, whose sender the card names. An answer is written into memory of the client, each into its
//! place, and a notification follows. The client may look at a place while something is written to it. Memory keeps words whole, and not what
//! is longer. So each word of an answer carries the answer's number beside its part of the bytes, and an answer is whole when all words
//! say its number.

use crate::error::Refusal;
use netvm::LeaseToken;

/// Bytes of a request.
pub(crate) const REQUEST: usize = 64;
/// Words of an answer.
pub(crate) const WORDS: usize = 16;
/// Bytes of an answer.
pub(crate) const ANSWER: usize = WORDS * 8;
/// Answers that a client has room for: each has its place by its number.
pub(crate) const PLACES: u32 = 8;
/// Marks a request, with its version.
const MARK: u32 = 0x4C52_0001;
/// Bits of a request's number.
const NUMBER: u32 = 24;
/// Bytes of an answer that a word has room for.
const SHARE: usize = 5;

/// The number of the request after this one. 0 is none.
pub(crate) const fn next_number(number: u32) -> u32 {
    let next = (number + 1) % (1 << NUMBER);
    if next == 0 { 1 } else { next }
}

/// Where in a client's memory the answer to a request is written.
pub(crate) const fn place(number: u32) -> u64 {
    (number % PLACES) as u64 * ANSWER as u64
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A client is there. Its answers raise this notification.
    Hello { notification: u32 },
    /// A part by its key.
    Acquire { key: u64, terms: Terms },
    /// A part of so many bytes.
    Allocate { len: u64, terms: Terms },
    /// A lease is given back.
    Relinquish { id: u64 },
    /// Nothing: a round trip.
    Echo,
}

/// How it is to be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) write: bool,
    pub(crate) exclusive: bool,
    /// In ns.
    pub(crate) duration: u64,
    /// How long it may wait, in ns; 0: not at all.
    pub(crate) patience: u64,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The client's number of it; not 0.
    pub(crate) number: u32,
    pub(crate) ask: Ask,
}

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST] {
        let none = Terms {
            write: false,
            exclusive: false,
            duration: 0,
            patience: 0,
        };
        let (code, what, terms) = match self.ask {
            Ask::Hello { notification } => (0, notification.into(), none),
            Ask::Acquire { key, terms } => (1, key, terms),
            Ask::Allocate { len, terms } => (2, len, terms),
            Ask::Relinquish { id } => (3, id, none),
            Ask::Echo => (4, 0, none),
        };
        let flags = u64::from(terms.write) | u64::from(terms.exclusive) << 1;
        let words = [
            u64::from(MARK) | u64::from(self.number) << 32,
            code,
            what,
            flags,
            terms.duration,
            terms.patience,
        ];
        let mut bytes = [0; REQUEST];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// As it came: its number, and what it asks for if that makes sense. `None`: no request at all.
    pub(crate) fn from_bytes(bytes: &[u8; REQUEST]) -> Option<(u32, Option<Ask>)> {
        let mut words = [0; REQUEST / 8];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*from);
        }
        let [mark, code, what, flags, duration, patience, ..] = words;
        let number = (mark >> 32) as u32;
        if mark as u32 != MARK || number == 0 || number >> NUMBER != 0 {
            return None;
        }
        let terms = Terms {
            write: flags & 1 != 0,
            exclusive: flags & 2 != 0,
            duration,
            patience,
        };
        let ask = match code {
            0 => u32::try_from(what)
                .ok()
                .map(|notification| Ask::Hello { notification }),
            1 => Some(Ask::Acquire { key: what, terms }),
            2 => Some(Ask::Allocate { len: what, terms }),
            3 => Some(Ask::Relinquish { id: what }),
            4 => Some(Ask::Echo),
            _ => None,
        };
        Some((number, ask.filter(|_| flags < 4)))
    }
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Granted { key: u64, token: LeaseToken },
    Refused(Refusal),
}

/// Codes of refusals begin here.
const REFUSED: u8 = 16;

impl Answer {
    pub(crate) fn to_bytes(self, number: u32) -> [u8; ANSWER] {
        let mut body = [0; WORDS * SHARE];
        let mut put = |at: usize, from: &[u8]| {
            if let Some(to) = body.get_mut(at..at + from.len()) {
                to.copy_from_slice(from);
            }
        };
        match self {
            Self::Done => put(0, &[1]),
            Self::Granted { key, token } => {
                put(0, &[2]);
                put(1, &key.to_le_bytes());
                put(9, &token.to_bytes());
            }
            Self::Refused(why) => put(0, &[REFUSED + why.code()]),
        }
        let tag = u64::from(number) << (64 - NUMBER);
        let mut bytes = [0; ANSWER];
        for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(body.as_chunks().0) {
            let [a, b, c, d, e]: [u8; SHARE] = *from;
            *to = (u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]) | tag).to_le_bytes();
        }
        bytes
    }

    /// As it stands in its place. `None`: all of it is not there yet, or it makes no sense.
    pub(crate) fn from_words(number: u32, words: &[u64; WORDS]) -> Option<Self> {
        let mut body = [0; WORDS * SHARE];
        for (to, word) in body.as_chunks_mut::<SHARE>().0.iter_mut().zip(words) {
            if word >> (64 - NUMBER) != u64::from(number) {
                return None;
            }
            let [a, b, c, d, e, ..] = word.to_le_bytes();
            *to = [a, b, c, d, e];
        }
        match *body.first()? {
            1 => Some(Self::Done),
            2 => {
                let key = u64::from_le_bytes(*body.get(1..)?.first_chunk()?);
                let token = LeaseToken::from_bytes(body.get(9..)?.first_chunk()?).ok()?;
                Some(Self::Granted { key, token })
            }
            code => Refusal::of(code.checked_sub(REFUSED)?).map(Self::Refused),
        }
    }
}

const _: () = assert!(9 + LeaseToken::BYTES <= WORDS * SHARE && SHARE * 8 + NUMBER as usize == 64);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A token of a lease of so many bytes.
    pub(crate) fn token(id: u64, len: u64) -> LeaseToken {
        let words = [0x4C01 << 48 | 1, id | 1 << 32, 4096, len, 77, 0, 1_000_000, 0];
        let mut bytes = [0; LeaseToken::BYTES];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = u64::to_le_bytes(word);
        }
        LeaseToken::from_bytes(&bytes).unwrap()
    }

    fn words(bytes: &[u8; ANSWER]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*from);
        }
        words
    }

    #[test]
    fn requests_come_as_they_were_sent() {
        let terms = Terms {
            write: true,
            exclusive: false,
            duration: 50_000_000,
            patience: u64::MAX,
        };
        for ask in [
            Ask::Hello { notification: 880 },
            Ask::Acquire { key: 7, terms },
            Ask::Allocate {
                len: u64::MAX,
                terms: Terms {
                    exclusive: true,
                    ..terms
                },
            },
            Ask::Relinquish { id: 1 << 40 },
            Ask::Echo,
        ] {
            let sent = Request { number: 9, ask };
            assert_eq!(Request::from_bytes(&sent.to_bytes()), Some((9, Some(ask))));
        }
    }

    #[test]
    fn nonsense_is_told_from_requests() {
        let good = Request {
            number: 9,
            ask: Ask::Echo,
        };
        let changed = |at: usize, byte| {
            let mut bytes = good.to_bytes();
            bytes[at] = byte;
            Request::from_bytes(&bytes)
        };
        assert_eq!(changed(0, 0xEE), None, "no mark");
        assert_eq!(changed(4, 0), None, "no number");
        assert_eq!(changed(7, 1), None, "too large a number");
        assert_eq!(changed(8, 5), Some((9, None)), "an unknown code");
        assert_eq!(changed(24, 4), Some((9, None)), "an unknown flag");
        assert_eq!(Request::from_bytes(&[0; REQUEST]), None);
        assert_eq!(Request::from_bytes(&[0xFF; REQUEST]), None);
        let mut hello = Request {
            number: 9,
            ask: Ask::Hello { notification: 1 },
        }
        .to_bytes();
        hello[21] = 1;
        assert_eq!(Request::from_bytes(&hello), Some((9, None)));
    }

    #[test]
    fn numbers_go_round_and_leave_0_out() {
        assert_eq!((next_number(0), next_number(8)), (1, 9));
        assert_eq!(next_number((1 << NUMBER) - 1), 1);
    }

    #[test]
    fn an_answer_is_taken_when_all_of_it_is_there() {
        let granted = Answer::Granted {
            key: u64::MAX - 3,
            token: token(5, 4096),
        };
        let refusals = (0..=u8::MAX).filter_map(Refusal::of).map(Answer::Refused);
        for answer in refusals.chain([Answer::Done, granted]) {
            let sent = words(&answer.to_bytes(1 << 23));
            assert_eq!(Answer::from_words(1 << 23, &sent), Some(answer));
            assert_eq!(Answer::from_words((1 << 23) + 8, &sent), None);
            // Over what another answer has left there, in any order: each word in turn is the last one that is missing.
            let old = words(&granted.to_bytes((1 << 23) - 8));
            for missing in 0..WORDS {
                let mut torn = sent;
                torn[missing] = old[missing];
                assert_eq!(Answer::from_words(1 << 23, &torn), None, "word {missing}");
            }
        }
        assert_eq!(Answer::from_words(3, &[0; WORDS]), None);
        assert_eq!(Answer::from_words(3, &[u64::MAX; WORDS]), None);
        // A grant without a token, and an unknown code.
        for code in [2, 15, 255] {
            let mut bytes = Answer::Done.to_bytes(3);
            bytes[0] = code;
            assert_eq!(Answer::from_words(3, &words(&bytes)), None);
        }
    }
}
