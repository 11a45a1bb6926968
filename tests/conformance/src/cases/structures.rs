//! Structures in a manager's memory whose clients die at any instruction (`netvm_lease::tables`).

use super::managed::{Lender, client, ring};
use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble, due, right};
use crate::pattern;
use crate::side::{share, worse};
use netvm::Status;
use netvm_lease::tables::{Queue, QueueClient, QueueConfig, Table, TableClient, TableConfig};
use netvm_lease::{Error, Manager};
use std::time::Duration;

const NAME: &str = "structure";
/// The first key of the structure.
const FIRST: u64 = 100;
/// Keys of the table: more than a bucket has places for.
const KEYS: u64 = 6;
const VALUE: usize = 40;
/// Operations without a pause. After these the other process has failed, which should have killed this one, or put something in: this one
/// goes on, and leaves the back end's time to others.
const BUSY: u64 = 100;

/// Runs a structure's manager on node 1 and this here, and lets the manager go in any case.
fn beside<T>(
    env: &Env,
    create: fn(&mut Manager) -> Result<T, Error>,
    mine: impl FnOnce(&Env) -> Outcome,
) -> Outcome
where
    T: 'static,
{
    env.both(
        move |env| {
            let mut lender = Lender::new(env)?;
            let _structure = create(&mut lender.manager)?;
            lender.serve()
        },
        |env| {
            let mine = mine(env);
            let last = env.open(0, 3)?;
            worse(mine, ring(env, &last))
        },
    )
}

/// A call whose lease may have been over before its end: this process has stood still. It has changed nothing then.
fn tolerant<T>(call: Result<T, Error>) -> Outcome<Option<T>> {
    match call {
        Err(Error::Library(error)) if error.status() == Some(Status::Expired) => Ok(None),
        done => Ok(Some(done?)),
    }
}

/// How long a part may be held: a small share of the patience.
fn holds(env: &Env) -> Duration {
    (env.patience / 8).min(Duration::from_millis(100))
}

/// Calls again while the lease that a call had was over before its end.
fn patient<T>(env: &Env, port: &netvm::Port, mut call: impl FnMut() -> Result<T, Error>) -> Outcome<T> {
    let deadline = env.deadline(port);
    loop {
        if let Some(done) = tolerant(call())? {
            return Ok(done);
        }
        deadline.check()?;
    }
}

fn table(env: &Env, node: usize, port: u16) -> Outcome<TableClient> {
    let mut table = TableClient::open(client(env, node, port)?, NAME)?;
    table.holds(holds(env));
    table.waits(env.patience);
    Ok(table)
}

fn queue(env: &Env, node: usize, port: u16) -> Outcome<QueueClient> {
    let mut queue = QueueClient::open(client(env, node, port)?, NAME)?;
    queue.holds(holds(env));
    queue.waits(env.patience);
    Ok(queue)
}

/// A value that says whose it is, and of which round.
fn value(key: u64, round: u64) -> Vec<u8> {
    let mut bytes = round.to_le_bytes().to_vec();
    bytes.extend(pattern::bytes(key << 32 | round, 0, VALUE - 8));
    bytes
}

fn round_of(key: u64, bytes: &[u8]) -> Outcome<u64> {
    let round = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
    right!(
        bytes == value(key, round),
        "the value of {key} is a mixture: {bytes:?}"
    );
    Ok(round)
}

/// Writers of a table, of which one dies while it writes.
pub(super) fn lease_table(env: &Env) -> Outcome {
    let victim = env.spawn(2, "victim", |env| {
        let mut table = table(env, 2, 1)?;
        let port = env.open(2, 2)?;
        let deadline = env.deadline(&port);
        let mut doomed = None;
        for round in 1.. {
            deadline.check()?;
            if round > BUSY / KEYS {
                pass(&port, env.patience / 40)?;
            }
            for key in 0..KEYS {
                tolerant(table.insert(key, &value(key, round)))?;
                if round % 3 == 2 {
                    tolerant(table.remove(key))?;
                }
            }
            if doomed.is_none() {
                doomed = Some(share(&port, "doomed", 4096)?);
            }
        }
        Ok(())
    });
    let create = |manager: &mut Manager| {
        let config = TableConfig::default()
            .buckets(2)
            .places(8)
            .value_bytes(VALUE as u32);
        Table::create(manager, NAME, FIRST, config)
    };
    let outcome = beside(env, create, |env| {
        let mut table = table(env, 0, 0)?;
        let port = env.open(0, 2)?;
        right!(table.get(1 << 40)?.is_none(), "a key that there never was");
        let _doomed = env.import(&port, 2, 2, "doomed")?;
        let mut last = [0; KEYS as usize];
        for look in 0..env.scaled(8) {
            if look == 4 {
                victim.kill();
            }
            for (key, last) in (0..).zip(&mut last) {
                let Some(bytes) = table.get(key)? else { continue };
                let round = round_of(key, &bytes)?;
                right!(
                    round >= *last,
                    "{key} has the value of round {round} after that of {last}"
                );
                *last = round;
            }
        }
        // It goes on, also in the bucket in which the other one died.
        let mut here = 0;
        for key in 0..KEYS {
            if patient(env, &port, || table.insert(key, &value(key, 1 << 20)))? {
                here += 1;
                let bytes = table.get(key)?.unwrap_or_default();
                right!(bytes == value(key, 1 << 20), "{key} has {bytes:?}");
            }
        }
        right!(here == KEYS, "{here} of {KEYS} keys have found room");
        for key in 0..KEYS {
            due!(patient(env, &port, || table.remove(key))?, "{key} is not there");
            right!(table.get(key)?.is_none(), "{key} is there after its removal");
        }
        Ok(())
    });
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => outcome,
        other => worse(outcome, other),
    }
}

/// What was taken out of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Nothing,
    Theirs,
    Mine,
}

/// A producer dies while it puts items in; what it has put in is there once, and in order.
pub(super) fn lease_queue(env: &Env) -> Outcome {
    let victim = env.spawn(2, "victim", |env| {
        let mut queue = queue(env, 2, 1)?;
        let port = env.open(2, 2)?;
        let deadline = env.deadline(&port);
        let mut doomed = None;
        let mut number = 1_u64;
        let mut done = 0;
        while !deadline.passed() {
            done += 1;
            if done > BUSY {
                pass(&port, env.patience / 40)?;
            }
            // Else it is full, or nothing was put in.
            if tolerant(queue.push(&number.to_le_bytes()))? == Some(true) {
                number += 1;
            }
            if doomed.is_none() && number > 2 {
                doomed = Some(share(&port, "doomed", 4096)?);
            }
        }
        Ok(())
    });
    let create = |manager: &mut Manager| {
        let config = QueueConfig::default().items(3).item_bytes(8);
        Queue::create(manager, NAME, FIRST, config)
    };
    let outcome = beside(env, create, |env| {
        let mut queue = queue(env, 0, 0)?;
        let port = env.open(0, 2)?;
        let _doomed = env.import(&port, 2, 2, "doomed")?;
        let mut next = 1_u64;
        let mine = u64::MAX.to_le_bytes();
        let mut take = |queue: &mut QueueClient| -> Outcome<Taken> {
            let Some(item) = patient(env, &port, || queue.pop())? else {
                return Ok(Taken::Nothing);
            };
            if item == mine {
                return Ok(Taken::Mine);
            }
            right!(item == next.to_le_bytes(), "{item:?} instead of number {next}");
            next += 1;
            Ok(Taken::Theirs)
        };
        let deadline = env.deadline(&port);
        let (mut taken, mut looks) = (0, 0);
        while taken < env.scaled(6) {
            deadline.check()?;
            looks += 1;
            if looks > BUSY {
                pass(&port, env.patience / 40)?;
            }
            taken += u32::from(take(&mut queue)? == Taken::Theirs);
        }
        victim.kill();
        // It goes on, behind what the other has put in.
        while !patient(env, &port, || queue.push(&mine))? {
            deadline.check()?;
            take(&mut queue)?;
        }
        loop {
            deadline.check()?;
            match take(&mut queue)? {
                Taken::Theirs => {}
                Taken::Mine => return Ok(()),
                Taken::Nothing => return Err(Trouble::Wrong("an item that was put in is not there".into())),
            }
        }
    });
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => outcome,
        other => worse(outcome, other),
    }
}
