//! A work queue that others help themselves from: `cargo run --example work_queue`.
//!
//! Node 0 has a list of jobs in its memory. Workers on other nodes take the next one by an atomic
//! addition, read it, and write the answer beside it. While they work node 0's program has
//! nothing to do with it: it sleeps until a notification says that all is done.

use netvm::{Access, Node, Port, PortConfig, Result, Timeout};
use netvm_emulator::Emulator;
use std::time::Duration;

const WORKERS: u16 = 3;
const JOBS: u64 = 200;
/// In node 0's memory: the next job to take, how many are done, then for each job its question and its answer.
const NEXT: u64 = 0;
const DONE: u64 = 8;
const FIRST_JOB: u64 = 64;
const JOB_BYTES: u64 = 16;
/// The notification that says that the last job is done.
const FINISHED: u32 = 1;
/// Longest wait for anything.
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));

/// Takes jobs until there are none left. Returns how many it did.
fn work(node: &Node) -> Result<u64> {
    let port = Port::open(node, PortConfig::default())?;
    let queue = port.import(0.into(), 7.into(), "jobs", PATIENCE)?;
    let (next, done) = (queue.word64(NEXT)?, queue.word64(DONE)?);
    for mine in 0.. {
        // Each number goes to one worker, so no other worker has this job.
        let job = next.fetch_add(1)?;
        if job >= JOBS {
            return Ok(mine);
        }
        let at = FIRST_JOB + job * JOB_BYTES;
        let mut question = [0; 8];
        queue.read(at, &mut question).call()?;
        let answer = u64::from_le_bytes(question).pow(2);
        queue.write(at + 8, &answer.to_le_bytes()).post()?;
        // The answer is to be there before it counts as done. Ordered, the addition waits for it at
        // node 0; a flush in between would cost one more round trip.
        if done.add(1).ordered().call()? + 1 == JOBS {
            queue.notify(FINISHED)?;
            port.flush_remote(0.into())?;
        }
    }
    Ok(0)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new(1 + WORKERS)?;
    let home = Port::open(&network.node(0), PortConfig::number(7))?;
    let memory = home.alloc(FIRST_JOB + JOBS * JOB_BYTES)?;
    for job in 0..JOBS {
        memory.word64(FIRST_JOB + job * JOB_BYTES)?.store(job)?;
    }
    let access = Access::everyone().notify(FINISHED..=FINISHED);
    let _jobs = home.export("jobs", &memory, .., access)?;

    let workers: Vec<_> = (1..=usize::from(WORKERS))
        .map(|worker| network.node(worker))
        .map(|node| std::thread::spawn(move || work(&node)))
        .collect();
    home.notification(FINISHED)?.wait(PATIENCE)?;
    for job in 0..JOBS {
        let answer = memory.word64(FIRST_JOB + job * JOB_BYTES + 8)?.load()?;
        assert_eq!(answer, job * job, "the answer to job {job}");
    }
    let mut shares = Vec::new();
    for worker in workers {
        shares.push(worker.join().map_err(|_| "a worker panicked")??);
    }
    println!("{JOBS} jobs done, by {WORKERS} workers: {shares:?}");
    assert_eq!(shares.iter().sum::<u64>(), JOBS);
    Ok(())
}
