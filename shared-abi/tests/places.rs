//! A page is found in each of its places, and only there; whether words are plain atomics or not.

use netvm_abi::page_lock::{self, LockState, Miss, Used};
use netvm_abi::page_table::{HashKey, PLACES, PageEntry, PageSlot, PageTable, ROW_WORDS};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicU32;

const WORDS: u32 = 64 * ROW_WORDS;

fn entry(vpn: Vpn, writable: bool) -> PageEntry {
    PageEntry {
        vpn,
        ppn: Ppn(vpn.raw() >> 7),
        segment: SegmentId(9),
        writable,
    }
}

/// Puts `vpn` at `at`, looks it up and lets it go.
fn visit<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    vpn: Vpn,
    at: PageSlot,
) -> Result<(), TestCaseError> {
    page_lock::publish(bar, table, at, &entry(vpn, false));
    prop_assert_eq!(
        page_lock::lock_page(bar, table, vpn, true),
        Err(Miss::NotWritable)
    );
    prop_assert_eq!(page_lock::lock_state(bar, table, at), LockState::Free);
    let read = page_lock::lock_page(bar, table, vpn, false);
    prop_assert_eq!(
        read.map(|page| (page.slot, page.ppn)),
        Ok((at, Ppn(vpn.raw() >> 7)))
    );
    prop_assert_eq!(page_lock::lock_state(bar, table, at), LockState::Locked);
    page_lock::unlock_page(bar, table, at, Used::Read);
    page_lock::retract(bar, table, at);
    prop_assert_eq!(page_lock::lock_page(bar, table, vpn, false), Err(Miss::NotFound));
    prop_assert_eq!(page_lock::lock_state(bar, table, at), LockState::Free);
    Ok(())
}

proptest! {
    #[test]
    fn a_page_is_found_in_each_place(key: [u64; 2], rows in 0..7_u32, vpn: u64, place in 0..PLACES as usize) {
        let bar: Vec<AtomicU32> = (0..WORDS).map(|_| AtomicU32::new(0)).collect();
        let table = PageTable::new(WordIndex(0), 1 << rows, HashKey(key));
        let vpn = Vpn::from_raw(vpn);
        let at = table.places(vpn)[place];
        prop_assert!(table.slot_at(at).0 < table.rows() * ROW_WORDS);
        visit(&bar[..], &table, vpn, at)?;
        visit(&Part::new(&bar[..], WordIndex(0), WORDS), &table, vpn, at)?;
    }

    /// Two pages of one row whose lower halves agree: the hint does not tell them apart, the key does.
    #[test]
    fn half_a_key_is_only_a_hint(key: [u64; 2], low: u32, one: u32, other: u32) {
        prop_assume!(one != other);
        let bar: Vec<AtomicU32> = (0..ROW_WORDS).map(|_| AtomicU32::new(0)).collect();
        let table = PageTable::new(WordIndex(0), 1, HashKey(key));
        let vpn = |high: u32| Vpn::from_raw(u64::from(high) << 32 | u64::from(low));
        for (index, high) in [(0, one), (1, other)] {
            page_lock::publish(&bar[..], &table, PageSlot::new(0, index), &entry(vpn(high), true));
        }
        for (index, high) in [(0, one), (1, other)] {
            let page = page_lock::lock_page(&bar[..], &table, vpn(high), true);
            prop_assert_eq!(page.map(|page| page.slot), Ok(PageSlot::new(0, index)));
        }
        prop_assert_eq!(page_lock::lock_state(&bar[..], &table, PageSlot::new(0, 0)), LockState::Locked);
    }
}
