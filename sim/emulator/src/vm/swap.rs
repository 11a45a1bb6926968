//! The swap file: an unlinked temporary file and an allocator of page-sized slots.
//!
//! The kernel reads and writes only buffers of the pager's own: an ordinary user's userfaultfd does not serve faults that the
//! kernel takes, so a `pread` into exported memory would fail there with EFAULT.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::PAGE_SIZE;

/// A page's place in the swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// A swap file with its slots.
#[derive(Debug)]
pub struct Swap {
    file: OwnedFd,
    free: Vec<Slot>,
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
            free: Vec::new(),
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

    /// Writes a page to `slot`, or to a new slot, and says where it is.
    ///
    /// # Errors
    /// The kernel's refusal, for example a full disk; a new slot is given back then.
    pub fn write(&mut self, slot: Option<Slot>, page: &[u8; PAGE_SIZE]) -> Result<Slot, Errno> {
        let place = match slot.or_else(|| self.free.pop()) {
            Some(place) => place,
            None => {
                let next = self.used;
                self.used = next.checked_add(1).ok_or(Errno::NOSPC)?;
                Slot(next)
            }
        };
        let mut done = 0;
        while let Some(rest) = page.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.file, rest, offset(place) + done as u64) {
                Ok(0) => return self.give_up(slot, place, Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return self.give_up(slot, place, errno),
            }
        }
        Ok(place)
    }

    fn give_up(&mut self, before: Option<Slot>, place: Slot, errno: Errno) -> Result<Slot, Errno> {
        if before.is_none() {
            self.free.push(place);
        }
        Err(errno)
    }

    /// Reads a page back.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn read(&self, slot: Slot, page: &mut [u8; PAGE_SIZE]) -> Result<(), Errno> {
        let mut done = 0;
        while let Some(rest) = page.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.file, rest, offset(slot) + done as u64) {
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
        self.free.push(slot);
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

        /// Against a model: what was last written to a slot is read back, and no slot belongs to two pages.
        #[test]
        fn slots_keep_their_pages(steps in proptest::collection::vec((0u8..3, 0u8..8, any::<u8>()), 1..200)) {
            let mut swap = Swap::new(&std::env::temp_dir()).unwrap();
            let mut model: HashMap<u8, (Slot, u8)> = HashMap::new();
            for (what, who, fill) in steps {
                match what {
                    0 => {
                        let slot = swap.write(model.get(&who).map(|known| known.0), &[fill; PAGE_SIZE]).unwrap();
                        prop_assert!(model.iter().all(|(other, known)| *other == who || known.0 != slot));
                        model.insert(who, (slot, fill));
                    }
                    1 => if let Some((slot, fill)) = model.get(&who) {
                        let mut page = [0; PAGE_SIZE];
                        swap.read(*slot, &mut page).unwrap();
                        prop_assert!(page.iter().all(|byte| byte == fill));
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
