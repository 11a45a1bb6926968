//! How long messages are: what a path takes is found out while a link is made.
//!
//! The side that makes a link brings the other one's token back in letters that are as long as the longest message, and in shorter ones
//! where these stay without an answer; the answer is as long as the letter. So a letter and its answer show what the path takes, each
//! way, before a message depends on it (RFC 8899 calls such letters probes). Datagrams are sent so that routers do not cut them up.
//!
//! A path may take less later. Then long messages are lost, and short ones come through, until the card gives that life of the link up.
//! The next life, if no letters come before it, has messages that [every path takes](EVERY_PATH). A life that was lost in silence says
//! nothing of lengths. The end that gave the life up judges: the other one, which had nothing to send, cannot tell silence from a cut.

use netvm_abi::PAGE_SIZE;
use netvm_abi::wire::HEADER_BYTES;

use super::datagram::PREFIX;
use super::sealed;

/// The payload that every path takes, in bytes: four of them are a page.
pub const EVERY_PATH: u32 = 1024;

/// The payloads that are tried: a page in one message, in two, in three and in four.
const PAYLOADS: [u32; 4] = [PAGE_SIZE, 2048, 1368, EVERY_PATH];

/// Headers of IPv4 and of IPv6, with that of UDP.
const UDP_4: usize = 20 + 8;
const UDP_6: usize = 40 + 8;

// The smallest MTU of IPv6, for a sealed message; a third of a page in what Ethernet takes.
const _: () = assert!(EVERY_PATH as usize + HEADER_BYTES + sealed::HEAD + UDP_6 <= 1280);
const _: () = assert!(1368 + HEADER_BYTES + PREFIX + UDP_4 <= 1500 && 3 * 1368 >= PAGE_SIZE);

/// What a node's letters are as long as: bytes of messages, the longest first. There is one at least.
#[derive(Clone, Debug)]
pub(super) struct Sizes(Vec<usize>);

impl Sizes {
    /// Of a node whose messages carry `payload` bytes at most.
    pub(super) fn up_to(payload: u32) -> Self {
        let shorter = PAYLOADS.into_iter().filter(|&other| other < payload);
        let all = std::iter::once(payload).chain(shorter);
        Self(all.map(|payload| HEADER_BYTES + payload as usize).collect())
    }

    /// Number `at` of them, if there are so many.
    pub(super) fn get(&self, at: usize) -> Option<usize> {
        self.0.get(at).copied()
    }

    pub(super) fn longest(&self) -> usize {
        self.0.first().copied().unwrap_or_default()
    }

    pub(super) fn shortest(&self) -> usize {
        self.0.last().copied().unwrap_or_default()
    }
}

/// The payload of messages of this length.
pub(super) fn payload_of(message: usize) -> u32 {
    message.saturating_sub(HEADER_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_set_is_tried_first_and_none_is_larger() {
        let of = |payload| {
            let sizes = Sizes::up_to(payload);
            assert_eq!(sizes.longest(), HEADER_BYTES + payload as usize);
            let all = (0..).map_while(|at| sizes.get(at)).map(payload_of);
            let all: Vec<_> = all.collect();
            assert_eq!(payload_of(sizes.shortest()), *all.last().unwrap());
            all
        };
        assert_eq!(of(PAGE_SIZE), PAYLOADS);
        assert_eq!(of(3000), [3000, 2048, 1368, 1024]);
        assert_eq!(of(1368), [1368, 1024]);
        assert_eq!(of(256), [256]);
    }
}
