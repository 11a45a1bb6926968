//! Leases: rights to memory that end by themselves.
//!
//! The owner [lends](Export::lend) a part of an export to one port for a time, and gets a [token](Lent::token) of 64 bytes. It hands the token
//! to that port by any means, a message for one. The holder [uses](crate::Port::use_lease) it as an import; no driver is asked.
//! The card at the memory's node ends the lease by its own clock, also when owner and holder stand still. The holder
//! [extends](Leased::extend) it by one round trip to that card.
//!
//! | call | of | costs |
//! |---|---|---|
//! | [`Export::lend`] | owner | a call of its driver |
//! | [`Leased::extend`] | holder | one round trip to the owner's card, nothing of its host |
//! | [`Lent::left`] | owner | a question to its own card |
//! | [`Lent::revoke`] | owner | a call of its driver, which waits for what is under way |
//!
//! **What the end means.** An access that reaches the owner's card after the end fails with
//! [`Status::Expired`](crate::Status::Expired). One that it let through before may still be under way, for as long as a copy of a page takes. Memory is
//! free of the lease when [`revoke`](Lent::revoke) returns, also if the lease was over before.

use crate::atomic::PendingAtomic;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::import::{RemoteSegment, granted};
use crate::port::PortInner;
use crate::region::resolve;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::control::{Grant, Modes};
use netvm_abi::descriptor::Opcode;
use netvm_abi::lease::{LeaseId, LeaseSpec};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::{CapabilitySlot, Generation, Nanos, NodeId, NotificationId, PortId, VirtAddr};
use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct LeaseTerms {
    duration: Duration,
    longest: Duration,
}

impl LeaseTerms {
    /// So long, and not longer: it cannot be extended.
    pub const fn lasting(duration: Duration) -> Self {
        Self {
            duration,
            longest: duration,
        }
    }

    /// Extensions can make it last so long, from its beginning on, and no longer.
    pub const fn at_most(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// How long it lasts unless it is extended.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// How long it lasts at most.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// Both, as a card counts them.
    fn nanos(&self) -> Result<(Nanos, Nanos)> {
        let why = if self.duration.is_zero() {
            "it would last for no time"
        } else if self.longest < self.duration {
            "its longest life is shorter than its duration"
        } else if self.longest > FOR_EVER {
            "more than a year is for ever: export the memory instead"
        } else {
            return Ok((nanos(self.duration), nanos(self.longest)));
        };
        Err(Error::BadLease { why })
    }
}

/// The longest life that is not for ever.
const FOR_EVER: Duration = Duration::from_secs(366 * 24 * 60 * 60);

fn nanos(span: Duration) -> Nanos {
    Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// What the holder of a lease needs to use it: 64 bytes that the owner hands to it. They prove its right, so they are as
/// secret as that. They are of use to the port alone that the memory was lent to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeaseToken {
    node: NodeId,
    port: PortId,
    generation: Generation,
    grant: Grant,
    duration: Nanos,
}

impl LeaseToken {
    /// Bytes of a token.
    pub const BYTES: usize = 64;

    /// Of the memory's node.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Of the owner's port.
    #[must_use]
    pub const fn port(&self) -> PortId {
        self.port
    }

    /// Bytes that are lent.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a lease of no bytes cannot be made")]
    pub const fn len(&self) -> u64 {
        self.grant.len
    }

    /// What the holder may do.
    #[must_use]
    pub const fn modes(&self) -> Modes {
        self.grant.modes
    }

    /// How long it lasts unless it is extended.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration.0)
    }

    /// Tells it from every other lease of the owner's node.
    #[must_use]
    pub const fn id(&self) -> u64 {
        (self.generation.0 as u64) << 32 | self.grant.capability.0 as u64
    }

    /// To be sent.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let grant = &self.grant;
        let words = [
            u64::from(self.node.0)
                | u64::from(self.port.0) << 16
                | u64::from(grant.modes.bits()) << 32
                | MARK << 48,
            self.id(),
            grant.start.0,
            grant.len,
            grant.secret,
            u64::from(grant.notify_first.0) | u64::from(grant.notify_last.0) << 32,
            self.duration.0,
            0,
        ];
        let mut bytes = [0; Self::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// As it came.
    ///
    /// # Errors
    /// [`Error::BadLease`] for bytes that are no token.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut words = [0; Self::BYTES / 8];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*from);
        }
        let [names, id, start, len, secret, notified, duration, _] = words;
        let generation = Generation((id >> 32) as u32);
        let whole = start.checked_add(len).is_some() && len != 0;
        if names >> 48 != MARK || !whole || generation.0 == 0 {
            return Err(Error::BadLease {
                why: "these bytes are no token of a lease",
            });
        }
        Ok(Self {
            node: NodeId(names as u16),
            port: PortId((names >> 16) as u16),
            generation,
            grant: Grant {
                start: VirtAddr(start),
                len,
                capability: CapabilitySlot(id as u32),
                secret,
                modes: Modes::from_bits_truncate((names >> 32) as u16),
                notify_first: NotificationId(notified as u32),
                notify_last: NotificationId((notified >> 32) as u32),
                queue: QueueShape::NONE,
            },
            duration: Nanos(duration),
        })
    }
}

/// Marks the bytes of a token, with their version.
const MARK: u64 = 0x4C01;

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret.
        write!(
            f,
            "LeaseToken({:#x} of port {} on node {}, {} bytes, {:?})",
            self.id(),
            self.port,
            self.node,
            self.grant.len,
            self.grant.modes
        )
    }
}

/// How much of a lease is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLeft {
    /// Before it is over, unless it is extended.
    pub left: Duration,
    /// Before it is over however it is extended.
    pub at_most: Duration,
}

impl TimeLeft {
    const fn of(result: AtomicResult) -> Self {
        Self {
            left: Duration::from_nanos(result.value),
            at_most: Duration::from_nanos(result.second),
        }
    }
}

impl Export {
    /// Lends a part of it to one port, for a time. Whether that port may import the export does not matter.
    ///
    /// # Errors
    /// [`Error::BadLease`] for a time that cannot be, [`Error::OutOfRange`], [`Error::Empty`], [`Error::Released`], [`Error::PortClosed`];
    /// [`Error::Refused`] for modes that the export does not have, or when the table of capabilities is full
    /// ([`Status::TableFull`](crate::Status::TableFull)), or where the back end cannot lend.
    pub fn lend(
        &self,
        range: impl RangeBounds<u64>,
        to: (NodeId, PortId),
        modes: Modes,
        terms: LeaseTerms,
    ) -> Result<Lent> {
        let inner = self.inner();
        if inner.ended.load(Ordering::Acquire) {
            return Err(Error::Released);
        }
        inner.port.alive()?;
        let (duration, longest) = terms.nanos()?;
        let (offset, len) = resolve(&range, inner.len)?;
        if len == 0 {
            return Err(Error::Empty { what: "a lease" });
        }
        let spec = LeaseSpec {
            export: inner.export,
            start: VirtAddr(inner.start.0.wrapping_add(offset)),
            len,
            modes,
            node: to.0,
            port: to.1,
            duration,
            longest,
        };
        let lent = inner.port.backend.lend(&spec);
        let (lease, grant) = lent.map_err(|reason| Error::Refused { what: "lend", reason })?;
        Ok(Lent {
            export: self.clone(),
            lease,
            token: LeaseToken {
                node: inner.port.node_id(),
                port: inner.port.backend.port(),
                generation: lease.generation,
                grant,
                duration,
            },
            revoked: AtomicBool::new(false),
        })
    }
}

/// A lease that this port has given. It keeps the export.
#[must_use = "dropping it revokes the lease"]
pub struct Lent {
    export: Export,
    lease: LeaseId,
    token: LeaseToken,
    revoked: AtomicBool,
}

impl Lent {
    /// What its holder needs.
    #[must_use]
    pub const fn token(&self) -> &LeaseToken {
        &self.token
    }

    /// Asks the card of this node how much is left. `None`: it is over, for good.
    ///
    /// # Errors
    /// [`Error::PortClosed`], [`Error::PortEnded`], [`Error::Refused`].
    pub fn left(&self) -> Result<Option<Duration>> {
        let port = &self.export.inner().port;
        port.alive()?;
        let left = port.backend.lease_left(self.lease);
        let left = left.map_err(|reason| Error::Refused {
            what: "ask what is left of a lease",
            reason,
        })?;
        Ok((left.0 != 0).then(|| Duration::from_nanos(left.0)))
    }

    /// Ends it now, if it is not over. When this returns no operation that it allowed touches the memory any more.
    ///
    /// # Errors
    /// [`Error::PortClosed`], [`Error::Refused`].
    pub fn revoke(self) -> Result<()> {
        Self::revoke_all([self])
    }

    /// Ends leases of one port now, which waits once for all of them.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke). All are gone from the program in any case.
    pub fn revoke_all(leases: impl IntoIterator<Item = Self>) -> Result<()> {
        let leases: Vec<Self> = leases.into_iter().collect();
        let mut rest = leases.as_slice();
        while let Some(first) = rest.first() {
            let port = &first.export.inner().port;
            let same = rest
                .iter()
                .take_while(|lent| Arc::ptr_eq(&lent.export.inner().port, port))
                .count();
            let (these, others) = rest.split_at(same);
            rest = others;
            let ids: Vec<LeaseId> = these.iter().map(|lent| lent.lease).collect();
            for lent in these {
                lent.revoked.store(true, Ordering::Relaxed);
            }
            if port.closed.load(Ordering::Acquire) {
                return Err(Error::PortClosed);
            }
            port.backend.recall(&ids).map_err(|reason| Error::Refused {
                what: "revoke a lease",
                reason,
            })?;
        }
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let port = &self.export.inner().port;
        if !self.revoked.load(Ordering::Relaxed) && !port.closed.load(Ordering::Acquire) {
            // No caller is left to report an error to.
            let _ = port.backend.recall(&[self.lease]);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({:?})", self.token)
    }
}

/// Memory of another port that this port may use for a time. It is used as a [`RemoteSegment`] is. It is over when the owner's card
/// says so; dropping it tells no other node.
#[derive(Clone, Debug)]
pub struct Leased {
    remote: RemoteSegment,
    token: LeaseToken,
}

impl Deref for Leased {
    type Target = RemoteSegment;

    fn deref(&self) -> &RemoteSegment {
        &self.remote
    }
}

impl Leased {
    /// What it was made from.
    #[must_use]
    pub const fn token(&self) -> &LeaseToken {
        &self.token
    }

    /// Makes it end so long from now, unless it ends later anyway, and not past its longest life. One round trip. Zero asks what is left.
    ///
    /// # Errors
    /// [`Error::Failed`] with [`Expired`](crate::Status::Expired) when it is over, or [`CapabilityRefused`](crate::Status::CapabilityRefused) when it was revoked;
    /// [`Error::Released`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn extend(&self, by: Duration) -> Result<TimeLeft> {
        self.begin_extend(by)?.wait()
    }

    /// The same, without waiting for the answer.
    ///
    /// # Errors
    /// [`Error::Released`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn begin_extend(&self, by: Duration) -> Result<PendingExtension> {
        let remote = self.remote.inner();
        remote.check()?;
        let mut command = remote.command(0);
        command.opcode = Opcode::ExtendLease;
        command.operand = nanos(by).0;
        command.compare = self.token.generation.0.into();
        PendingAtomic::begin(&remote.port, command, false).map(PendingExtension)
    }
}

/// An extension under way. It can be waited for and awaited.
#[must_use = "an answer is lost unless the caller waits for it"]
#[derive(Debug)]
pub struct PendingExtension(PendingAtomic);

impl PendingExtension {
    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`Leased::extend`].
    pub fn wait(self) -> Result<TimeLeft> {
        self.0.wait().map(TimeLeft::of)
    }
}

impl Future for PendingExtension {
    type Output = Result<TimeLeft>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|result| result.map(TimeLeft::of))
    }
}

/// Uses a lease by its token.
pub(crate) fn use_lease(port: &Arc<PortInner>, token: &LeaseToken) -> Result<Leased> {
    port.check_node(token.node)?;
    port.alive()?;
    Ok(Leased {
        remote: granted(port, (token.node, token.port), "lease", token.grant, true),
        token: *token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> LeaseToken {
        LeaseToken {
            node: NodeId(7),
            port: PortId(9),
            generation: Generation(5),
            grant: Grant {
                start: VirtAddr(0x7f12_3456_0010),
                len: 4096,
                capability: CapabilitySlot(0x1_0000),
                secret: u64::MAX - 1,
                modes: Modes::READ | Modes::NOTIFY,
                notify_first: NotificationId(3),
                notify_last: NotificationId(2000),
                queue: QueueShape::NONE,
            },
            duration: Nanos::from_millis(50),
        }
    }

    #[test]
    fn a_token_comes_as_it_was_sent_and_tells_no_secret() {
        let sent = token();
        let bytes = sent.to_bytes();
        assert_eq!(LeaseToken::from_bytes(&bytes), Ok(sent));
        assert!(!format!("{sent:?}").contains(&format!("{:x}", u64::MAX - 1)));
        assert_eq!(
            (sent.node(), sent.port(), sent.len()),
            (NodeId(7), PortId(9), 4096)
        );
        assert_eq!(
            (sent.modes(), sent.duration()),
            (Modes::READ | Modes::NOTIFY, Duration::from_millis(50))
        );
        assert_eq!(sent.id(), 0x5_0001_0000);
        for damaged in [6usize, 7, 12] {
            let mut bytes = bytes;
            bytes[damaged] = 0;
            let whole = LeaseToken::from_bytes(&bytes);
            assert!(
                matches!(whole, Err(Error::BadLease { .. })),
                "byte {damaged}: {whole:?}"
            );
        }
        assert!(LeaseToken::from_bytes(&[0; 64]).is_err());
    }

    #[test]
    fn times_that_cannot_be_are_refused_with_a_reason() {
        let hour = Duration::from_secs(3600);
        assert_eq!(LeaseTerms::lasting(hour).nanos(), Ok((nanos(hour), nanos(hour))));
        for terms in [
            LeaseTerms::lasting(Duration::ZERO),
            LeaseTerms::lasting(hour).at_most(Duration::from_secs(1)),
            LeaseTerms::lasting(hour).at_most(Duration::MAX),
        ] {
            assert!(matches!(terms.nanos(), Err(Error::BadLease { .. })), "{terms:?}");
        }
    }
}
