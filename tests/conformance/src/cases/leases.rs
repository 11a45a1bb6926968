//! Leases: memory that is lent for a time, to one port (promise P5).
//!
//! A process may stand still for longer than a lease lasts, so no body demands that something is done before a short lease is over.

use super::failures::{settle, write_until_refused};
use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble, fails, refused, right};
use crate::pattern;
use crate::side::{Shared, Side, worse};
use netvm::{
    Access, Error, Export, LeaseTerms, LeaseToken, Leased, Lent, Modes, NodeId, PortId, Region,
    RemoteSegment, Status, Timeout,
};
use std::ops::{Range, RangeBounds};
use std::time::Duration;

const DONE: u32 = 800;
const TOKEN: u32 = 801;
/// Longer than any body lasts.
const LONG: Duration = Duration::from_secs(3000);
const SHORT: Duration = Duration::from_millis(3);
const READ_WRITE: Modes = Modes::READ.union(Modes::WRITE);

/// How a lease that was taken back is refused.
const REVOKED: &[Status] = &[Status::CapabilityRefused, Status::Revoked];

/// One that lends to its peer.
struct Owner {
    side: Side,
    memory: Region,
    export: Export,
    _bell: Shared,
    /// Where the peer takes tokens.
    desk: RemoteSegment,
}

impl Owner {
    fn new(side: Side, len: u64) -> Outcome<Self> {
        let memory = side.alloc(len)?;
        let export = side.export("lent", &memory, .., Access::lent(READ_WRITE))?;
        let _bell = side.share("bell", 4096)?;
        let desk = side.import_peer("desk")?;
        Ok(Self {
            side,
            memory,
            export,
            _bell,
            desk,
        })
    }

    fn lend(&self, range: impl RangeBounds<u64>, modes: Modes, terms: LeaseTerms) -> Outcome<Lent> {
        let to = (self.side.peer(), self.side.peer_port(0));
        Ok(self.export.lend(range, to, modes, terms)?)
    }

    /// Lends, and hands the token over.
    fn give(&self, range: impl RangeBounds<u64>, modes: Modes, terms: LeaseTerms) -> Outcome<Lent> {
        let lent = self.lend(range, modes, terms)?;
        self.desk
            .write(0, &lent.token().to_bytes())
            .notify(TOKEN)
            .post()?;
        self.side.flush_peer()?;
        Ok(lent)
    }

    /// Waits until the card says that a lease is over.
    fn await_end(&self, lent: &Lent) -> Outcome {
        self.side
            .until(Duration::from_micros(200), || Ok(lent.left()?.is_none()))?;
        Ok(())
    }
}

/// One that is lent to.
struct Holder {
    side: Side,
    desk: Shared,
    bell: RemoteSegment,
}

impl Holder {
    fn new(side: Side) -> Outcome<Self> {
        let desk = side.share("desk", 4096)?;
        let bell = side.import_peer("bell")?;
        Ok(Self { side, desk, bell })
    }

    fn take(&self) -> Outcome<Leased> {
        self.side.take_signal(TOKEN)?;
        let mut bytes = [0; LeaseToken::BYTES];
        self.desk.read_into(0, &mut bytes)?;
        let token = LeaseToken::from_bytes(&bytes)?;
        right!(
            token.node() == self.side.peer(),
            "a token of node {}",
            token.node()
        );
        right!(
            token.port() == self.side.peer_port(0),
            "a token of port {}",
            token.port()
        );
        Ok(self.side.use_lease(&token)?)
    }

    fn ring(&self) -> Outcome {
        self.bell.notify(DONE)?;
        self.side.flush_peer()
    }
}

/// A lease is used like an import, within its range and modes.
pub(super) fn lent_and_used(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let owner = Owner::new(side, 4 * 4096)?;
            pattern::store(&owner.memory, 0, 7, 0, 4 * 4096)?;
            let terms = LeaseTerms::lasting(LONG).at_most(2 * LONG);
            let lent = owner.give(1000..9000, READ_WRITE, terms)?;
            right!(lent.token().len() == 8000, "{lent:?}");
            let left = lent.left()?;
            right!(left.is_some_and(|left| left <= 2 * LONG), "left: {left:?}");
            owner.side.take_signal(DONE)?;
            let _reads = owner.give(.., Modes::READ, terms)?;
            owner.side.take_signal(DONE)?;
            pattern::check(&owner.memory, 0, 7, 0, 1000, "memory before the lease")?;
            pattern::check(&owner.memory, 1000, 8, 0, 8000, "memory that was lent")?;
            pattern::check(&owner.memory, 9000, 7, 9000, 4 * 4096 - 9000, "memory behind it")
        },
        move |side| {
            let holder = Holder::new(side)?;
            let side = &holder.side;
            // Lent, and not for import.
            refused(
                side.import(side.peer(), side.peer_port(0), "lent", Timeout::Now),
                &[Status::NotAllowed],
            )?;
            let lease = holder.take()?;
            let mut bytes = vec![0; 8000];
            lease.read(0, &mut bytes).call()?;
            pattern::same(&bytes, &pattern::bytes(7, 1000, 8000), 0, "read under a lease")?;
            lease.write(0, &pattern::bytes(8, 0, 8000)).post()?;
            side.flush_peer()?;
            fails(lease.write(7999, &[1, 2]).post(), "past the range", |e| {
                matches!(e, Error::OutOfRange { .. })
            })?;
            let left = lease.extend(Duration::ZERO)?;
            right!(left.left <= LONG && left.at_most <= 2 * LONG, "asked: {left:?}");
            let longer = lease.begin_extend(2 * LONG)?.wait()?;
            let extended = longer.left > left.left && longer.left <= left.at_most;
            right!(extended, "extended: {longer:?} after {left:?}");
            holder.ring()?;
            let reads = holder.take()?;
            fails(reads.write(0, &[1]).post(), "a write under one to read", |e| {
                matches!(e, Error::ModeRefused { .. })
            })?;
            reads.read(1000, &mut bytes).call()?;
            pattern::same(&bytes, &pattern::bytes(8, 0, 8000), 0, "read what was written")?;
            holder.ring()
        },
    )
}

/// What cannot be lent is refused with a reason.
pub(super) fn lease_refusals(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let owner = Owner::new(side, 4096)?;
            let terms = LeaseTerms::lasting(LONG);
            let _lent = owner.give(.., Modes::READ, terms)?;
            let to = (owner.side.peer(), owner.side.peer_port(0));
            let lend = |range: Range<u64>, modes, terms| owner.export.lend(range, to, modes, terms);
            for terms in [
                LeaseTerms::lasting(Duration::ZERO),
                LeaseTerms::lasting(Duration::MAX),
                LeaseTerms::lasting(LONG).at_most(SHORT),
            ] {
                fails(lend(0..8, Modes::READ, terms), "a time that cannot be", |e| {
                    matches!(e, Error::BadLease { .. })
                })?;
            }
            fails(lend(0..4097, Modes::READ, terms), "too many bytes", |e| {
                matches!(e, Error::OutOfRange { .. })
            })?;
            fails(lend(8..8, Modes::READ, terms), "no byte", |e| {
                matches!(e, Error::Empty { .. })
            })?;
            refused(lend(0..8, Modes::ATOMIC, terms), &[Status::NotAllowed])?;
            let nowhere = (NodeId(u16::MAX), PortId(1));
            refused(
                owner.export.lend(0..8, nowhere, Modes::READ, terms),
                &[Status::NoSuchNode],
            )?;
            owner.side.take_signal(DONE)?;
            owner.export.unexport()?;
            fails(lend(0..8, Modes::READ, terms), "an export that has ended", |e| {
                *e == Error::Released
            })
        },
        move |side| {
            let holder = Holder::new(side)?;
            let lease = holder.take()?;
            // It is lent to one port.
            let other = holder.side.env.open(0, 1)?;
            let stolen = other.use_lease(lease.token())?;
            refused(stolen.read(0, &mut [0; 8]).call(), REVOKED)?;
            refused(stolen.extend(LONG), REVOKED)?;
            lease.read(0, &mut [0; 8]).call()?;
            holder.ring()
        },
    )
}

/// A lease ends by itself, and nothing is written under it after that.
pub(super) fn lease_ends(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let owner = Owner::new(side, 3 * 4096)?;
            for _ in 0..2 {
                let lent = owner.give(.., READ_WRITE, LeaseTerms::lasting(SHORT))?;
                owner.await_end(&lent)?;
                right!(lent.left()?.is_none(), "a lease goes on that was over");
                lent.revoke()?;
                // It is this port's own again.
                pattern::store(&owner.memory, 0, 3, 0, 3 * 4096)?;
                owner.side.take_signal(DONE)?;
                pattern::check(&owner.memory, 0, 3, 0, 3 * 4096, "memory after its lease")?;
                // Nothing of it is awaited any more.
                owner.desk.notify(DONE)?;
                owner.side.flush_peer()?;
            }
            Ok(())
        },
        move |side| {
            let holder = Holder::new(side)?;
            for _ in 0..2 {
                let lease = holder.take()?;
                let over = &[Status::Expired, Status::CapabilityRefused, Status::Revoked];
                write_until_refused(&holder.side.env, &holder.side, &lease, over)?;
                refused(lease.extend(LONG), over)?;
                refused(lease.read(0, &mut [0; 8]).call(), over)?;
                settle(&holder.side.env, &holder.side, &holder.bell)?;
                drop(lease);
                holder.ring()?;
                holder.side.take_signal(DONE)?;
            }
            Ok(())
        },
    )
}

/// A lease goes on while it is extended, also for what finds no page.
pub(super) fn lease_extended(env: &Env) -> Outcome {
    let rounds = env.scaled(12);
    env.pair(
        move |side| {
            let owner = Owner::new(side, 16 * 4096)?;
            let terms = LeaseTerms::lasting(SHORT).at_most(LONG);
            let lent = owner.give(.., READ_WRITE, terms)?;
            let over = |lent: &Lent| Ok(lent.left()?.is_none());
            let done = owner.side.notification(DONE)?;
            owner.side.until(Duration::from_micros(300), || {
                owner.side.env.pressure(1);
                Ok(done.pending() > 0 || over(&lent)?)
            })?;
            take_signal(&owner.side.env, &owner.side, DONE)?;
            let mut told = [0; 8];
            owner._bell.read_into(0, &mut told)?;
            let written = u64::from_le_bytes(told);
            lent.revoke()?;
            // A page holds what was written to it last. Of the one after that nothing is known.
            for page in (0..written.min(16)).filter(|page| *page != written % 16) {
                let last = (written - 1 - page) / 16 * 16 + page;
                pattern::check(&owner.memory, page * 4096, last, 0, 4096, "an acknowledged write")?;
            }
            Ok(())
        },
        move |side| {
            let holder = Holder::new(side)?;
            let lease = holder.take()?;
            let mut written = 0u64;
            let source = holder.side.alloc(4096)?;
            for round in 0..u64::from(rounds) {
                match lease.extend(Duration::from_millis(20)) {
                    Ok(left) => right!(left.left <= left.at_most, "{left:?}"),
                    // This process stood still for too long.
                    Err(error) if error.status() == Some(Status::Expired) => break,
                    Err(error) => return Err(error.into()),
                }
                pattern::store(&source, 0, round, 0, 4096)?;
                lease
                    .write(round % 16 * 4096, source.slice(..)?)
                    .fenced()
                    .post()?;
                match holder.side.flush_peer() {
                    Ok(()) => written += 1,
                    Err(Trouble::Failed(Error::Failed(failure))) if failure.status == Status::Expired => {
                        settle(&holder.side.env, &holder.side, &holder.bell)?;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            holder.bell.write(0, &written.to_le_bytes()).post()?;
            holder.ring()
        },
    )
}

/// After a revocation has returned nothing is written any more, and a late extension changes nothing.
pub(super) fn lease_revoked(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let owner = Owner::new(side, 3 * 4096)?;
            let terms = LeaseTerms::lasting(LONG);
            let lent = owner.give(.., READ_WRITE, terms)?;
            let first = owner.memory.word32(8)?;
            owner
                .side
                .until(Duration::from_micros(10), || Ok(first.load()? != 0))?;
            lent.revoke()?;
            let mut before = vec![0; 3 * 4096];
            owner.memory.read_into(0, &mut before)?;
            // Its place is another's by now.
            let next = owner.lend(.., Modes::READ, terms)?;
            owner.side.take_signal(DONE)?;
            pattern::check_bytes(&owner.memory, 0, &before, "memory after a revocation")?;
            right!(next.left()?.is_some(), "the next lease is over, too");
            Lent::revoke_all([next])?;
            Ok(())
        },
        move |side| {
            let holder = Holder::new(side)?;
            let lease = holder.take()?;
            write_until_refused(&holder.side.env, &holder.side, &lease, REVOKED)?;
            refused(lease.extend(LONG), REVOKED)?;
            holder.ring()
        },
    )
}

/// What a holder had that died comes back when its lease is over.
pub(super) fn lease_of_the_dead(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let holder = Holder::new(env.side(1, 0)?)?;
        let lease = holder.take()?;
        holder.ring()?;
        let source = holder.side.alloc(4096)?;
        // The other end may be gone before it kills.
        let deadline = holder.side.env.deadline(&holder.side);
        loop {
            deadline.check()?;
            // Dies while it writes, or extends, or is refused.
            let _ = lease.extend(SHORT);
            let _ = lease.write(0, source.slice(..)?).post();
            let _ = holder.side.flush_remote(holder.side.peer());
            pass(&holder.side, Duration::from_micros(20))?;
        }
    });
    let mine = || -> Outcome {
        let owner = Owner::new(env.side(0, 1)?, 4096)?;
        let terms = LeaseTerms::lasting(SHORT).at_most(LONG);
        let lent = owner.give(.., READ_WRITE, terms)?;
        owner.side.take_signal(DONE)?;
        victim.kill();
        owner.await_end(&lent)?;
        lent.revoke()?;
        pattern::store(&owner.memory, 0, 5, 0, 4096)?;
        pass(&owner.side, Duration::from_millis(1))?;
        pattern::check(&owner.memory, 0, 5, 0, 4096, "memory that came back")
    };
    let mine = mine();
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => worse(mine, other),
    }
}
