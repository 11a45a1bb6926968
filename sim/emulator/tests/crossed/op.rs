//! What may be done, with all options, and how sequences of it are made.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Bytes of an exporter's region.
pub(crate) const REGION: u64 = 4 * 4096;
/// The range of the export that begins and ends anywhere.
pub(crate) const PART: std::ops::Range<u64> = 100..9001;

/// The exports of a region, each with other rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Everything, and event counts.
    All,
    /// Everything, and one-shot notifications.
    Letters,
    /// Reads.
    Read,
    /// Reads and writes of a part.
    Part,
    /// Atomics, and event counts.
    Words,
    /// Writes, for the one port that uses it.
    Mine,
}

impl Name {
    pub(crate) const EVERY: [Self; 6] = [
        Self::All,
        Self::Letters,
        Self::Read,
        Self::Part,
        Self::Words,
        Self::Mine,
    ];
}

/// A place in an export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// Of the node that asks, or of another one.
    pub(crate) own: bool,
    pub(crate) name: Name,
    pub(crate) offset: u64,
}

/// Where bytes come from, or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Any memory.
    Bytes,
    /// A slice of a region, that begins so many bytes into a page.
    Slice(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Four,
    Eight,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Add,
    Exchange,
    /// If the word is as the model says, or is not.
    ExchangeIf(bool),
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Write {
        at: At,
        len: u64,
        from: Place,
        ordered: bool,
        regardless: bool,
        fenced: bool,
        notify: Option<u32>,
    },
    Read {
        at: At,
        len: u64,
        into: Place,
        ordered: bool,
        fenced: bool,
    },
    Atomic {
        at: At,
        width: Width,
        change: Change,
        ordered: bool,
        regardless: bool,
        /// Its answer is waited for later.
        posted: bool,
    },
    /// A message to the shared queue of a node.
    Append {
        own: bool,
        len: usize,
        posted: bool,
    },
    /// The queue's owner takes one.
    Take {
        own: bool,
    },
    FlushReads,
    FlushWrites,
    FlushRemote {
        own: bool,
    },
    Settle,
    /// The pages of a node are thrown out.
    Evict {
        own: bool,
    },
    /// The exporter reads or changes its own memory.
    Touch {
        own: bool,
        offset: u64,
        change: bool,
    },
}

fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..REGION,
        3 => (0..REGION / 8).prop_map(|word| word * 8),
        2 => (0..5u64, 0..33u64).prop_map(|(page, near)| (page * 4096 + near).saturating_sub(16)),
        1 => Just(REGION),
        1 => Just(u64::MAX - 5),
    ]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => select(vec![0, 1, 2, 4, 8, 7, 9, 64, 127, 128, 129, 1400, 4095, 4096, 4097]),
        2 => 0..200u64,
        1 => 0..9000u64,
    ]
}

/// Mostly of the exports that allow it.
fn names(right: &'static [Name]) -> impl Strategy<Value = Name> {
    prop_oneof![9 => select(right), 1 => select(Name::EVERY.to_vec())]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Bytes),
        select(vec![0, 8, 13, 4090]).prop_map(Place::Slice)
    ]
}

/// Places for so many bytes, mostly inside of the export.
fn ats(right: &'static [Name], len: u64) -> impl Strategy<Value = At> {
    let wild = prop::bool::weighted(0.1);
    (any::<bool>(), names(right), offsets(), wild).prop_map(move |(own, name, offset, wild)| {
        let range = name.range();
        let room = (range.end - range.start).saturating_sub(len);
        let offset = if wild {
            offset
        } else {
            offset.min(REGION) % (room + 1)
        };
        At { own, name, offset }
    })
}

/// None, or mostly one that the export allows.
fn notification(name: Name, choice: u32) -> Option<u32> {
    match (choice, name) {
        (0..3, _) => None,
        (3, _) => Some([0, 21, 4000, 5][name as usize % 4]),
        (_, Name::All | Name::Words) => Some(choice % 4 + 1),
        (_, Name::Letters) => Some(1024 + choice % 4),
        _ => None,
    }
}

fn writes() -> impl Strategy<Value = Op> {
    const RIGHT: &[Name] = &[Name::All, Name::Letters, Name::Part, Name::Mine];
    let how = || (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    lengths().prop_flat_map(move |len| {
        (ats(RIGHT, len), places(), how(), 0..12u32).prop_map(move |(at, from, how, choice)| {
            let (ordered, regardless, fenced) = how;
            Op::Write {
                at,
                len,
                from,
                ordered,
                regardless,
                fenced,
                notify: notification(at.name, choice),
            }
        })
    })
}

fn reads() -> impl Strategy<Value = Op> {
    const RIGHT: &[Name] = &[Name::All, Name::Letters, Name::Part, Name::Read];
    lengths().prop_flat_map(|len| {
        (ats(RIGHT, len), places(), any::<bool>(), any::<bool>()).prop_map(
            move |(at, into, ordered, fenced)| Op::Read {
                at,
                len,
                into,
                ordered,
                fenced,
            },
        )
    })
}

fn atomics() -> impl Strategy<Value = Op> {
    const RIGHT: &[Name] = &[Name::All, Name::Letters, Name::Words];
    let width = prop_oneof![Just(Width::Four), Just(Width::Eight)];
    let change = prop_oneof![
        Just(Change::Add),
        Just(Change::Exchange),
        any::<bool>().prop_map(Change::ExchangeIf)
    ];
    let aligned = prop::bool::weighted(0.9);
    (ats(RIGHT, 8), aligned, width, change, any::<(bool, bool, bool)>()).prop_map(
        |(mut at, aligned, width, change, how)| {
            if aligned {
                at.offset &= !7;
            }
            Op::Atomic {
                at,
                width,
                change,
                ordered: how.0,
                regardless: how.1,
                posted: how.2,
            }
        },
    )
}

fn others() -> impl Strategy<Value = Op> {
    let own = any::<bool>;
    prop_oneof![
        4 => (own(), select(vec![1, 8, 127, 129, 256, 257, 0]), any::<bool>())
            .prop_map(|(own, len, posted)| Op::Append { own, len, posted }),
        3 => own().prop_map(|own| Op::Take { own }),
        1 => Just(Op::FlushReads),
        1 => Just(Op::FlushWrites),
        1 => own().prop_map(|own| Op::FlushRemote { own }),
        1 => Just(Op::Settle),
        2 => own().prop_map(|own| Op::Evict { own }),
        2 => (own(), 0..REGION - 8, any::<bool>())
            .prop_map(|(own, offset, change)| Op::Touch { own, offset, change }),
    ]
}

/// Some dozens of operations.
pub(crate) fn sequences() -> impl Strategy<Value = Vec<Op>> {
    vec(
        prop_oneof![5 => writes(), 3 => reads(), 3 => atomics(), 4 => others()],
        1..80,
    )
}
