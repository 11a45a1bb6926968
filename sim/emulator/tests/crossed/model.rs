//! What an exporter has after each operation, if they were done one by one.

use crate::op::{At, Name, PART, REGION};
use netvm::{Error, Modes};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Event counts and one-shot numbers that the exports allow.
const COUNTS: Range<u32> = 1..21;
const LETTERS: Range<u32> = 1024..3001;

impl Name {
    /// Where it begins in the region, and ends.
    pub(crate) const fn range(self) -> Range<u64> {
        match self {
            Self::Part => PART,
            _ => 0..REGION,
        }
    }

    const fn modes(self) -> Modes {
        match self {
            Self::All | Self::Letters => Modes::READ.union(Modes::WRITE).union(Modes::ATOMIC),
            Self::Read => Modes::READ,
            Self::Part => Modes::READ.union(Modes::WRITE),
            Self::Words => Modes::ATOMIC,
            Self::Mine => Modes::WRITE,
        }
    }

    const fn numbers(self) -> Option<Range<u32>> {
        match self {
            Self::All | Self::Words => Some(COUNTS),
            Self::Letters => Some(LETTERS),
            _ => None,
        }
    }
}

impl At {
    /// The bytes of the region that are meant, if they are in the export.
    pub(crate) fn bytes(self, len: u64) -> Option<Range<usize>> {
        let export = self.name.range();
        let end = self.offset.checked_add(len)?;
        let bytes = || (export.start + self.offset) as usize..(export.start + end) as usize;
        (end <= export.end - export.start).then(bytes)
    }

    /// Why this is refused, if it is: any of these reasons may be told.
    pub(crate) fn refusals(self, len: u64, mode: Modes, notify: Option<u32>) -> Vec<fn(&Error) -> bool> {
        let mut reasons: Vec<fn(&Error) -> bool> = Vec::new();
        if self.bytes(len).is_none() {
            reasons.push(|error| matches!(error, Error::OutOfRange { .. }));
        }
        if len > 0 && !self.name.modes().contains(mode) {
            reasons
                .push(|error| matches!(error, Error::ModeRefused { needed, .. } if *needed != Modes::NOTIFY));
        }
        match (notify, self.name.numbers()) {
            (Some(_), None) => reasons
                .push(|error| matches!(error, Error::ModeRefused { needed, .. } if *needed == Modes::NOTIFY)),
            (Some(id), Some(numbers)) if !numbers.contains(&id) => {
                reasons.push(|error| matches!(error, Error::NotificationRefused { .. }));
            }
            _ => {}
        }
        reasons
    }
}

/// An exporter.
pub(crate) struct Model {
    pub(crate) bytes: Vec<u8>,
    pub(crate) counts: BTreeMap<u32, u32>,
    pub(crate) letters: VecDeque<u32>,
    pub(crate) queue: VecDeque<Vec<u8>>,
    /// Written since all has settled: whether it has landed is not known.
    loose: Vec<Range<usize>>,
    /// Read since then.
    being_read: Vec<Range<usize>>,
}

fn meets(all: &[Range<usize>], one: &Range<usize>) -> bool {
    all.iter()
        .any(|other| other.start < one.end && one.start < other.end)
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; REGION as usize],
            counts: BTreeMap::new(),
            letters: VecDeque::new(),
            queue: VecDeque::new(),
            loose: Vec::new(),
            being_read: Vec::new(),
        }
    }

    /// Whether what is under way decides what a write there leaves behind.
    pub(crate) fn write_races(&self, range: &Range<usize>) -> bool {
        meets(&self.loose, range) || meets(&self.being_read, range)
    }

    /// Whether what is under way decides what a read there finds.
    pub(crate) fn read_races(&self, range: &Range<usize>) -> bool {
        meets(&self.loose, range)
    }

    pub(crate) fn write(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.loose.push(range);
    }

    pub(crate) fn read(&mut self, range: Range<usize>) -> Vec<u8> {
        self.being_read.push(range.clone());
        self.bytes[range].to_vec()
    }

    pub(crate) fn signal(&mut self, id: u32) {
        if COUNTS.contains(&id) {
            *self.counts.entry(id).or_default() += 1;
        } else {
            self.letters.push_back(id);
        }
    }

    /// All has landed.
    pub(crate) fn settle(&mut self) {
        self.loose.clear();
        self.being_read.clear();
    }

    /// Whether nothing is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.loose.is_empty() && self.being_read.is_empty()
    }
}
