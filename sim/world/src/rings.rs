//! The two event rings between card and driver, read for the checkers, word by word: which of them bounce pages belong to.
//! Kinds and words are those of chapter 6 of the ABI.

use crate::seen::Seen;
use netvm_abi::bar::BarMap;
use netvm_abi::bounce::BounceUse;
use netvm_abi::event::EVENT_WORDS;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::RawHeader;
use netvm_abi::{BounceId, Geometry, NodeId, StagingId, WordIndex};

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
fn of_source(geometry: &Geometry, word: u32) -> BounceId {
    BounceUse::Source(StagingId(word as u16)).id(geometry)
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
    let map = SharedMap::new(geometry);
    let (bounce, from) = match last(geometry, map.nic_events, written, &word) {
        [BOUNCED | ATOMIC_MISS, bounce] => {
            let bounce = BounceId(bounce);
            let record = map.bounce_record(bounce);
            let head = std::array::from_fn(|index| word(record.plus(index as u32)));
            (bounce, RawHeader::of(&head).ok()?.source())
        }
        [SOURCE_MISS, staging] => (of_source(geometry, staging), node),
        _ => return None,
    };
    Some(Seen::BounceGiven { node, bounce, from })
}

/// The same the other way.
pub(crate) fn from_driver(
    node: NodeId,
    geometry: &Geometry,
    written: u32,
    word: impl Fn(WordIndex) -> u32,
) -> Option<Seen> {
    let bounce = match last(geometry, BarMap::new(geometry).host_events, written, word) {
        [BOUNCE_ENDED | ATOMIC_ANSWER, bounce] => BounceId(bounce),
        [SOURCE_ANSWER, staging] => of_source(geometry, staging),
        [PEER_RELEASED, peer] => {
            let from = NodeId(peer as u16);
            return Some(Seen::MessagesEnded { node, from });
        }
        _ => return None,
    };
    Some(Seen::BounceEnded { node, bounce })
}
