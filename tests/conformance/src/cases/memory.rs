//! Memory that is not there: freed, evicted, never touched.

use crate::env::{Env, Side, take_signal};
use crate::outcome::{Outcome, Trouble, right};
use crate::pattern;
use netvm::{Error, Status};
use rand::Rng;

const DONE: u32 = 900;

pub(super) fn region_freed_in_flight(env: &Env) -> Outcome {
    const LEN: u64 = 5 * 4096 + 77;
    let rounds = u64::from(env.scaled(8));
    env.pair(
        move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(1, 0, "target", LEN * rounds)?;
            let extra = port.alloc(3 * 4096)?;
            let extra = port.export("extra", &extra, .., crate::env::open_to_all())?;
            let peer = env.import(&port, 0, 0, "peer")?;
            take_signal(env, &port, 1)?;
            for round in 0..rounds {
                pattern::check(&memory, round * LEN, round, 0, LEN, "source dropped in flight")?;
            }
            // Now the destination goes while the other side writes to it: handle, export and all.
            peer.notify(1)?;
            drop(extra);
            let fresh = port.alloc(3 * 4096)?;
            take_signal(env, &port, DONE)?;
            let mut bytes = vec![1; 3 * 4096];
            fresh.read_into(0, &mut bytes)?;
            right!(
                bytes.iter().all(|&byte| byte == 0),
                "a write to freed memory hit what came after it"
            );
            Ok(())
        },
        move |env| {
            let Side {
                port,
                segment: _segment,
                ..
            } = env.side(0, 0, "peer", 4096)?;
            let target = env.import(&port, 1, 0, "target")?;
            let extra = env.import(&port, 1, 0, "extra")?;
            for round in 0..rounds {
                let source = port.alloc(LEN)?;
                pattern::store(&source, 0, round, 0, LEN)?;
                target.write(round * LEN, &source).post()?;
                if round % 2 == 0 {
                    drop(source);
                } else {
                    // Leaks the handle: the memory stays, nothing else happens.
                    std::mem::forget(source);
                }
            }
            target.notify(1)?;
            take_signal(env, &port, 1)?;
            let source = port.alloc(3 * 4096)?;
            source.write_from(0, &[0xEE; 3 * 4096])?;
            for _ in 0..20 {
                let written = extra.write(0, &source).post();
                match written.and_then(|_| port.flush_remote(env.id(1))) {
                    Ok(()) => {}
                    Err(Error::Failed(failure))
                        if matches!(
                            failure.status,
                            Status::CapabilityRefused | Status::Revoked | Status::Unmapped
                        ) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // Reads into memory that is dropped at once.
            for _ in 0..4 {
                let into = port.alloc(2 * 4096)?;
                target.read(0, &into).post()?;
            }
            port.flush_reads()?;
            target.notify(DONE)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

pub(super) fn evicted_pages(env: &Env) -> Outcome {
    const LEN: u64 = 8 * 4096;
    let rounds = u64::from(env.scaled(8));
    env.pair(
        move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(1, 0, "cold", LEN)?;
            let peer = env.import(&port, 0, 0, "peer")?;
            for round in 0..rounds {
                take_signal(env, &port, 1)?;
                env.pressure(1);
                pattern::check(&memory, 0, round, 0, LEN, "write to evicted pages")?;
                env.pressure(1);
                peer.notify(1)?;
            }
            take_signal(env, &port, DONE)
        },
        move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(0, 0, "peer", 2 * LEN)?;
            let cold = env.import(&port, 1, 0, "cold")?;
            for round in 0..rounds {
                pattern::store(&memory, 0, round, 0, LEN)?;
                // The source is thrown out too, just before it is needed.
                env.pressure(0);
                env.pressure(1);
                cold.write(0, memory.slice(..LEN)?).notify(1).post()?;
                take_signal(env, &port, 1)?;
                env.pressure(0);
                cold.read(0, memory.slice(LEN..)?).fenced().post()?;
                pattern::check(&memory, LEN, round, 0, LEN, "read of and into evicted pages")?;
            }
            cold.notify(DONE)?;
            Ok(port.flush_remote(env.id(1))?)
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
        move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(1, 0, "sparse", SIZE)?;
            take_signal(env, &port, DONE)?;
            for place in places(env) {
                pattern::check(&memory, place + 4000, place, 0, 200, "sparse write")?;
                let mut beside = [1; 64];
                memory.read_into(place + 4200, &mut beside)?;
                right!(beside == [0; 64], "memory beside a sparse write is not zero");
            }
            Ok(())
        },
        move |env| {
            let port = env.open(0, 0)?;
            let sparse = env.import(&port, 1, 0, "sparse")?;
            right!(sparse.len() == SIZE, "the import has {} bytes", sparse.len());
            for place in places(env) {
                sparse
                    .write(place + 4000, &pattern::bytes(place, 0, 200))
                    .post()?;
            }
            let mut untouched = [1; 100];
            sparse.read(SIZE - 100, &mut untouched).post()?;
            if untouched != [0; 100] {
                return Err(Trouble::Wrong("memory that nobody wrote is not zero".into()));
            }
            sparse.notify(DONE)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}
