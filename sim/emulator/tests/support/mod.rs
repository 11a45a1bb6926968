//! A stand-in for host core and card: a table of mapped pages and DMAs that hold a page only while they copy.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use netvm_emulator::copy;
use netvm_emulator::vm::{Frame, FrameTable, PageEvents, PageKey, RegionId};

#[derive(Default)]
struct Entry {
    frame: Option<Frame>,
    writable: bool,
    dirty: bool,
    referenced: bool,
}

/// One lock stands for the page lock of every entry: a DMA copies while it holds it, so an unmap waits for it.
#[derive(Default)]
pub(crate) struct FakeCard {
    table: Mutex<HashMap<PageKey, Entry>>,
    frames: OnceLock<Arc<FrameTable>>,
    /// It learns of a page as soon as the application faults it in.
    told_of_faults: bool,
    noted: Mutex<HashSet<RegionId>>,
}

impl FakeCard {
    pub(crate) fn new(told_of_faults: bool) -> Self {
        Self {
            told_of_faults,
            ..Self::default()
        }
    }

    /// Gets the pager's frame table, before it maps a page.
    pub(crate) fn attach(&self, frames: &Arc<FrameTable>) {
        assert!(self.frames.set(Arc::clone(frames)).is_ok(), "attached twice");
    }

    /// Notes something under a new region's number; false if there is a note of an earlier region's.
    pub(crate) fn note(&self, region: RegionId) -> bool {
        self.noted.lock().unwrap().insert(region)
    }

    /// Whether the note is still there.
    pub(crate) fn has_note(&self, region: RegionId) -> bool {
        self.noted.lock().unwrap().contains(&region)
    }

    pub(crate) fn map(&self, frames: &FrameTable, key: PageKey, frame: Frame, writable: bool) {
        let mut table = self.table.lock().unwrap();
        frames.set_mapped(frame);
        let entry = table.entry(key).or_default();
        entry.frame = Some(frame);
        entry.writable = writable;
    }

    pub(crate) fn is_mapped(&self, key: PageKey) -> bool {
        self.table
            .lock()
            .unwrap()
            .get(&key)
            .is_some_and(|entry| entry.frame.is_some())
    }

    /// Writes a word by "DMA" if the page is mapped and writable.
    pub(crate) fn write(&self, frames: &FrameTable, key: PageKey, offset: usize, value: u64) -> bool {
        let mut table = self.table.lock().unwrap();
        let Some(entry) = table.get_mut(&key).filter(|entry| entry.writable) else {
            return false;
        };
        let Some(frame) = entry.frame else { return false };
        let ticket = frames.begin_dma(frame).unwrap_or_else(|stale| panic!("{stale}"));
        // SAFETY: the ticket's page is mapped while the table is locked; the offset lies in it.
        unsafe { copy::copy_in(&value.to_ne_bytes(), ticket.alias().add(offset)) };
        frames.end_dma(&ticket).unwrap_or_else(|stale| panic!("{stale}"));
        entry.dirty = true;
        entry.referenced = true;
        true
    }

    /// Reads a word by "DMA" if the page is mapped.
    pub(crate) fn read(&self, frames: &FrameTable, key: PageKey, offset: usize) -> Option<u64> {
        let mut table = self.table.lock().unwrap();
        let entry = table.get_mut(&key)?;
        let ticket = frames
            .begin_dma(entry.frame?)
            .unwrap_or_else(|stale| panic!("{stale}"));
        let mut bytes = [0; 8];
        // SAFETY: as above.
        unsafe { copy::copy_out(ticket.alias().add(offset), &mut bytes) };
        frames.end_dma(&ticket).unwrap_or_else(|stale| panic!("{stale}"));
        entry.referenced = true;
        Some(u64::from_ne_bytes(bytes))
    }
}

impl PageEvents for FakeCard {
    fn resident(&self, key: PageKey, frame: Frame, writable: bool) {
        if let Some(frames) = self.frames.get().filter(|_| self.told_of_faults) {
            self.map(frames, key, frame, writable);
        }
    }

    fn unmap(&self, key: PageKey, frame: Frame) {
        let entry = self.table.lock().unwrap().remove(&key).unwrap_or_default();
        assert!(
            entry.frame.is_none_or(|mapped| mapped == frame),
            "mapped in {:?}, taken from {frame:?}",
            entry.frame
        );
        if entry.dirty {
            self.frames.get().expect("attached").mark_dirty(frame);
        }
    }

    fn take_referenced(&self, key: PageKey, _frame: Frame) -> bool {
        self.table
            .lock()
            .unwrap()
            .get_mut(&key)
            .is_some_and(|entry| std::mem::take(&mut entry.referenced))
    }

    fn region_removed(&self, region: RegionId) {
        self.noted.lock().unwrap().remove(&region);
    }
}
