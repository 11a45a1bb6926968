//! What worlds leave on the heap when they are over: nothing, however many have been.

use netvm_conformance::ALL;
use netvm_world::{Config, Failure, FaultLevel, NoTrace, run_conformance, run_seed};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// The system's allocator, with a count of the bytes that are in use.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

fn count(bytes: usize, sign: i64) {
    IN_USE.fetch_add(sign * i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with the arguments that came; the count allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, 1);
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn in_use() -> i64 {
    IN_USE.load(Ordering::Relaxed)
}

/// The only test of this program: another one beside it would be counted, too.
#[test]
fn worlds_leave_nothing_on_the_heap() {
    let config = Config {
        messages: 1_500,
        ..Config::default()
    };
    let quiet = Config {
        faults: FaultLevel::Off,
        ..Config::default()
    };
    let seed = |seed| run_seed(seed, &config, &mut NoTrace).map(drop);
    let body = |case| run_conformance(case, 1, &quiet, &mut NoTrace).map(drop);
    // What is made once for the whole program, and grows a little with what is in use at a time.
    for number in 1..4 {
        seed(number).unwrap_or_else(|failure| panic!("{failure}"));
    }
    let mut left = Vec::new();
    let mut note = |what: String, run: &dyn Fn() -> Result<(), Box<Failure>>| {
        let before = in_use();
        run().unwrap_or_else(|failure| panic!("{failure}"));
        let bytes = in_use() - before;
        if bytes.abs() > 256 {
            left.push(format!("{what} leaves {bytes} bytes"));
        }
    };
    for case in ALL {
        note(format!("body {}", case.name), &|| body(case));
    }
    // Here processes are killed wherever they stand, and nodes restart.
    for number in 1..20 {
        note(format!("seed {number}"), &|| seed(number));
    }
    assert!(left.is_empty(), "{left:#?}");
}
