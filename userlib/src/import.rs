//! Binding to memory that others export (thesis 4.1.3).

use crate::backend::{ImportRequest, Refusal};
use crate::error::{Error, Result};
use crate::failure::Stream;
use crate::port::PortInner;
use crate::ranges::RangeKey;
use crate::read::{Read, Target};
use crate::timeout::Timeout;
use crate::words::FastWords;
use crate::write::{Source, Write};
use netvm_abi::control::{Grant, Modes, Name};
use netvm_abi::descriptor::{Command, WriteTemplate};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::{Nanos, NodeId, NotificationId, PortId, Status, VirtAddr};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long one request may be under way before it is repeated.
pub(crate) const ROUND_TRIP: Nanos = Nanos::from_millis(1000);
/// Pause before the second request; each later one is twice as long.
const FIRST_PAUSE: Nanos = Nanos::from_micros(200);
/// Longest pause.
const LONGEST_PAUSE: Nanos = Nanos::from_millis(20);

/// Memory of another port that this port may use: the result of an import.
///
/// Cheap to clone. The import ends when it is [released](Self::unimport) or the last clone is dropped. Either waits
/// until what was written to that node has landed, or failed: nothing that was posted is lost by it.
#[derive(Clone)]
pub struct RemoteSegment {
    inner: Arc<RemoteInner>,
}

pub(crate) struct RemoteInner {
    pub(crate) port: Arc<PortInner>,
    pub(crate) node: NodeId,
    exporter: PortId,
    name: String,
    grant: Grant,
    /// It is a lease: no driver is told when it is let go of.
    lent: bool,
    /// What every write to it has in common.
    pub(crate) template: WriteTemplate,
    pub(crate) stream: Arc<Stream>,
    /// What writes to it touch, where that is mapped.
    pub(crate) fast: Option<FastWords>,
    /// Bytes that may be written as things stand: all, or none if the grant lacks the mode or has been
    /// released.
    writable: AtomicU64,
    key: RangeKey,
    released: AtomicBool,
}

/// Whether the reason may go away by itself.
const fn passing(reason: &Refusal) -> bool {
    matches!(
        reason,
        Refusal::Status(
            Status::NoSuchExport
                | Status::NoSuchPort
                | Status::LinkLost
                | Status::TimedOut
                | Status::StaleIncarnation
        )
    )
}

pub(crate) fn import(
    port: &Arc<PortInner>,
    node: NodeId,
    exporter: PortId,
    name: &str,
    modes: Modes,
    timeout: Timeout,
) -> Result<RemoteSegment> {
    import_while(port, node, exporter, name, modes, timeout, &|| true)
}

/// As [`import`], and gives up between two requests when the result is not wanted any more.
pub(crate) fn import_while(
    port: &Arc<PortInner>,
    node: NodeId,
    exporter: PortId,
    name: &str,
    modes: Modes,
    timeout: Timeout,
    is_wanted: &dyn Fn() -> bool,
) -> Result<RemoteSegment> {
    port.check_node(node)?;
    let wire_name = Name::new(name).map_err(|_| Error::Name { name: name.into() })?;
    let request = ImportRequest {
        node,
        port: exporter,
        name: &wire_name,
        modes,
    };
    let deadline = timeout.deadline(port.backend.now());
    let mut pause = FIRST_PAUSE;
    let grant = loop {
        port.alive()?;
        let now = port.backend.now();
        let answer_by = match timeout {
            Timeout::Now => now.after(ROUND_TRIP),
            _ => deadline.min(now.after(ROUND_TRIP)),
        };
        match port.backend.import(&request, answer_by) {
            Ok(grant) if grant.start.checked_add(grant.len).is_some() => break grant,
            Ok(grant) => {
                port.backend.release(node, &grant);
                return Err(Error::Import {
                    node,
                    port: exporter,
                    name: name.into(),
                    reason: Refusal::Status(Status::Malformed),
                });
            }
            Err(reason) => {
                let now = port.backend.now();
                if !passing(&reason) || now >= deadline || !is_wanted() {
                    return Err(Error::Import {
                        node,
                        port: exporter,
                        name: name.into(),
                        reason,
                    });
                }
                port.pause(deadline.min(now.after(pause)))?;
                pause = Nanos(pause.0 * 2).min(LONGEST_PAUSE);
            }
        }
    };
    Ok(granted(port, (node, exporter), name, grant, false))
}

/// What a port has by a grant. `lent`: by a lease, so no driver is told when it is let go of.
pub(crate) fn granted(
    port: &Arc<PortInner>,
    (node, exporter): (NodeId, PortId),
    name: &str,
    grant: Grant,
    lent: bool,
) -> RemoteSegment {
    let stream = port.poster().failures.stream(node);
    let inner = Arc::new_cyclic(|weak| {
        let key = port
            .imports
            .lock()
            .insert((node, exporter), grant.start, grant.len, weak.clone());
        RemoteInner {
            port: Arc::clone(port),
            node,
            exporter,
            name: name.to_owned(),
            template: WriteTemplate::new(&Command {
                node,
                port: exporter,
                capability: grant.capability,
                secret: grant.secret,
                ..Command::default()
            }),
            stream,
            fast: FastWords::new(&port.block, &port.area, &port.status, node),
            writable: AtomicU64::new(if grant.modes.contains(Modes::WRITE) {
                grant.len
            } else {
                0
            }),
            grant,
            lent,
            key,
            released: AtomicBool::new(false),
        }
    });
    RemoteSegment { inner }
}

impl PortInner {
    /// Waits until this time.
    pub(crate) fn pause(&self, until: Nanos) -> Result<()> {
        loop {
            let token = self.backend.wait_token();
            self.alive()?;
            if self.backend.now() >= until {
                return Ok(());
            }
            self.backend.block(token, until);
        }
    }
}

impl RemoteSegment {
    pub(crate) const fn from_inner(inner: Arc<RemoteInner>) -> Self {
        Self { inner }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &RemoteInner {
        &self.inner
    }

    /// The exporting node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// The exporting port.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.inner.exporter
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its first address at the exporter.
    #[must_use]
    pub fn address(&self) -> VirtAddr {
        self.inner.grant.start
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.grant.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the exporter allows.
    #[must_use]
    pub fn modes(&self) -> Modes {
        self.inner.grant.modes
    }

    /// A write of `source` (a slice of a region: zero-copy; bytes: staged) to `offset` on. Nothing
    /// happens before it is [posted](Write::post).
    #[inline(always)]
    pub fn write<'a>(&'a self, offset: u64, source: impl Into<Source<'a>>) -> Write<'a> {
        Write::new(self, offset, source.into())
    }

    /// A read from `offset` on into `target`: a slice of a region (zero-copy) or bytes (staged). Nothing
    /// happens before it is [posted](Read::post), or [called](Read::call) for bytes.
    pub fn read<T: Target>(&self, offset: u64, target: T) -> Read<'_, T::Place> {
        Read::new(self, offset, target.place())
    }

    /// A notification with no data: the same as a write of no bytes.
    ///
    /// # Errors
    /// As [`Write::post`].
    pub fn notify(&self, id: impl Into<NotificationId>) -> Result<netvm_abi::OpId> {
        self.write(0, &[]).notify(id).post()
    }

    /// Ends the import, for all clones of it. If anything was written to that node since the last
    /// [`flush_remote`](crate::Port::flush_remote), this takes a round trip.
    ///
    /// # Errors
    /// [`Error::Released`] if that was done before.
    pub fn unimport(&self) -> Result<()> {
        self.inner.release()
    }
}

impl RemoteInner {
    /// Whether it may still be used.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.released.load(Ordering::Acquire) {
            return Err(Error::Released);
        }
        self.port.alive()
    }

    /// Checks a transfer of `len` bytes from `offset` on in this mode against the import map.
    #[inline]
    pub(crate) const fn check_transfer(&self, offset: u64, len: u64, mode: Modes) -> Result<()> {
        if len > 0 && !self.grant.modes.contains(mode) {
            return Err(Error::ModeRefused {
                needed: mode,
                granted: self.grant.modes,
            });
        }
        crate::region::check_range(offset, len, self.grant.len)
    }

    /// The address of these bytes at the exporter, if the import is in use and allows to write them and
    /// to signal this notification, if any: the checks above and below in one, for a caller that need
    /// not know what is wrong. `len` is not zero.
    #[inline(always)]
    pub(crate) fn writable(&self, offset: u64, len: u64, notification: NotificationId) -> Option<VirtAddr> {
        let end = offset.checked_add(len)?;
        let allowed = end <= self.writable.load(Ordering::Relaxed)
            && (!notification.is_some() || self.allows_notification(notification));
        allowed.then(|| self.address(offset))
    }

    #[inline]
    fn allows_notification(&self, id: NotificationId) -> bool {
        let grant = &self.grant;
        grant.modes.contains(Modes::NOTIFY) && (grant.notify_first..=grant.notify_last).contains(&id)
    }

    /// Checks a notification number against the import map.
    #[inline]
    pub(crate) fn check_notification(&self, id: NotificationId) -> Result<()> {
        let grant = &self.grant;
        if !grant.modes.contains(Modes::NOTIFY) {
            return Err(Error::ModeRefused {
                needed: Modes::NOTIFY,
                granted: grant.modes,
            });
        }
        if !id.is_some() || id < grant.notify_first || id > grant.notify_last {
            return Err(Error::NotificationRefused {
                id,
                first: grant.notify_first,
                last: grant.notify_last,
            });
        }
        Ok(())
    }

    /// The address of this offset at the exporter.
    #[inline]
    pub(crate) const fn address(&self, offset: u64) -> VirtAddr {
        VirtAddr(self.grant.start.0.wrapping_add(offset))
    }

    /// The shared queue that it is.
    pub(crate) const fn queue(&self) -> QueueShape {
        self.grant.queue
    }

    /// A descriptor with everything that follows from the import.
    #[inline]
    pub(crate) fn command(&self, offset: u64) -> Command {
        Command {
            node: self.node,
            port: self.exporter,
            capability: self.grant.capability,
            secret: self.grant.secret,
            remote: self.address(offset),
            ..Command::default()
        }
    }

    fn release(&self) -> Result<()> {
        if self.released.swap(true, Ordering::AcqRel) {
            return Err(Error::Released);
        }
        self.writable.store(0, Ordering::Release);
        self.port
            .imports
            .lock()
            .remove((self.node, self.exporter), self.key);
        if !self.port.closed.load(Ordering::Acquire) {
            self.settle();
            if !self.lent {
                self.port.backend.release(self.node, &self.grant);
            }
        }
        Ok(())
    }

    /// The capability ends with the import, and what arrives after that is refused. So it stays until
    /// everything posted before is there: a lock that was handed over with a write on its way would
    /// protect nothing, for one.
    fn settle(&self) {
        if self.stream.is_busy() && !std::thread::panicking() {
            // A port that has ended has nothing under way; and failures are told by the next call to the node.
            let _ = self.port.settle(self.node);
        }
    }
}

impl Drop for RemoteInner {
    fn drop(&mut self) {
        // Released before: nothing is left to do.
        let _ = self.release();
    }
}

impl fmt::Debug for RemoteSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret.
        let inner = &self.inner;
        write!(
            f,
            "RemoteSegment({:?} of port {} on node {}, {} bytes, {:?})",
            inner.name, inner.exporter, inner.node, inner.grant.len, inner.grant.modes
        )
    }
}
