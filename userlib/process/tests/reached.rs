//! The card reaches a program's own memory by itself where it is there, and the worker's way is taken where it is not.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use netvm::{Error, Status};
use support::adopt::{BOTH, PAGE, PRIVATE, Pair, map, memfd, read};

fn reached(pair: &Pair) -> u64 {
    pair.nodes[0].stats().counters.reached
}

/// What the requests of `work` have reached.
fn of(pair: &Pair, work: impl FnOnce()) -> u64 {
    let before = reached(pair);
    work();
    reached(pair) - before
}

#[test]
fn pages_of_the_program_s_own_are_reached_and_others_are_not() {
    let pair = Pair::new();
    let own = map(4 * PAGE, BOTH, PRIVATE, None);
    let lent = pair.lend("own", own, 4 * PAGE as u64).unwrap();
    let word = lent.remote.word64(16).unwrap();
    // The worker brings what is not there.
    assert_eq!(of(&pair, || pair.write(&lent.remote, 0, &[1; 8]).unwrap()), 0);
    assert_eq!(of(&pair, || pair.write(&lent.remote, 0, &[2; 8]).unwrap()), 1);
    assert_eq!(of(&pair, || assert_eq!(read(&lent.remote, 0), Ok([2; 8]))), 1);
    assert_eq!(of(&pair, || assert_eq!(word.fetch_add(7), Ok(0))), 1);
    assert_eq!(word.fetch_add(1), Ok(7));
    // Two pages, of which one is not there.
    let both = || pair.write(&lent.remote, PAGE as u64 - 100, &[3; 200]).unwrap();
    assert_eq!(of(&pair, both), 1);
    // SAFETY: the test's own memory, reached through raw pointers.
    unsafe {
        let whole = core::slice::from_raw_parts(own, 4 * PAGE).to_vec();
        assert_eq!(whole[..8], [2; 8]);
        assert_eq!(whole[PAGE - 100..PAGE + 100], [3; 200]);
        assert!(whole[PAGE + 100..].iter().all(|byte| *byte == 0));
        // Of a file, it is for the worker to ask.
        let file = memfd(PAGE);
        let mapped = map(PAGE, BOTH, libc::MAP_SHARED, Some(&file));
        mapped.write(1);
        let lent = pair.lend("file", mapped, PAGE as u64).unwrap();
        let work = || {
            assert_eq!(read(&lent.remote, 0), Ok([1]));
            pair.write(&lent.remote, 0, &[9]).unwrap();
        };
        assert_eq!(of(&pair, work), 0);
        assert_eq!(mapped.read(), 9);
        // What may only be read is found out by the copy.
        assert_eq!(libc::mprotect(own.cast(), PAGE, libc::PROT_READ), 0);
    }
    let work = || {
        assert_eq!(read(&lent.remote, 0), Ok([2; 8]));
        let refused = pair.write(&lent.remote, 0, &[4; 8]);
        assert!(refused.is_err(), "{refused:?}");
    };
    assert_eq!(of(&pair, work), 1);
    // Memory of the library's is given to the card, as before.
    let region = pair.target.alloc(PAGE as u64).unwrap();
    let all = netvm::Access::everyone();
    let _export = pair.target.export("given", &region, .., all).unwrap();
    let remote = pair.sender.import(
        pair.target_id,
        pair.target.id(),
        "given",
        support::adopt::PATIENCE,
    );
    let remote = remote.unwrap();
    let work = || (0..3).for_each(|_| pair.write(&remote, 0, &[1; 8]).unwrap());
    assert_eq!(of(&pair, work), 0);
}

/// Ends a thread that looks at it.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A page that comes and goes, and may be written or not, while another node uses it: each operation ends well or with the error
/// of its own, and nothing else is touched.
#[test]
fn a_page_that_goes_under_the_card_s_hands_costs_its_request_alone() {
    const ROUNDS: u64 = 3_000;
    let pair = Pair::new();
    let memory = map(3 * PAGE, BOTH, PRIVATE, None);
    let middle = memory.wrapping_add(PAGE);
    let lent = pair.lend("under fire", memory, 3 * PAGE as u64).unwrap();
    let stop = AtomicBool::new(false);
    let middle_at = middle.expose_provenance();
    let (mut good, mut failed) = (0_u64, 0_u64);
    let reached = std::thread::scope(|scope| {
        scope.spawn(|| {
            let middle = core::ptr::with_exposed_provenance_mut::<libc::c_void>(middle_at);
            let mut turn = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                // SAFETY: the page is the test's own, and no reference to it exists.
                unsafe {
                    match turn % 4 {
                        0 => libc::madvise(middle, PAGE, libc::MADV_DONTNEED),
                        1 => libc::mprotect(middle, PAGE, libc::PROT_READ),
                        2 => libc::mprotect(middle, PAGE, BOTH),
                        _ => {
                            libc::munmap(middle, PAGE);
                            let fixed = PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
                            libc::mmap(middle, PAGE, BOTH, fixed, -1, 0);
                            0
                        }
                    };
                }
                // The page is there for most of the time.
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        });
        // Also where an assertion fails: the thread would go on for ever.
        let _stop = Stop(&stop);
        of(&pair, || {
            for round in 0..ROUNDS {
                let ended = match round % 3 {
                    0 => pair.write(&lent.remote, PAGE as u64 + 64, &round.to_le_bytes()),
                    1 => read::<8>(&lent.remote, PAGE as u64 + 64).map(drop),
                    _ => lent
                        .remote
                        .word64(PAGE as u64 + 128)
                        .unwrap()
                        .fetch_add(1)
                        .map(drop),
                };
                match ended {
                    Ok(()) => good += 1,
                    Err(Error::Failed(failure)) => {
                        assert!(
                            matches!(
                                failure.status,
                                Status::Unmapped | Status::BusError | Status::ReadOnly
                            ),
                            "{failure:?}"
                        );
                        failed += 1;
                    }
                    Err(Error::StreamFailed { .. }) => failed += 1,
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
    });
    assert!(
        good >= ROUNDS / 4 && reached >= ROUNDS / 10,
        "{good} good, {failed} failed, {reached} reached"
    );
    // SAFETY: as above; the page is there and may be written.
    unsafe {
        let fixed = PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
        libc::mmap(middle.cast(), PAGE, BOTH, fixed, -1, 0);
    }
    pair.write(&lent.remote, PAGE as u64, &[5; 16]).unwrap();
    assert_eq!(read(&lent.remote, PAGE as u64), Ok([5; 16]));
    let beside = [
        read::<64>(&lent.remote, 0),
        read::<64>(&lent.remote, 2 * PAGE as u64),
    ];
    assert_eq!(beside, [Ok([0; 64]), Ok([0; 64])]);
}
