//! What a card has counted, for its driver to read: a table in NIC memory that names its own entries, so that a driver need
//! not know the firmware's counters.
//!
//! ```text
//! word 0: entries    words 1..8: 0    then each entry: name, 32 bytes of UTF-8, zeros behind | value, 64 bits
//! ```
//!
//! The card stores names once, before the number of entries, and values when it has time. A value's two words are not
//! stored as one: [`read`] looks again when the upper one has moved.

use crate::bar::PAGE_WORDS;
use crate::units::WordIndex;
use crate::words::SharedWords;

/// Bytes of a name, zeros behind it included.
pub const NAME_BYTES: usize = 32;
const NAME_WORDS: u32 = NAME_BYTES as u32 / 4;
/// Words of an entry.
pub const ENTRY_WORDS: u32 = NAME_WORDS + 2;
/// Words before the first entry.
pub const FIRST_ENTRY: u32 = 8;
/// Words of the table.
pub const TABLE_WORDS: u32 = 2 * PAGE_WORDS;
/// The most entries.
pub const ENTRIES: u32 = (TABLE_WORDS - FIRST_ENTRY) / ENTRY_WORDS;

const fn entry(table: WordIndex, index: u32) -> WordIndex {
    table.plus(FIRST_ENTRY + index * ENTRY_WORDS)
}

/// Stores the names and tells how many there are; those past [`ENTRIES`] are left out. Values are zero until
/// [`publish_values`]. Card's side, once.
pub fn publish_names<'a>(
    words: &(impl SharedWords + ?Sized),
    table: WordIndex,
    names: impl Iterator<Item = &'a str>,
) {
    let mut count = 0;
    for (index, name) in (0..ENTRIES).zip(names) {
        let mut text = name.bytes();
        for word in 0..NAME_WORDS {
            let bytes: [u8; 4] = core::array::from_fn(|_| text.next().unwrap_or(0));
            words.store_release(entry(table, index).plus(word), u32::from_le_bytes(bytes));
        }
        count = index + 1;
    }
    words.store_release(table, count);
}

/// Stores the values, in the order of the names. Card's side.
pub fn publish_values(
    words: &(impl SharedWords + ?Sized),
    table: WordIndex,
    values: impl Iterator<Item = u64>,
) {
    for (index, value) in (0..ENTRIES).zip(values) {
        let at = entry(table, index).plus(NAME_WORDS);
        words.store_release(at, value as u32);
        words.store_release(at.plus(1), (value >> 32) as u32);
    }
}

/// How many entries a table has: none where the card is gone. Driver's side; nothing that stands there is believed.
pub fn entries(words: &(impl SharedWords + ?Sized), table: WordIndex) -> u32 {
    match words.load_acquire(table) {
        u32::MAX => 0,
        count => count.min(ENTRIES),
    }
}

/// An entry: its name, zeros behind it, and its value. Driver's side.
pub fn read(words: &(impl SharedWords + ?Sized), table: WordIndex, index: u32) -> ([u8; NAME_BYTES], u64) {
    let at = entry(table, index);
    let mut name = [0; NAME_BYTES];
    for (word, bytes) in (0..).zip(name.chunks_exact_mut(4)) {
        bytes.copy_from_slice(&words.load_acquire(at.plus(word)).to_le_bytes());
    }
    let (low, high) = (at.plus(NAME_WORDS), at.plus(NAME_WORDS + 1));
    let before = words.load_acquire(high);
    let mut value = words.load_acquire(low);
    let after = words.load_acquire(high);
    if before != after {
        // It went past 2^32 meanwhile, and will not do so again soon.
        value = words.load_acquire(low);
    }
    (name, u64::from(after) << 32 | u64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    fn memory() -> [AtomicU32; TABLE_WORDS as usize] {
        [const { AtomicU32::new(0) }; TABLE_WORDS as usize]
    }

    fn name(bytes: &[u8; NAME_BYTES]) -> &str {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        core::str::from_utf8(&bytes[..end]).unwrap()
    }

    #[test]
    fn what_was_counted_is_read_by_name() {
        let memory = memory();
        let table = WordIndex(0);
        publish_names(
            &memory,
            table,
            ["frames", "a_name_that_is_too_long_for_an_entry"].into_iter(),
        );
        publish_values(&memory, table, [7 << 32 | 5, u64::MAX].into_iter());
        assert_eq!(entries(&memory, table), 2);
        let first = read(&memory, table, 0);
        assert_eq!((name(&first.0), first.1), ("frames", 7 << 32 | 5));
        let second = read(&memory, table, 1);
        assert_eq!(
            (name(&second.0), second.1),
            ("a_name_that_is_too_long_for_an_e", u64::MAX)
        );
    }

    #[test]
    fn a_count_that_cannot_be_is_cut_and_a_card_that_is_gone_has_none() {
        let memory = memory();
        memory.store_release(WordIndex(0), 1_000_000);
        assert_eq!(entries(&memory, WordIndex(0)), ENTRIES);
        memory.store_release(WordIndex(0), u32::MAX);
        assert_eq!(entries(&memory, WordIndex(0)), 0);
        assert_eq!(entries(&memory, WordIndex(TABLE_WORDS)), 0);
    }

    #[test]
    fn more_names_than_entries_stay_inside_of_the_table() {
        let memory = memory();
        publish_names(&memory, WordIndex(0), core::iter::repeat_n("x", 1000));
        publish_values(&memory, WordIndex(0), core::iter::repeat_n(3, 1000));
        assert_eq!(entries(&memory, WordIndex(0)), ENTRIES);
    }
}
