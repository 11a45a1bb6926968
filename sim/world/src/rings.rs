//! The two event rings between card and driver, read for the checkers, word by word: which of them bounce pages belong to.
//! Kinds and words are those of chapter 6 of the ABI.

use crate::seen::Seen;
use netvm_abi::bar::BarMap;
use netvm_abi::event::EVENT_WORDS;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{BounceId, Geometry, NodeId, WordIndex};

/// Events of a card that give a bounce page to the driver.
const BOUNCED: u32 = 1;
const SOURCE_MISS: u32 = 2;
const ATOMIC_MISS: u32 = 9;
/// Events of a driver that give bounce pages back.
const BOUNCE_ENDED: u32 = 3;
const SOURCE_ANSWER: u32 = 4;
const PEER_RELEASED: u32 = 6;
const ATOMIC_ANSWER: u32 = 9;

/// The bounce page of a staging buffer.
fn of_source(geometry: &Geometry, word: u32) -> u32 {
    let replies = u32::from(geometry.nodes) * u32::from(geometry.window);
    replies + u32::from(geometry.reads) + (word & 0xFFFF)
}

/// Kind and first word of the event that was written last.
fn last(geometry: &Geometry, ring: WordIndex, written: u32, word: impl Fn(WordIndex) -> u32) -> [u32; 2] {
    let entry = written.wrapping_sub(1) % geometry.ring_entries();
    let at = ring.plus(entry * EVENT_WORDS as u32);
    [0, 1].map(|index| word(at.plus(index)))
}

/// What the card has told the driver in its last event, if it is about a bounce page.
pub(crate) fn from_card(
    node: NodeId,
    geometry: &Geometry,
    written: u32,
    word: impl Fn(WordIndex) -> u32,
) -> Option<Seen> {
    let bounce = match last(geometry, SharedMap::new(geometry).nic_events, written, word) {
        [BOUNCED | ATOMIC_MISS, bounce] => bounce,
        [SOURCE_MISS, staging] => of_source(geometry, staging),
        _ => return None,
    };
    Some(Seen::BounceGiven {
        node,
        bounce: BounceId(bounce),
    })
}

/// The same the other way.
pub(crate) fn from_driver(
    node: NodeId,
    geometry: &Geometry,
    written: u32,
    word: impl Fn(WordIndex) -> u32,
) -> Option<Seen> {
    let window = u32::from(geometry.window);
    let (first, count) = match last(geometry, BarMap::new(geometry).host_events, written, word) {
        [BOUNCE_ENDED | ATOMIC_ANSWER, bounce] => (bounce, 1),
        [SOURCE_ANSWER, staging] => (of_source(geometry, staging), 1),
        [PEER_RELEASED, peer] => (peer * window, window),
        _ => return None,
    };
    Some(Seen::BouncesEnded {
        node,
        first: BounceId(first),
        count,
    })
}
