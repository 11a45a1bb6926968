//! Two pieces of memory as one: ordinary memory, and behind it a file.

use super::PAGE;
use netvm::{NodeId, Port, Region, RegionSlice, RemoteSegment, Word64};

use crate::demo::receiver::{ARRIVED, Inbox};
use crate::demo::sender::Target;

/// How much of what may be in memory is ordinary memory: half of it, in whole pages.
pub(super) fn split_at(resident_bytes: u64) -> u64 {
    (resident_bytes / 2 / PAGE).max(1) * PAGE
}

/// Cuts a range at the split: what of it lies before, and how much behind.
fn cut(split: u64, offset: u64, len: u64) -> (u64, u64) {
    let before = split.saturating_sub(offset).min(len);
    (before, len - before)
}

/// As its process has it.
pub(super) struct Split {
    ordinary: Region,
    file: Region,
}

impl Split {
    pub(super) fn new(ordinary: Region, file: Region) -> Self {
        Self { ordinary, file }
    }
}

impl Inbox for Split {
    fn len(&self) -> u64 {
        self.ordinary.len() + self.file.len()
    }

    fn read_into(&self, offset: u64, into: &mut [u8]) -> netvm::Result<()> {
        let split = self.ordinary.len();
        let (before, behind) = cut(split, offset, into.len() as u64);
        let (first, second) = into.split_at_mut(before as usize);
        if before > 0 {
            self.ordinary.read_into(offset, first)?;
        }
        if behind > 0 {
            self.file.read_into(offset + before - split, second)?;
        }
        Ok(())
    }

    fn write_from(&self, offset: u64, from: &[u8]) -> netvm::Result<()> {
        let split = self.ordinary.len();
        let (before, behind) = cut(split, offset, from.len() as u64);
        let (first, second) = from.split_at(before as usize);
        if before > 0 {
            self.ordinary.write_from(offset, first)?;
        }
        if behind > 0 {
            self.file.write_from(offset + before - split, second)?;
        }
        Ok(())
    }

    fn word64(&self, offset: u64) -> netvm::Result<Word64> {
        match offset.checked_sub(self.ordinary.len()) {
            None => self.ordinary.word64(offset),
            Some(offset) => self.file.word64(offset),
        }
    }
}

/// As another node reaches it.
pub(super) struct RemoteSplit {
    ordinary: RemoteSegment,
    file: RemoteSegment,
    split: u64,
}

impl RemoteSplit {
    pub(super) fn new(ordinary: RemoteSegment, file: RemoteSegment, split: u64) -> Self {
        Self {
            ordinary,
            file,
            split,
        }
    }

    /// Writes a word of each page of the ordinary memory, so that its card has them from then on.
    pub(super) fn use_ordinary(&self, port: &Port, peer: NodeId) -> netvm::Result<()> {
        for offset in (0..self.split).step_by(PAGE as usize) {
            self.ordinary.write(offset, &[0xA5; 8][..]).post()?;
        }
        port.flush_remote(peer)
    }
}

impl Target for RemoteSplit {
    fn write(&self, offset: u64, from: &Region, at: u64, len: u64) -> netvm::Result<()> {
        let (before, behind) = cut(self.split, offset, len);
        let middle = at + before;
        if before > 0 {
            let write = self.ordinary.write(offset, from.slice(at..middle)?);
            // The notification comes with the last part.
            match behind {
                0 => write.notify(ARRIVED).post()?,
                _ => write.post()?,
            };
        }
        if behind > 0 {
            let write = self
                .file
                .write(offset + before - self.split, from.slice(middle..at + len)?);
            write.notify(ARRIVED).post()?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, into: RegionSlice) -> netvm::Result<()> {
        let (before, behind) = cut(self.split, offset, into.len());
        let (region, at, end) = (into.region(), into.offset(), into.offset() + into.len());
        let middle = at + before;
        if before > 0 {
            let read = self.ordinary.read(offset, region.slice(at..middle)?);
            read.fenced().post()?;
        }
        if behind > 0 {
            let read = self
                .file
                .read(offset + before - self.split, region.slice(middle..end)?);
            read.fenced().post()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_split() {
        for (offset, cut_at) in [(0, (4, 0)), (6, (4, 0)), (7, (3, 1)), (10, (0, 4)), (20, (0, 4))] {
            assert_eq!(cut(10, offset, 4), cut_at, "{offset}");
        }
        assert_eq!(cut(2, 0, 10), (2, 8));
    }

    #[test]
    fn the_ordinary_half_is_in_whole_pages() {
        assert_eq!(split_at(64 << 20), 32 << 20);
        assert_eq!(split_at(3 * 4096), 4096);
        assert_eq!(split_at(1), 4096);
    }
}
