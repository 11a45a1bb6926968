//! The swap file: an unlinked temporary file and an allocator of page-sized slots.
//!
//! The kernel reads and writes only buffers of the pager's own: an ordinary user's userfaultfd does not serve faults that the
//! kernel takes, so a `pread` into exported memory would fail there with EFAULT.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::PAGE_SIZE;

/// A page's place in the swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A swap file with its slots.
#[derive(Debug)]
pub struct Swap {
    file: OwnedFd,
    /// The lowest first, so that pages that leave together lie side by side.
    free: BinaryHeap<Reverse<Slot>>,
    /// Slots ever used: the file is this many pages long.
    used: u32,
}

impl Swap {
    /// Makes an empty swap file in `directory` that vanishes with this value.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new(directory: &Path) -> Result<Self, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::open(directory, flags, mode) {
            // Not every file system has O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::open_and_unlink(directory)?,
            other => other?,
        };
        Ok(Self {
            file,
            free: BinaryHeap::new(),
            used: 0,
        })
    }

    fn open_and_unlink(directory: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for attempt in 0..1000u32 {
            let path = directory.join(format!("netvm-swap-{}-{attempt}", std::process::id()));
            match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
                Ok(file) => {
                    rustix::fs::unlink(&path)?;
                    return Ok(file);
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Writes pages to their slots, or to new ones where they have none, and says where they are: one call for those whose slots
    /// follow each other.
    ///
    /// # Errors
    /// The kernel's refusal, for example a full disk; new slots are given back then, and what the others hold is void.
    pub fn write(&mut self, slots: &[Option<Slot>], pages: &[[u8; PAGE_SIZE]]) -> Result<Vec<Slot>, Errno> {
        let mut places = Vec::with_capacity(slots.len());
        for slot in slots {
            match slot.map_or_else(|| self.new_slot(), Ok) {
                Ok(place) => places.push(place),
                Err(errno) => return self.give_up(slots, &places, errno),
            }
        }
        let mut rest = pages;
        for run in places.chunk_by(|a, b| a.0.checked_add(1) == Some(b.0)) {
            let (Some(first), Some((now, later))) = (run.first(), rest.split_at_checked(run.len())) else {
                return self.give_up(slots, &places, Errno::INVAL);
            };
            if let Err(errno) = self.write_run(*first, now.as_flattened()) {
                return self.give_up(slots, &places, errno);
            }
            rest = later;
        }
        Ok(places)
    }

    fn new_slot(&mut self) -> Result<Slot, Errno> {
        if let Some(Reverse(slot)) = self.free.pop() {
            return Ok(slot);
        }
        let next = self.used;
        self.used = next.checked_add(1).ok_or(Errno::NOSPC)?;
        Ok(Slot(next))
    }

    fn write_run(&self, first: Slot, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.file, rest, offset(first) + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn give_up(
        &mut self,
        before: &[Option<Slot>],
        places: &[Slot],
        errno: Errno,
    ) -> Result<Vec<Slot>, Errno> {
        for (before, place) in before.iter().zip(places) {
            if before.is_none() {
                self.free.push(Reverse(*place));
            }
        }
        Err(errno)
    }

    /// Reads pages back from `first` and the slots that follow it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn read(&self, first: Slot, pages: &mut [[u8; PAGE_SIZE]]) -> Result<(), Errno> {
        let bytes = pages.as_flattened_mut();
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.file, rest, offset(first) + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives a slot back; its contents are lost.
    pub fn free(&mut self, slot: Slot) {
        self.free.push(Reverse(slot));
    }

    /// Slots that hold a page.
    #[must_use]
    pub fn slots_in_use(&self) -> u32 {
        self.used.saturating_sub(self.free.len() as u32)
    }
}

fn offset(slot: Slot) -> u64 {
    u64::from(slot.0) * PAGE_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Against a model: what was last written to a slot is read back, alone and with the slots behind it, and no slot
        /// belongs to two pages.
        #[test]
        fn slots_keep_their_pages(steps in proptest::collection::vec((0u8..3, 0u8..8, any::<u8>(), 1u8..5), 1..200)) {
            let mut swap = Swap::new(&std::env::temp_dir()).unwrap();
            let mut model: HashMap<u8, (Slot, u8)> = HashMap::new();
            for (what, who, fill, run) in steps {
                let whom = who..who + run;
                match what {
                    0 => {
                        let before: Vec<_> = whom.clone().map(|who| model.get(&who).map(|known| known.0)).collect();
                        let pages: Vec<_> = whom.clone().map(|who| [fill ^ who; PAGE_SIZE]).collect();
                        let slots = swap.write(&before, &pages).unwrap();
                        for (who, slot) in whom.zip(slots) {
                            prop_assert!(model.iter().all(|(other, known)| *other == who || known.0 != slot));
                            model.insert(who, (slot, fill ^ who));
                        }
                    }
                    1 => if let Some((slot, _)) = model.get(&who) {
                        let by_slot: HashMap<Slot, u8> = model.values().copied().collect();
                        let follows = |next: &u32| by_slot.contains_key(&Slot(slot.0 + next));
                        let run = (0..u32::from(run)).take_while(follows).count();
                        let mut pages = vec![[0; PAGE_SIZE]; run];
                        swap.read(*slot, &mut pages).unwrap();
                        for (at, page) in pages.iter().enumerate() {
                            let fill = by_slot[&Slot(slot.0 + at as u32)];
                            prop_assert!(page.iter().all(|byte| *byte == fill));
                        }
                    },
                    _ => if let Some((slot, _)) = model.remove(&who) {
                        swap.free(slot);
                    },
                }
                prop_assert_eq!(swap.slots_in_use() as usize, model.len());
            }
        }
    }
}
