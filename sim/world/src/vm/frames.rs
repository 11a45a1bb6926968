//! Page frames with real bytes, given out again at once: a stale access hits live data.

use netvm_abi::Ppn;

/// Bytes in a page.
pub(crate) const PAGE: usize = 4096;

/// The shared frame that untouched memory reads from. It must never be written.
pub(crate) const ZERO_PAGE: Ppn = Ppn(1);

struct Frame {
    /// Allocated with the frame's first use.
    bytes: Option<Box<[u8; PAGE]>>,
    /// How many page table entries name it.
    uses: u32,
}

/// The frames of one host, numbered from a base that no other host has, so that a number that
/// strays to another node is noticed.
pub(crate) struct Frames {
    first: Ppn,
    frames: Vec<Frame>,
    /// Last freed, first given: reuse at once is the hardest case for stale mappings.
    free: Vec<Ppn>,
    zero: Box<[u8; PAGE]>,
}

impl Frames {
    /// `count` free frames from `first` on.
    pub(crate) fn new(first: Ppn, count: usize) -> Self {
        let frames = (0..count).map(|_| Frame { bytes: None, uses: 0 }).collect();
        let free = (0..count as u64).rev().map(|n| Ppn(first.0 + n)).collect();
        Self {
            first,
            frames,
            free,
            zero: Box::new([0; PAGE]),
        }
    }

    /// Bytes of the frames that were ever used, and of their list.
    pub(super) fn bytes(&self) -> usize {
        let used = self.frames.iter().filter(|frame| frame.bytes.is_some()).count();
        (used + 1) * PAGE + self.frames.len() * (size_of::<Frame>() + size_of::<Ppn>())
    }

    fn frame(&self, ppn: Ppn) -> Option<&Frame> {
        self.frames
            .get(usize::try_from(ppn.0.checked_sub(self.first.0)?).ok()?)
    }

    fn frame_mut(&mut self, ppn: Ppn) -> Option<&mut Frame> {
        self.frames
            .get_mut(usize::try_from(ppn.0.checked_sub(self.first.0)?).ok()?)
    }

    /// A free frame, filled with junk as real ones are.
    pub(super) fn take(&mut self) -> Option<Ppn> {
        let ppn = self.free.pop()?;
        let frame = self.frame_mut(ppn)?;
        frame.uses = 1;
        frame.bytes.get_or_insert_with(|| Box::new([0xA5; PAGE]));
        Some(ppn)
    }

    pub(super) fn add_use(&mut self, ppn: Ppn) {
        if let Some(frame) = self.frame_mut(ppn) {
            frame.uses += 1;
        }
    }

    /// Drops a use; true when that freed the frame.
    pub(super) fn drop_use(&mut self, ppn: Ppn) -> bool {
        let Some(frame) = self.frame_mut(ppn) else {
            return false;
        };
        frame.uses = frame.uses.saturating_sub(1);
        let freed = frame.uses == 0;
        if freed {
            self.free.push(ppn);
        }
        freed
    }

    /// How many entries name this frame; zero for a free one and for one that is not ours.
    pub(crate) fn uses(&self, ppn: Ppn) -> u32 {
        self.frame(ppn).map_or(0, |frame| frame.uses)
    }

    /// Free frames.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// The bytes of a frame that was ever used.
    pub(crate) fn read(&self, ppn: Ppn) -> Option<&[u8; PAGE]> {
        if ppn == ZERO_PAGE {
            Some(&self.zero)
        } else {
            self.frame(ppn)?.bytes.as_deref()
        }
    }

    /// The bytes of a frame, to be changed. The zero page is included: the bus does not protect it,
    /// and the checkers must see what happens.
    pub(crate) fn write(&mut self, ppn: Ppn) -> Option<&mut [u8; PAGE]> {
        if ppn == ZERO_PAGE {
            Some(&mut self.zero)
        } else {
            self.frame_mut(ppn)?.bytes.as_deref_mut()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_frame_is_the_next_one_given() {
        let mut frames = Frames::new(Ppn(100), 3);
        let a = frames.take().unwrap();
        let _b = frames.take().unwrap();
        frames.add_use(a);
        assert!(!frames.drop_use(a));
        assert!(frames.drop_use(a));
        assert_eq!(frames.take(), Some(a));
        assert!(frames.read(Ppn(99)).is_none() && frames.read(Ppn(103)).is_none());
        assert_eq!(frames.uses(Ppn(5)), 0);
    }
}
