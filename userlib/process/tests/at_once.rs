//! Work for the driver and for a port's worker is done by the thread that runs the card, where it waits for nothing.

mod support;

use std::fs;

use support::adopt::{BOTH, PAGE, PRIVATE, Pair, map, memfd, read};

/// How often threads whose names begin so have gone to sleep.
fn sleeps(name: &str) -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let ours = threads.flatten().map(|thread| thread.path()).filter(|thread| {
        // A thread may end in between.
        let comm = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        comm.starts_with(name)
    });
    let count = |status: String| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse().unwrap())
    };
    ours.map(|thread| count(fs::read_to_string(thread.join("status")).unwrap_or_default()))
        .sum()
}

const ROUNDS: u64 = 500;

#[test]
fn pages_that_are_there_call_no_other_thread_and_others_do() {
    let pair = Pair::new();
    let (memory, file) = (map(PAGE, BOTH, PRIVATE, None), memfd(PAGE));
    let of_file = map(PAGE, BOTH, libc::MAP_SHARED, Some(&file));
    let private = pair.lend("private", memory, PAGE as u64).unwrap();
    let shared = pair.lend("shared", of_file, PAGE as u64).unwrap();
    let each = |begin: &dyn Fn(), one: &dyn Fn(u64)| {
        begin();
        one(0);
        let before = (sleeps("netvm-paging"), sleeps("netvm-driver"));
        for round in 1..=ROUNDS {
            begin();
            one(round);
        }
        (
            sleeps("netvm-paging") - before.0,
            sleeps("netvm-driver") - before.1,
        )
    };
    let nothing = || {};
    let word = private.remote.word64(8).unwrap();
    let there: [(&str, &dyn Fn(u64)); 4] = [
        ("writes", &|round| {
            pair.write(&private.remote, 0, &round.to_le_bytes()).unwrap();
            assert_eq!(read(&private.remote, 0), Ok(round.to_le_bytes()));
        }),
        ("atomics", &|round| assert_eq!(word.fetch_add(1), Ok(round))),
        ("large writes", &|round| {
            pair.write(&private.remote, 16, &[round as u8; 2048]).unwrap();
        }),
        ("reads of a file", &|_| {
            assert_eq!(read(&shared.remote, 0), Ok([0; 8]))
        }),
    ];
    // The page is there.
    read::<8>(&shared.remote, 0).unwrap();
    for (what, one) in there {
        let (paging, driver) = each(&nothing, one);
        assert!(
            paging < ROUNDS / 10 && driver < ROUNDS / 10,
            "{what}: {paging}, {driver}"
        );
    }
    let drop_page = || {
        // SAFETY: the page is the test's own, and reached through raw pointers.
        let result = unsafe { libc::madvise(memory.cast(), PAGE, libc::MADV_DONTNEED) };
        assert_eq!(result, 0);
    };
    // A worker that has just ended one piece of work may find the next one before it sleeps, here and below.
    let (paging, _) = each(&drop_page, &|round| {
        pair.write(&private.remote, 0, &round.to_le_bytes()).unwrap();
    });
    assert!(paging >= ROUNDS / 2, "a page that is not there: {paging}");
    let (paging, _) = each(&nothing, &|round| {
        pair.write(&shared.remote, 0, &round.to_le_bytes()).unwrap();
    });
    assert!(
        paging >= ROUNDS / 2,
        "a file's page may have to be asked for: {paging}"
    );
}
