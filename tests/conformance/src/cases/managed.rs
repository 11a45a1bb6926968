//! A manager that lends its memory (`netvm-lease`): conflicts, waiting, revocation, and clients that die.
//!
//! A process may stand still for longer than a lease lasts, so no body demands that something is done before a short lease is over.

use super::failures::{settle, write_until_refused};
use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble, due, fails, holds, refused, right};
use crate::pattern;
use crate::side::{Shared, share, worse};
use netvm::{NodeId, Port, PortId, SharedConfig, SharedReceiver, SharedSender, Status};
use netvm_lease::{Client, ClientConfig, Error, Lease, Manager, ManagerConfig, Refusal, Wish};
use std::time::Duration;

const NAME: &str = "lender";
const KEY: u64 = 7;
const PART: u64 = 3 * 4096;
const POOL: u64 = 16 * 4096;
const DONE: u32 = 800;
/// Longer than any body lasts.
const LONG: Duration = Duration::from_secs(3000);
const SHORT: Duration = Duration::from_millis(3);
/// How often a manager looks whether it may go.
const PACE: Duration = Duration::from_millis(5);

/// How an access is refused under a lease that is over, or was taken away.
const OVER: &[Status] = &[Status::Expired, Status::CapabilityRefused, Status::Revoked];

/// The manager must refuse, and for this reason.
fn denied(result: Result<Lease, Error>, why: Refusal) -> Outcome {
    match result {
        Err(Error::Refused(told)) if told == why => Ok(()),
        Err(error) => Err(error.into()),
        Ok(lease) => Err(Trouble::Wrong(format!(
            "{lease:?} was granted in spite of {why:?}"
        ))),
    }
}

/// A manager, and a bell for it.
pub(super) struct Lender<'a> {
    env: &'a Env,
    _bell: Shared,
    pub(super) manager: Manager,
}

impl<'a> Lender<'a> {
    /// On node 1, port 0.
    pub(super) fn new(env: &'a Env) -> Outcome<Self> {
        let config = ManagerConfig::default().longest(2 * LONG);
        let mut manager = Manager::open(env.open(1, 0)?, NAME, POOL, config)?;
        let part = manager.define(KEY, PART)?;
        right!(part.end - part.start == PART, "the part is {part:?}");
        let _bell = share(manager.port(), "bell", 4096)?;
        Ok(Self { env, _bell, manager })
    }

    /// Serves until something is so.
    fn until(&mut self, mut holds: impl FnMut(&Manager) -> netvm::Result<bool>) -> Outcome {
        let patience = u64::try_from(self.env.patience.as_nanos()).unwrap_or(u64::MAX);
        let end = netvm::Nanos(self.manager.port().now().0.saturating_add(patience));
        while !holds(&self.manager)? {
            self.manager.serve(PACE)?;
            if self.manager.port().now() > end {
                return Err(netvm::Error::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Serves until the bell has rung once more.
    pub(super) fn serve(&mut self) -> Outcome {
        let bell = self.manager.port().notification(DONE)?;
        self.until(|_| Ok(bell.pending() > 0))?;
        Ok(bell.ack()?)
    }
}

/// Serves until all is done.
fn manage(env: &Env) -> Outcome {
    let mut lender = Lender::new(env)?;
    lender.serve()?;
    let nonsense = lender.manager.stats().nonsense;
    holds!(env, nonsense == 0, "{nonsense} messages made no sense");
    Ok(())
}

pub(super) fn client(env: &Env, node: usize, port: u16) -> Outcome<Client> {
    let manager: (NodeId, PortId) = (env.id(1), env.port_id(1, 0));
    let config = ClientConfig::default().patience(env.patience);
    Ok(Client::connect(env.open(node, port)?, manager, NAME, config)?)
}

fn landed(client: &Client, env: &Env) -> Outcome {
    Ok(client.port().flush_remote(env.id(1))?)
}

pub(super) fn ring(env: &Env, port: &Port) -> Outcome {
    env.import(port, 1, 0, "bell")?.notify(DONE)?;
    Ok(port.flush_remote(env.id(1))?)
}

/// Runs a manager on node 1 and this here, and lets the manager go in any case.
fn beside_manager(env: &Env, mine: impl FnOnce(&Env) -> Outcome) -> Outcome {
    env.both(manage, |env| {
        let mine = mine(env);
        let last = env.open(0, 3)?;
        worse(mine, ring(env, &last))
    })
}

/// Parts by their key: shared and exclusive, refused when they conflict, given back and lent again.
pub(super) fn lease_by_key(env: &Env) -> Outcome {
    beside_manager(env, |env| {
        let (mut one, mut two) = (client(env, 0, 0)?, client(env, 0, 1)?);
        one.echo()?;
        let exclusive = Wish::read_write(LONG).exclusive();
        let lease = one.acquire(KEY, exclusive)?;
        right!(lease.len() == PART && lease.key() == KEY, "{lease:?}");
        right!(lease.surely_left() <= LONG, "left: {:?}", lease.surely_left());
        lease.ensure(SHORT)?;
        lease.write(0, &pattern::bytes(3, 0, 4096)).post()?;
        denied(two.acquire(KEY, Wish::read(LONG)), Refusal::Conflict)?;
        denied(two.acquire(KEY, exclusive.waiting(SHORT)), Refusal::Conflict)?;
        denied(two.acquire(KEY + 1, Wish::read(LONG)), Refusal::NoSuchKey)?;
        for never in [Duration::ZERO, 3 * LONG, Duration::MAX] {
            denied(two.acquire(KEY, Wish::read(never)), Refusal::BadTime)?;
        }
        let left = lease.extend(2 * LONG)?;
        right!(
            lease.surely_left() <= left.left,
            "left: {left:?}, surely {:?}",
            lease.surely_left()
        );
        one.relinquish(lease)?;

        // Readers go together, and a writer beside them that does not mind.
        let reads = two.acquire(KEY, Wish::read(LONG))?;
        let beside = one.acquire(KEY, Wish::read_write(LONG))?;
        let mut bytes = vec![0; 4096];
        reads.read(0, &mut bytes).call()?;
        pattern::same(
            &bytes,
            &pattern::bytes(3, 0, 4096),
            0,
            "what the holder before wrote",
        )?;
        fails(
            reads.write(0, &[1]).post(),
            "a write under a lease to read",
            |e| matches!(e, netvm::Error::ModeRefused { .. }),
        )?;
        one.relinquish(beside)?;
        denied(one.acquire(KEY, exclusive), Refusal::Conflict)?;
        two.relinquish(reads)?;
        one.acquire(KEY, exclusive).map(drop)?;
        Ok(())
    })
}

/// Parts by their size, until there is no room; what is given back is found again, and holds zeros.
pub(super) fn lease_by_size(env: &Env) -> Outcome {
    beside_manager(env, |env| {
        let mut client = client(env, 0, 0)?;
        let wish = Wish::read_write(LONG).exclusive();
        for never in [0, 2 * POOL, u64::MAX] {
            denied(client.allocate(never, wish), Refusal::BadSize)?;
        }
        for round in 0..2 {
            let mut parts = Vec::new();
            let mut bytes = vec![1; 8192];
            loop {
                match client.allocate(8000, wish) {
                    Ok(part) => parts.push(part),
                    Err(Error::Refused(Refusal::NoRoom)) => break,
                    Err(error) => return Err(error.into()),
                }
                right!(parts.len() <= 8, "more parts than there can be");
            }
            // The part with a key has the other three pages.
            right!(parts.len() == 6, "{} parts of two pages", parts.len());
            for (at, part) in parts.iter().enumerate() {
                part.read(0, &mut bytes).call()?;
                right!(
                    bytes.iter().all(|byte| *byte == 0),
                    "round {round}: it holds something"
                );
                part.write(0, &pattern::bytes(at as u64, 0, 8192)).post()?;
            }
            landed(&client, env)?;
            for (at, part) in parts.into_iter().enumerate() {
                part.read(0, &mut bytes).call()?;
                pattern::same(&bytes, &pattern::bytes(at as u64, 0, 8192), 0, "a part")?;
                client.relinquish(part)?;
            }
        }
        Ok(())
    })
}

/// A lease ends by itself, and the one that waits has the part.
pub(super) fn lease_awaited(env: &Env) -> Outcome {
    beside_manager(env, |env| {
        let (mut one, mut two) = (client(env, 0, 0)?, client(env, 0, 1)?);
        for _ in 0..2 {
            let short = Wish::read_write(SHORT).exclusive().waiting(env.patience);
            let short = one.acquire(KEY, short)?;
            let next = Wish::read_write(LONG).exclusive().waiting(env.patience);
            let next = two.acquire(KEY, next)?;
            next.write(0, &[9; 64]).post()?;
            landed(&two, env)?;
            refused(short.read(0, &mut [0; 8]).call(), OVER)?;
            refused(
                short
                    .write(0, &[1; 64])
                    .fenced()
                    .post()
                    .and_then(|_| one.port().flush_remote(env.id(1))),
                OVER,
            )?;
            match one.relinquish(short) {
                Err(Error::Refused(Refusal::NoSuchLease)) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => return Err(Trouble::Wrong("a lease was given back after its end".into())),
            }
            let mut bytes = [0; 64];
            next.read(0, &mut bytes).call()?;
            right!(bytes == [9; 64], "the next holder's bytes have changed");
            two.relinquish(next)?;
        }
        Ok(())
    })
}

/// A manager takes a part away while a client writes: nothing is written after that.
pub(super) fn lease_taken_away(env: &Env) -> Outcome {
    env.both(
        |env| {
            let mut lender = Lender::new(env)?;
            let first = lender.manager.memory().word32(8)?;
            lender.until(|_| Ok(first.load()? != 0))?;
            lender.manager.revoke(KEY)?;
            right!(lender.manager.live() == 0, "a lease lives that was taken away");
            let mut before = vec![0; PART as usize];
            lender.manager.memory().read_into(0, &mut before)?;
            lender.serve()?;
            let memory = lender.manager.memory();
            pattern::check_bytes(memory, 0, &before, "memory after a revocation")?;
            let nothing = lender.manager.revoke(KEY + 1);
            right!(
                nothing
                    .as_ref()
                    .is_err_and(|error| error.refusal() == Some(Refusal::NoSuchKey)),
                "revoked nothing: {nothing:?}"
            );
            // All of a client.
            let (node, port) = (env.id(0), env.port_id(0, 0));
            lender.until(|manager| Ok(manager.live() == 1))?;
            lender.manager.revoke_client(node, port)?;
            right!(
                lender.manager.live() == 0,
                "a client has a lease that was taken away"
            );
            lender.serve()
        },
        |env| {
            let mine = || -> Outcome {
                let mut client = client(env, 0, 0)?;
                let lease = client.acquire(KEY, Wish::read_write(LONG).exclusive())?;
                write_until_refused(env, client.port(), &lease, OVER)?;
                refused(netvm::Leased::extend(&lease, LONG), OVER)?;
                ring(env, client.port())?;
                let reads = client.acquire(KEY, Wish::read(LONG))?;
                let deadline = env.deadline(client.port());
                loop {
                    match reads.read(0, &mut [0; 8]).call() {
                        Ok(()) => deadline.check()?,
                        other => break refused(other, OVER)?,
                    }
                    pass(client.port(), Duration::from_micros(100))?;
                }
                settle(env, client.port(), &reads)?;
                client.acquire(KEY, Wish::read(LONG)).map(drop)?;
                Ok(())
            };
            let mine = mine();
            let last = env.open(0, 3)?;
            // A client that has failed has not rung before.
            let rings = if mine.is_ok() { 1 } else { 2 };
            let rung = (0..rings).try_for_each(|_| ring(env, &last));
            worse(mine, rung)
        },
    )
}

/// What is no request, and what is no manager.
pub(super) fn lease_strangers(env: &Env) -> Outcome {
    env.both(
        |env| {
            let mut lender = Lender::new(env)?;
            lender.serve()?;
            let stats = lender.manager.stats();
            due!(stats.nonsense == 4 && stats.granted == 1, "{stats:?}");
            Ok(())
        },
        |env| {
            let mine = || -> Outcome {
                let mut honest = client(env, 0, 0)?;
                let stranger = env.open(0, 1)?;
                let (node, port) = (env.id(1), env.port_id(1, 0));
                let queue = SharedSender::join(&stranger, node, port, NAME, env.patience)?;
                let mut request = [0; 64];
                for message in [&[1; 1][..], &[0xFF; 64], &request] {
                    queue.send(message, env.patience)?;
                }
                // A request of a port that has not connected.
                request[..4].copy_from_slice(&0x4C52_0001_u32.to_le_bytes());
                request[4] = 1;
                request[8] = 4;
                queue.send(&request, env.patience)?;
                honest.acquire(KEY, Wish::read(LONG).exclusive()).map(drop)?;

                // A queue that no manager serves, and a name that is no queue.
                let _other = SharedReceiver::open(&stranger, "queue", SharedConfig::default())?;
                let _word = share(&stranger, "word", 4096)?;
                let no_manager = (env.id(0), env.port_id(0, 1));
                let connect = |name, patience| {
                    let config = ClientConfig::default().patience(patience);
                    Ok::<_, Trouble>(Client::connect(env.open(0, 2)?, no_manager, name, config))
                };
                let mut soon = SHORT;
                let quiet = loop {
                    match connect("queue", soon)? {
                        // A machine that is busy took so long to import the queue.
                        Err(Error::Library(error))
                            if error.status() == Some(Status::TimedOut) && soon < env.patience =>
                        {
                            soon *= 4;
                        }
                        other => break other,
                    }
                };
                fits(quiet, |error| matches!(error, Error::NoAnswer))?;
                fits(connect("word", env.patience)?, |error| {
                    matches!(error, Error::Library(netvm::Error::NotAChannel { .. }))
                })
            };
            let mine = mine();
            let last = env.open(0, 3)?;
            worse(mine, ring(env, &last))
        },
    )
}

/// A client cannot connect, and for such a reason.
fn fits(result: Result<Client, Error>, reason: impl FnOnce(&Error) -> bool) -> Outcome {
    match result {
        Err(error) if reason(&error) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(client) => Err(Trouble::Wrong(format!(
            "{client:?} has connected to what is no manager"
        ))),
    }
}

/// A client dies with an exclusive lease: the one that waits has the part when that is over.
pub(super) fn lease_client_dies(env: &Env) -> Outcome {
    let victim = env.spawn(2, "victim", |env| {
        let mut dead = client(env, 2, 1)?;
        let wish = Wish::read_write(SHORT).exclusive();
        let lease = dead.acquire(KEY, wish)?;
        let _doomed = share(dead.port(), "doomed", 4096)?;
        let source = dead.port().alloc(4096)?;
        source.write_from(0, &[7; 4096])?;
        // The other end may be gone before it kills.
        let deadline = env.deadline(dead.port());
        loop {
            deadline.check()?;
            // Dies while it writes, or extends, or is refused.
            let _ = lease.ensure(SHORT);
            let _ = lease.write(0, source.slice(..)?).post();
            let _ = landed(&dead, env);
            pass(dead.port(), Duration::from_micros(20))?;
        }
    });
    let outcome = beside_manager(env, |env| {
        let mut heir = client(env, 0, 0)?;
        // It lives, and has the lease.
        let _doomed = env.import(heir.port(), 2, 1, "doomed")?;
        victim.kill();
        let wish = Wish::read_write(LONG).exclusive().waiting(env.patience);
        let lease = heir.acquire(KEY, wish)?;
        lease.write(0, &[8; 4096]).post()?;
        landed(&heir, env)?;
        pass(heir.port(), Duration::from_millis(1))?;
        let mut bytes = [0; 4096];
        lease.read(0, &mut bytes).call()?;
        right!(
            bytes == [8; 4096],
            "a dead client's write has landed in the next lease"
        );
        heir.relinquish(lease)?;
        Ok(())
    });
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => outcome,
        other => worse(outcome, other),
    }
}
