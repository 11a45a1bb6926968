//! What the models share: words that loom watches, and the exploration.
//!
//! The models run the algorithms of `netvm-abi` as they ship, through [`Words`]. Loads acquire, stores release, the
//! barrier is `fence(SeqCst)`: no more than [`SharedWords`] promises, so that a barrier or a release that is missing
//! shows. Each model also runs with words that leave one of these out ([`Flaw`]), and loom must then find the failure:
//! a model that cannot fail proves nothing.
#![forbid(unsafe_code)]

pub mod bus;

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What words leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing: they keep the contract.
    None,
    /// The full barrier does nothing.
    NoBarrier,
    /// Stores do not release, loads do not acquire.
    NoOrder,
}

/// Words that loom watches, and around them others that only ever one thread touches at a time (their values are
/// plain memory; loom would otherwise explore every access to a 64-entry queue).
pub struct Words {
    flaw: Flaw,
    watched: BTreeMap<u32, Watched>,
    plain: Box<[std::sync::atomic::AtomicU32]>,
}

/// A word, and a companion that is stored to before each access.
///
/// Loom 0.7 remembers only the last access to an object: in "A loads x; B loads x, then stores x" it sees B's load
/// before B's store and never tries the store before A's load (the marks' models ran in one single execution). The
/// companion's stores all depend on one another, so every order of accesses is tried. The companion is never read, so
/// nothing is ordered by it.
struct Watched {
    word: AtomicU32,
    companion: AtomicU32,
}

impl Watched {
    fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            companion: AtomicU32::new(0),
        }
    }

    fn access(&self) -> &AtomicU32 {
        self.companion.store(0, Ordering::Relaxed);
        &self.word
    }
}

impl Words {
    /// All words from 0 to `len`, watched.
    #[must_use]
    pub fn new(flaw: Flaw, len: u32) -> Self {
        Self::watching(flaw, len, 0..len)
    }

    /// Words from 0 to `len`, of which loom watches some. All are zero.
    #[must_use]
    pub fn watching(flaw: Flaw, len: u32, watched: impl IntoIterator<Item = u32>) -> Self {
        Self {
            flaw,
            watched: watched.into_iter().map(|at| (at, Watched::new())).collect(),
            plain: (0..len).map(|_| std::sync::atomic::AtomicU32::new(0)).collect(),
        }
    }

    fn load(&self, at: WordIndex, ordering: Ordering) -> u32 {
        if let Some(word) = self.watched.get(&at.0) {
            return word.access().load(ordering);
        }
        self.plain
            .get(at.index())
            .map_or(u32::MAX, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, at: WordIndex, value: u32, ordering: Ordering) {
        if let Some(word) = self.watched.get(&at.0) {
            word.access().store(value, ordering);
        } else if let Some(word) = self.plain.get(at.index()) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl SharedWords for Words {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        match self.flaw {
            Flaw::NoOrder => self.load(at, Ordering::Relaxed),
            _ => self.load(at, Ordering::Acquire),
        }
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        match self.flaw {
            Flaw::NoOrder => self.store(at, value, Ordering::Relaxed),
            _ => self.store(at, value, Ordering::Release),
        }
    }

    fn full_barrier(&self) {
        if self.flaw != Flaw::NoBarrier {
            fence(Ordering::SeqCst);
        }
    }

    // One coherent memory: `bus` has the other kind.
    fn bus_barrier(&self) {
        self.full_barrier();
    }

    // As the words of ordinary memory do it (`netvm_abi::words`): relaxed, with one fence.
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        if self.flaw != Flaw::NoOrder {
            fence(Ordering::Release);
        }
        for (&value, at) in values.iter().zip(at.0..) {
            self.store(WordIndex(at), value, Ordering::Relaxed);
        }
    }

    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        for (value, at) in into.iter_mut().zip(at.0..) {
            *value = self.load(WordIndex(at), Ordering::Relaxed);
        }
        if self.flaw != Flaw::NoOrder {
            fence(Ordering::Acquire);
        }
    }
}

/// Runs `model` in every interleaving (and with every value a weak memory may return) that takes a processor away
/// from a thread at most `preemptions` times; `None`: without bound. Prints how many there were.
///
/// Where a host waits in a loop, all interleavings are too many for a test (minutes and more); those models stop at
/// five preemptions, the ring with its four events at three. Every flaw that a model must find shows within three.
pub fn explore(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = runs.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let runs = runs.load(Ordering::Relaxed);
    let bound = preemptions.map_or("no bound".to_owned(), |bound| format!("{bound} preemptions"));
    println!("{name}: {runs} executions, {bound}");
}

/// Runs `model` as [`explore`] does and demands that loom finds it broken.
///
/// # Panics
/// When no execution fails.
pub fn must_fail(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let broken = catch_unwind(AssertUnwindSafe(|| explore(name, preemptions, model)));
    assert!(
        broken.is_err(),
        "{name}: the flaw was not found: the model proves nothing"
    );
    println!("{name}: the flaw was found");
}

/// Something that must have happened in at least one execution.
#[derive(Clone, Default)]
pub struct Seen(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Seen {
    /// It has not happened yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It happens.
    pub fn mark(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// It happens, if this holds.
    pub fn mark_if(&self, happens: bool) {
        if happens {
            self.mark();
        }
    }

    /// In how many executions it happened.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
