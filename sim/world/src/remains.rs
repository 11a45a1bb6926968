//! What is left of ports and processes in a node's words: read as a checker reads them, word by word.

use crate::node::Node;
use crate::words::{Side, Space};
use netvm_abi::bar::{BarMap, port as block};
use netvm_abi::capability::CAPABILITY_WORDS;
use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::page_table::{PageTable, ROW_SLOTS, SLOT_WORDS};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{PortId, Vpn, WordIndex, port_area};

impl Node {
    /// What the words of a port that has just been opened tell of its last owner. Counts begin at `counts_from`.
    pub(crate) fn left_over(&self, port: PortId, counts_from: u32) -> Option<&'static str> {
        let words = self.words();
        // The driver has cleared them, but that is under way; or its stores find no card any more.
        if !words.has_landed(Side::Host) || self.card_gone.get() {
            return None;
        }
        let block_at = BarMap::new(&self.geometry).port(port);
        let area_at = SharedMap::new(&self.geometry).port_area(port);
        // Those that count from where the driver says; all others from 0.
        let counts = [
            block::DOORBELL,
            block::WRITE_FENCE,
            block::READ_FENCE,
            block::TAKEN_FENCE,
        ];
        let fresh = |word: u32| match counts.contains(&WordIndex(word)) {
            true => counts_from,
            false => 0,
        };
        let block = |first: WordIndex, count| {
            let mut words_of = first.0..first.0 + count;
            words_of.any(|word| words.peek(Space::Bar, block_at.plus(word)) != fresh(word))
        };
        let area_has_not = |first: WordIndex, count, fresh| {
            let mut words_of = first.0..first.0 + count;
            words_of.any(|word| words.peek(Space::Shared, area_at.plus(word)) != fresh)
        };
        let area = |first, count| area_has_not(first, count, 0);
        let replies = port_area::REPLY_WORDS as u32 * u32::from(port_area::REPLY_SLOTS);
        [
            ("doorbell, or a fence", block(block::DOORBELL, 8)),
            ("interrupt enable", block(block::INTERRUPT_ENABLE, 32)),
            ("signal count", block(block::SIGNALLED, EVENT_COUNTS)),
            (
                "count of operations",
                area_has_not(port_area::TAKEN, 3, counts_from),
            ),
            ("queue or error ring", area(port_area::NOTIFICATION_WRITE, 3)),
            ("reply", area(port_area::REPLIES, replies)),
            ("signal", area(port_area::SHADOW_SIGNALS, EVENT_COUNTS)),
            (
                "queue record",
                area(port_area::QUEUE_RECORDS, 2 * port_area::RECORDS_OF_QUEUE),
            ),
        ]
        .into_iter()
        .find_map(|(what, found)| found.then_some(what))
    }

    /// Capabilities of the card's table that are valid, and page slots that are, or are locked.
    pub(crate) fn armed(&self) -> [u32; 2] {
        let (words, bar) = (self.words(), BarMap::new(&self.geometry));
        let word = |at: WordIndex| words.peek(Space::Bar, at);
        let capabilities = (0..self.geometry.capabilities)
            .filter(|slot| word(bar.capabilities.plus(slot * CAPABILITY_WORDS as u32)) != 0);
        let slots = self.geometry.page_rows * ROW_SLOTS;
        let pages = (0..slots).filter(|slot| {
            let at = bar.page_table.plus(slot * SLOT_WORDS);
            word(at) & 1 != 0 || word(at.plus(1)) & 0xFF != 0
        });
        [capabilities.count() as u32, pages.count() as u32]
    }

    /// Pages of a port that the card's table still maps.
    pub(crate) fn still_mapped(&self, table: &PageTable, port: PortId) -> Option<u64> {
        // What a card says that is off the bus does not matter any more.
        if self.card_gone.get() {
            return None;
        }
        let words = self.words();
        let base = BarMap::new(&self.geometry).page_table;
        let slots = table.rows() * ROW_SLOTS;
        (0..slots).find_map(|slot| {
            let at = base.plus(slot * SLOT_WORDS);
            let word = |index| words.peek(Space::Bar, at.plus(index));
            let vpn = Vpn::from_raw(u64::from(word(2)) | u64::from(word(3)) << 32);
            (word(0) & 1 == 1 && vpn.port() == port).then(|| vpn.page_number())
        })
    }
}
