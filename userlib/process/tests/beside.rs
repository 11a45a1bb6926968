//! Remote atomics beside a program's own: the software card uses the processor's, so no change is lost however the memory is
//! reached.

mod support;

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use netvm::{Access, PortId, RemoteSegment};

use support::adopt::{BOTH, PAGE, PATIENCE, Pair, map, memfd};

const REMOTE: u64 = 3_000;
/// Where the numbers of 1, 2, 4 and 8 bytes lie.
const PLACES: [u64; 4] = [3, 6, 12, 24];

/// Adds at four places, from another node, while this process adds to the same places until that has ended.
fn race(remotes: &[RemoteSegment], mapped: &[*mut u8]) {
    let mapped: Vec<usize> = mapped.iter().map(|at| at.expose_provenance()).collect();
    let (busy, local) = (&AtomicU64::new(remotes.len() as u64), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for start in &mapped {
            scope.spawn(move || {
                let [one, two, four, eight] =
                    PLACES.map(|place| core::ptr::with_exposed_provenance_mut::<u8>(start + place as usize));
                // SAFETY: the memory outlives this thread, is aligned at these places, and is reached by atomics alone.
                let (one, two, four, eight) = unsafe {
                    (
                        AtomicU8::from_ptr(one),
                        AtomicU16::from_ptr(two.cast()),
                        AtomicU32::from_ptr(four.cast()),
                        AtomicU64::from_ptr(eight.cast()),
                    )
                };
                while busy.load(Ordering::Acquire) > 0 {
                    one.fetch_add(1, Ordering::Relaxed);
                    two.fetch_add(1, Ordering::Relaxed);
                    four.fetch_add(1, Ordering::Relaxed);
                    eight.fetch_add(1, Ordering::Relaxed);
                    local.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for remote in remotes {
            scope.spawn(move || {
                for _ in 0..REMOTE {
                    let pending = [
                        remote.number::<u8>(PLACES[0]).unwrap().sum(1).post().unwrap(),
                        remote.number::<i16>(PLACES[1]).unwrap().sum(1).post().unwrap(),
                        // The operation on a word, and that on a number.
                        remote.word32(PLACES[2]).unwrap().add(1).post().unwrap(),
                        remote.number::<u64>(PLACES[3]).unwrap().sum(1).post().unwrap(),
                    ];
                    for one in pending {
                        one.wait().unwrap();
                    }
                }
                busy.fetch_sub(1, Ordering::Release);
            });
        }
    });
    let all = local.load(Ordering::Relaxed) + REMOTE * remotes.len() as u64;
    for (place, bytes) in PLACES.into_iter().zip([1, 2, 4, 8]) {
        let mut word = [0; 8];
        for (at, byte) in (place..).zip(&mut word[..bytes]) {
            let at = core::ptr::with_exposed_provenance_mut(mapped[0] + at as usize);
            // SAFETY: the memory is there, and changed no more.
            *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
        }
        let mask = u64::MAX >> (64 - 8 * bytes);
        assert_eq!(
            u64::from_le_bytes(word),
            all & mask,
            "additions of {bytes} bytes are lost"
        );
    }
}

#[test]
fn in_memory_of_the_card_no_change_is_lost() {
    let pair = Pair::new();
    let region = pair.target.alloc(PAGE as u64).unwrap();
    let _export = pair
        .target
        .export("own", &region, .., Access::everyone())
        .unwrap();
    let remote = pair
        .sender
        .import(pair.target_id, PortId(7), "own", PATIENCE)
        .unwrap();
    let start = region.atomics().unwrap().as_ptr().cast_mut().cast();
    race(&[remote.clone(), remote], &[start]);
}

#[test]
fn in_memory_that_is_handed_over_and_mapped_twice_no_change_is_lost() {
    let pair = Pair::new();
    let file = memfd(PAGE);
    let [one, other] = [(); 2].map(|()| map(PAGE, BOTH, libc::MAP_SHARED, Some(&file)));
    let lent = [("one", one), ("other", other)].map(|(name, at)| pair.lend(name, at, PAGE as u64).unwrap());
    let remotes = lent.each_ref().map(|lent| lent.remote.clone());
    race(&remotes, &[one, other]);
}

#[test]
fn a_number_that_is_not_there_or_read_only_is_an_error_for_its_operation_alone() {
    use netvm::Status;
    use support::adopt::{PRIVATE, failed};
    let pair = Pair::new();
    let read_only = map(PAGE, libc::PROT_READ, PRIVATE, None);
    let gone = map(PAGE, 0, PRIVATE, None);
    let good = map(PAGE, BOTH, PRIVATE, None);
    let good = pair.lend("good", good, PAGE as u64).unwrap();
    for (name, at, status) in [
        ("read-only", read_only, Status::ReadOnly),
        ("gone", gone, Status::Unmapped),
    ] {
        let bad = pair.lend(name, at, PAGE as u64).unwrap();
        let number = bad.remote.number::<u16>(2).unwrap();
        assert_eq!(failed(number.sum(1).call()), status, "{name}");
        assert_eq!(failed(number.load().call()), status, "{name}");
        good.remote.number::<f64>(8).unwrap().sum(0.5).call().unwrap();
    }
    let sum = good.remote.number::<f64>(8).unwrap().load().call().unwrap();
    assert_eq!(sum, 1.0);
}
