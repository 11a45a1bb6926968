//! Memory that is not there: freed, evicted, never touched.

use super::failures::settle;
use crate::env::Env;
use crate::outcome::{Outcome, right};
use crate::pattern;
use crate::side::open_to_all;
use netvm::{Error, Status};
use rand::Rng;

const DONE: u32 = 800;

pub(super) fn region_freed_in_flight(env: &Env) -> Outcome {
    const LEN: u64 = 5 * 4096 + 77;
    let rounds = u64::from(env.scaled(8));
    env.pair(
        move |side| {
            let memory = side.share("target", LEN * rounds)?;
            // No handle of its memory: the export alone keeps it.
            let extra = side.export("extra", &side.alloc(3 * 4096)?, .., open_to_all())?;
            let peer = side.import_peer("peer")?;
            side.take_signal(1)?;
            for round in 0..rounds {
                pattern::check(&memory, round * LEN, round, 0, LEN, "source dropped in flight")?;
            }
            // Now the destination goes while the other side writes to it: export and memory.
            peer.notify(1)?;
            drop(extra);
            let fresh = side.alloc(3 * 4096)?;
            side.take_signal(DONE)?;
            pattern::check_bytes(&fresh, 0, &[0; 3 * 4096], "memory after a freed region")
        },
        move |side| {
            let _export = side.share("peer", 4096)?;
            let target = side.import_peer("target")?;
            let extra = side.import_peer("extra")?;
            let mut kept = Vec::new();
            for round in 0..rounds {
                let source = side.alloc(LEN)?;
                pattern::store(&source, 0, round, 0, LEN)?;
                target.write(round * LEN, &source).post()?;
                if round % 2 == 0 {
                    drop(source);
                } else {
                    kept.push(source);
                }
            }
            target.notify(1)?;
            side.take_signal(1)?;
            let source = side.alloc(3 * 4096)?;
            source.write_from(0, &[0xEE; 3 * 4096])?;
            for _ in 0..20 {
                let written = extra.write(0, &source).post();
                match written.and_then(|_| side.flush_remote(side.peer())) {
                    Ok(()) => {}
                    Err(Error::Failed(failure))
                        if matches!(
                            failure.status,
                            Status::CapabilityRefused | Status::Revoked | Status::Unmapped
                        ) => {}
                    // Each message of a write fails for itself: of several writes, more than the ring of errors holds.
                    Err(Error::FailuresLost { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // What was posted while another failure was told fails now.
            settle(&side.env, &side, &extra)?;
            // Reads into memory that is dropped at once.
            for _ in 0..4 {
                let into = side.alloc(2 * 4096)?;
                target.read(0, &into).post()?;
            }
            side.flush_reads()?;
            target.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn evicted_pages(env: &Env) -> Outcome {
    const LEN: u64 = 8 * 4096;
    let rounds = u64::from(env.scaled(8));
    env.pair(
        move |side| {
            let memory = side.share("cold", LEN)?;
            let peer = side.import_peer("peer")?;
            for round in 0..rounds {
                side.take_signal(1)?;
                side.env.pressure(1);
                pattern::check(&memory, 0, round, 0, LEN, "write to evicted pages")?;
                side.env.pressure(1);
                peer.notify(1)?;
            }
            side.take_signal(DONE)
        },
        move |side| {
            let memory = side.share("peer", 2 * LEN)?;
            let cold = side.import_peer("cold")?;
            for round in 0..rounds {
                pattern::store(&memory, 0, round, 0, LEN)?;
                // The source is thrown out too, just before it is needed.
                side.env.pressure(0);
                side.env.pressure(1);
                cold.write(0, memory.slice(..LEN)?).notify(1).post()?;
                side.take_signal(1)?;
                side.env.pressure(0);
                cold.read(0, memory.slice(LEN..)?).fenced().post()?;
                pattern::check(&memory, LEN, round, 0, LEN, "read of and into evicted pages")?;
            }
            cold.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn large_region(env: &Env) -> Outcome {
    // Much of it is never touched: it costs nothing.
    const SIZE: u64 = 64 << 20;
    let writes = u64::from(env.scaled(40));
    let places = move |env: &Env| {
        let mut random = env.random(3);
        let mut places: Vec<u64> = (0..writes)
            .map(|_| random.random_range(0..SIZE / 8192) * 8192)
            .collect();
        places.sort_unstable();
        places.dedup();
        places
    };
    env.pair(
        move |side| {
            let memory = side.share("sparse", SIZE)?;
            side.take_signal(DONE)?;
            for place in places(&side.env) {
                pattern::check(&memory, place + 4000, place, 0, 200, "sparse write")?;
                pattern::check_bytes(&memory, place + 4200, &[0; 64], "beside a sparse write")?;
            }
            Ok(())
        },
        move |side| {
            let sparse = side.import_peer("sparse")?;
            right!(sparse.len() == SIZE, "the import has {} bytes", sparse.len());
            for place in places(&side.env) {
                sparse
                    .write(place + 4000, &pattern::bytes(place, 0, 200))
                    .post()?;
            }
            let mut untouched = [1; 100];
            sparse.read(SIZE - 100, &mut untouched).call()?;
            right!(untouched == [0; 100], "memory that was never written is not zero");
            sparse.notify(DONE)?;
            side.flush_peer()
        },
    )
}
