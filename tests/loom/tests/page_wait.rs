//! A look at a worker that waits for a page never takes the last reference of a process that lives for the worker's
//! ([`PageWait`]).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use netvm_host_platform::page_wait::PageWait;
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

/// An address space: its references, that of the process among them, and the waits of its worker.
struct Space {
    references: AtomicU32,
    wait: PageWait<Words>,
}

impl Space {
    fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Self {
            references: AtomicU32::new(1),
            wait: PageWait::new(Words::watching(flaw, 1, [0])),
        })
    }

    /// The worker serves once: with a reference, which the kernel's counters take and give back with a full barrier.
    fn serve(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
        self.wait.during(|| ());
        self.references.fetch_sub(1, Ordering::AcqRel);
    }

    /// A counter that is read orders nothing.
    fn count(&self) -> u32 {
        self.references.load(Ordering::Relaxed)
    }
}

/// A worker that serves twice, beside one look at a process that lives.
fn living(flaw: Flaw, is_last: fn(&Space) -> bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let space = Space::new(flaw);
        let worker = {
            let space = space.clone();
            thread::spawn(move || {
                space.serve();
                space.serve();
            })
        };
        assert!(!is_last(&space), "the process lives");
        worker.join().expect("serves");
    }
}

fn is_last(space: &Space) -> bool {
    space.wait.is_last(|| space.count())
}

#[test]
fn a_living_process_keeps_its_port() {
    explore("a living process", None, living(Flaw::None, is_last));
    for flaw in [Flaw::NoBarrier, Flaw::NoOrder] {
        must_fail("a living process", None, living(flaw, is_last));
    }
}

/// What the module did before.
#[test]
fn without_numbers_it_may_lose_it() {
    let looks_once = |space: &Space| space.wait.is_waiting() && space.count() <= 1;
    must_fail("without numbers", None, living(Flaw::None, looks_once));
    let looks_twice =
        |space: &Space| space.wait.is_waiting() && space.count() <= 1 && space.wait.is_waiting();
    must_fail("two looks", None, living(Flaw::None, looks_twice));
}

/// A worker that goes on waiting is found.
#[test]
fn an_ended_process_is_seen() {
    let (seen, model) = (Seen::new(), Seen::new());
    let found = seen.clone();
    explore("an ended process", None, move || {
        let space = Space::new(Flaw::None);
        let process = {
            let space = space.clone();
            thread::spawn(move || space.references.fetch_sub(1, Ordering::AcqRel))
        };
        space.references.fetch_add(1, Ordering::AcqRel);
        space.wait.during(|| {
            process.join().expect("ends");
            found.mark_if(is_last(&space));
        });
        model.mark();
        assert_eq!(found.count(), model.count(), "each time");
    });
    assert!(seen.count() > 0);
}
