//! Questions to a node of this user: what it is, and what it has counted.
//!
//! The program that asks connects to the socket at which the node takes introductions ([`super::introduce`]) and sends a
//! [`Question`] instead of one. The node sends one answer and closes. It keeps nothing between two questions: a list that is
//! longer than one answer is asked for from a place on.
//!
//! Both sides check the other's user (SO_PEERCRED). What an answer says is the business of the crate that gives it; here it is
//! bytes, at most [`MOST_BYTES`] of them.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use netvm_abi::ABI_VERSION;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::introduce::{address, is_of_this_user, readable, socket, system};
use crate::link_error::LinkError;

/// Bytes of an answer at most, the header apart.
pub const MOST_BYTES: usize = 64 * 1024;

const QUESTION: [u8; 4] = *b"NVq1";
const ANSWER: [u8; 4] = *b"NVa1";
const QUESTION_BYTES: usize = 16;
const HEADER_BYTES: usize = 12;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// About what.
    pub section: u16,
    /// From which place of its list on.
    pub from: u32,
}

impl Question {
    fn encode(self) -> [u8; QUESTION_BYTES] {
        let mut bytes = [0; QUESTION_BYTES];
        bytes[..4].copy_from_slice(&QUESTION);
        bytes[4..6].copy_from_slice(&ABI_VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.section.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [m0, m1, m2, m3, v0, v1, s0, s1, f0, f1, f2, f3, ..] =
            *<&[u8; QUESTION_BYTES]>::try_from(bytes).ok()?;
        let same = [m0, m1, m2, m3] == QUESTION && u16::from_le_bytes([v0, v1]) == ABI_VERSION;
        same.then_some(Self {
            section: u16::from_le_bytes([s0, s1]),
            from: u32::from_le_bytes([f0, f1, f2, f3]),
        })
    }
}

/// Whether a message with this beginning is a question.
pub(super) fn is_question(beginning: &[u8]) -> bool {
    beginning == QUESTION
}

/// A question that has come, and the way back.
#[derive(Debug)]
pub struct Asked {
    socket: OwnedFd,
    question: Option<Question>,
}

impl Asked {
    /// Takes the question that waits in a socket.
    pub(super) fn take(socket: OwnedFd) -> Option<Self> {
        let mut bytes = [0; QUESTION_BYTES + 1];
        let (got, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
        let question = Question::decode(bytes.get(..got)?);
        Some(Self { socket, question })
    }

    /// Answers. A question of another version hears which version this one is; so does one to which there is no answer.
    pub fn answer(self, give: impl FnOnce(Question) -> Option<Vec<u8>>) {
        let body = self.question.and_then(give);
        let body = body.filter(|body| body.len() <= MOST_BYTES).unwrap_or_default();
        let mut answer = Vec::with_capacity(HEADER_BYTES + body.len());
        answer.extend_from_slice(&ANSWER);
        answer.extend_from_slice(&ABI_VERSION.to_le_bytes());
        answer.extend_from_slice(&[0; 2]);
        answer.extend_from_slice(&(body.len() as u32).to_le_bytes());
        answer.extend_from_slice(&body);
        // A program that does not wait for its answer has none.
        let _ = rustix::net::send(&self.socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// Asks the node that has a name, or `#` and a number.
///
/// # Errors
/// There is no such node, it does not answer in time, or not as a node of this release does.
pub fn ask(name: &str, question: Question, deadline: Instant) -> Result<Vec<u8>, LinkError> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &address(name)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(LinkError::NoSuchNode),
        Err(Errno::AGAIN) => return Err(LinkError::TimedOut),
        other => other.map_err(system("connecting"))?,
    }
    is_of_this_user(&socket)?;
    rustix::net::send(&socket, &question.encode(), SendFlags::NOSIGNAL).map_err(system("a question"))?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::TimedOut);
        }
        if readable(&socket, left)? {
            break;
        }
    }
    let mut bytes = vec![MaybeUninit::uninit(); HEADER_BYTES + MOST_BYTES + 1];
    let ((got, _), _) =
        rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).map_err(system("an answer"))?;
    check(got)
}

/// The body of an answer.
fn check(answer: &[u8]) -> Result<Vec<u8>, LinkError> {
    let Some((header, body)) = answer.split_first_chunk::<HEADER_BYTES>() else {
        return Err(LinkError::Malformed);
    };
    let [m0, m1, m2, m3, v0, v1, _, _, l0, l1, l2, l3] = *header;
    if [m0, m1, m2, m3] != ANSWER {
        return Err(LinkError::Malformed);
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != ABI_VERSION {
        return Err(LinkError::Version(version));
    }
    if u32::from_le_bytes([l0, l1, l2, l3]) as usize != body.len() || body.len() > MOST_BYTES {
        return Err(LinkError::Malformed);
    }
    if body.is_empty() {
        return Err(LinkError::Refused("it has no answer to that"));
    }
    Ok(body.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_comes_as_it_was_asked() {
        let question = Question {
            section: 7,
            from: 0x1_0203,
        };
        let bytes = question.encode();
        assert!(is_question(&bytes[..4]));
        assert_eq!(Question::decode(&bytes), Some(question));
        for spoilt in 0..6 {
            let mut bytes = bytes;
            bytes[spoilt] ^= 0x80;
            assert_eq!(Question::decode(&bytes), None, "byte {spoilt}");
        }
        assert_eq!(Question::decode(&bytes[..15]), None);
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_an_error() {
        let [v0, v1] = ABI_VERSION.to_le_bytes();
        let good = [b'N', b'V', b'a', b'1', v0, v1, 0, 0, 2, 0, 0, 0, 5, 6];
        assert_eq!(check(&good), Ok(vec![5, 6]));
        for len in 0..good.len() {
            assert_eq!(check(&good[..len]), Err(LinkError::Malformed), "{len} bytes");
        }
        let mut other = good;
        other[4] ^= 0x40;
        assert_eq!(check(&other), Err(LinkError::Version(ABI_VERSION ^ 0x40)));
        let none = [b'N', b'V', b'a', b'1', v0, v1, 0, 0, 0, 0, 0, 0];
        assert!(matches!(check(&none), Err(LinkError::Refused(_))));
        // A node of a release that knows no questions answers with an introduction.
        assert_eq!(
            check(b"NVs1\x0b\0\0\0\0\0\0\0\x02\0\0\0"),
            Err(LinkError::Malformed)
        );
    }
}
