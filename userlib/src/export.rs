//! Giving names and rights to memory (thesis 4.1).

use crate::backend::{Admission, ExportSpec, Refusal};
use crate::error::{Error, Result};
use crate::notify::GivenAway;
use crate::port::PortInner;
use crate::ranges::RangeKey;
use crate::region::{Region, resolve};
use netvm_abi::control::{Modes, Name};
use netvm_abi::ioctl::ALLOW_ENTRIES;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::{ExportId, NodeId, NotificationId, PortId, VirtAddr};
use parking_lot::Mutex;
use std::fmt;
use std::ops::{RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The access list of an export: what each importer may do. A caller may do what any of the lines that fit it allows;
/// there are at most 16. The order of the calls does not matter.
///
/// ```
/// use netvm::{Access, Modes};
/// // Every port may read; port 3 of node 2 may also write. All of them may signal notifications 1 to 10.
/// let access = Access::everyone()
///     .modes(Modes::READ)
///     .and_port(2.into(), 3.into(), Modes::READ | Modes::WRITE)
///     .notify(1..=10);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Access {
    /// The numbers that all lines may signal.
    notify: Option<(NotificationId, NotificationId)>,
    /// Those numbers are the library's own.
    own: bool,
    admit: Vec<Admission>,
    /// Modes for all ports.
    others: Option<Modes>,
    /// Modes for leases.
    lends: Modes,
}

impl Access {
    /// Every port may read, write and do atomics.
    pub const fn everyone() -> Self {
        let modes = Modes::READ.union(Modes::WRITE).union(Modes::ATOMIC);
        Self {
            notify: None,
            own: false,
            admit: Vec::new(),
            others: Some(modes),
            lends: Modes::empty(),
        }
    }

    /// No port has access; add nodes and ports with [`and_node`](Self::and_node) and [`and_port`](Self::and_port).
    pub const fn nobody() -> Self {
        Self {
            notify: None,
            own: false,
            admit: Vec::new(),
            others: None,
            lends: Modes::empty(),
        }
    }

    /// No port may import; what is [lent](Export::lend) of it may have these modes.
    pub const fn lent(modes: Modes) -> Self {
        let mut access = Self::nobody();
        access.lends = modes;
        access
    }

    /// All ports of this node may read, write and do atomics; other nodes get no access.
    pub fn only(node: NodeId) -> Self {
        Self::nobody().and_node(node, Modes::READ | Modes::WRITE | Modes::ATOMIC)
    }

    /// What every port may do, beside signalling the numbers of [`notify`](Self::notify) .
    pub const fn modes(mut self, modes: Modes) -> Self {
        self.others = Some(modes);
        self
    }

    /// Names a node and what its ports may do, beside what every port may.
    pub fn and_node(self, node: NodeId, modes: Modes) -> Self {
        self.and(Admission {
            node: Some(node),
            port: None,
            modes,
        })
    }

    /// Names a port of a node and what it may do, beside what its node may.
    pub fn and_port(self, node: NodeId, port: PortId, modes: Modes) -> Self {
        self.and(Admission {
            node: Some(node),
            port: Some(port),
            modes,
        })
    }

    /// One more line.
    pub(crate) fn and(mut self, admission: Admission) -> Self {
        self.admit.push(admission);
        self
    }

    /// Ports that may import it may also signal these notifications of the port.
    ///
    /// Leave out numbers that the library uses for locks, queues, semaphores and channels of the same port: from 1022
    /// downward, as many as there are such objects, and 897 to 959 for up to 56 participants. A signal from elsewhere is a
    /// token too many to a semaphore. So an export that takes in such a number is refused, and so is an object that would
    /// need a number which an export gives away. Numbers up to 895, and from 1024, always do.
    pub fn notify(mut self, ids: RangeInclusive<u32>) -> Self {
        self.notify = Some((NotificationId(*ids.start()), NotificationId(*ids.end())));
        self
    }

    /// The same for numbers that an object of the library owns.
    pub(crate) fn notify_own(mut self, ids: RangeInclusive<u32>) -> Self {
        self.own = true;
        self.notify(ids)
    }

    /// What a line allows, all told.
    const fn with_notify(&self, modes: Modes) -> Modes {
        match self.notify {
            Some(_) => modes.union(Modes::NOTIFY),
            None => modes,
        }
    }

    /// The most that any importer may do.
    fn most(&self) -> Modes {
        let lines = self.admissions();
        let none = self.with_notify(self.lends);
        lines.iter().fold(none, |most, line| most | line.modes)
    }

    /// Its lines, including the one for all other ports.
    pub(crate) fn admissions(&self) -> Vec<Admission> {
        let others = self.others.map(|modes| Admission {
            node: None,
            port: None,
            modes,
        });
        let lines = self.admit.iter().copied().chain(others);
        lines
            .map(|line| Admission {
                modes: self.with_notify(line.modes),
                ..line
            })
            .collect()
    }
}

/// A named export of a port's memory. Ends, for all importers at once, when it is
/// [unexported](Self::unexport) or its last clone is dropped.
#[derive(Clone)]
#[must_use = "dropping an export revokes it"]
pub struct Export {
    inner: Arc<ExportInner>,
}

pub(crate) struct ExportInner {
    pub(crate) port: Arc<PortInner>,
    pub(crate) export: ExportId,
    name: String,
    region: Region,
    pub(crate) start: VirtAddr,
    pub(crate) len: u64,
    key: RangeKey,
    /// Numbers that the program gives away with it, until it has ended.
    gives: Mutex<Option<GivenAway>>,
    pub(crate) ended: AtomicBool,
}

pub(crate) fn export(
    port: &Arc<PortInner>,
    name: &str,
    region: &Region,
    range: &impl RangeBounds<u64>,
    access: &Access,
) -> Result<Export> {
    export_queue(port, name, region, range, access, QueueShape::NONE)
}

/// As [`export`], of a range that is a shared queue.
pub(crate) fn export_queue(
    port: &Arc<PortInner>,
    name: &str,
    region: &Region,
    range: &impl RangeBounds<u64>,
    access: &Access,
    queue: QueueShape,
) -> Result<Export> {
    port.alive()?;
    let wire_name = Name::new(name).map_err(|_| Error::Name { name: name.into() })?;
    if !region.belongs_to(&port.identity) {
        return Err(Error::ForeignRegion);
    }
    if region.is_everything() {
        return Err(Error::Export {
            name: name.into(),
            reason: Refusal::Unsupported(
                "all memory of the process is for local operands: export what another port allocates or adopts",
            ),
        });
    }
    let (offset, len) = resolve(range, region.len())?;
    if len == 0 {
        return Err(Error::Empty { what: "an export" });
    }
    let admit = access.admissions();
    if admit.len() > ALLOW_ENTRIES {
        return Err(Error::AccessTooLong {
            lines: admit.len(),
            limit: ALLOW_ENTRIES,
        });
    }
    let none = (NotificationId::NONE, NotificationId::NONE);
    let (modes, (first, last)) = (access.most(), access.notify.unwrap_or(none));
    if modes.contains(Modes::NOTIFY) && (!first.is_some() || last < first) {
        return Err(Error::NotificationNumber { id: first });
    }
    let gives = match access.notify {
        Some(range) if !access.own => Some(GivenAway::new(port, range)?),
        _ => None,
    };
    let start = VirtAddr(region.address().0.wrapping_add(offset));
    let spec = ExportSpec {
        segment: region.segment(),
        name: wire_name,
        start,
        len,
        modes,
        notify_first: first,
        notify_last: last,
        queue,
        admit: &admit,
    };
    let export = port.backend.export(&spec).map_err(|reason| Error::Export {
        name: name.into(),
        reason,
    })?;
    let inner = Arc::new_cyclic(|weak| {
        let key = port.exports.lock().insert((), start, len, weak.clone());
        ExportInner {
            port: Arc::clone(port),
            export,
            name: name.to_owned(),
            region: region.clone(),
            start,
            len,
            key,
            gives: Mutex::new(gives),
            ended: AtomicBool::new(false),
        }
    });
    Ok(Export { inner })
}

impl Export {
    pub(crate) const fn from_inner(inner: Arc<ExportInner>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &ExportInner {
        &self.inner
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The region that it is a part of.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> VirtAddr {
        self.inner.start
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an export of no bytes cannot be made")]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Takes the name away and revokes every import of it. When this returns no remote operation
    /// that the export allowed touches the memory any more.
    ///
    /// # Errors
    /// [`Error::Released`] if that was done before, [`Error::PortClosed`], [`Error::Refused`].
    pub fn unexport(&self) -> Result<()> {
        self.inner.end()
    }
}

impl ExportInner {
    fn end(&self) -> Result<()> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Err(Error::Released);
        }
        self.port.exports.lock().remove((), self.key);
        if self.port.closed.load(Ordering::Acquire) {
            return Err(Error::PortClosed);
        }
        let ended = self.port.backend.unexport(self.export);
        // No peer signals these from now on.
        let gives = self.gives.lock().take();
        drop(gives);
        ended.map_err(|reason| Error::Refused {
            what: "unexport",
            reason,
        })
    }
}

impl Drop for ExportInner {
    fn drop(&mut self) {
        // No caller is left to report an error to; a port that is closed or gone has ended its exports itself.
        let _ = self.end();
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.inner;
        write!(
            f,
            "Export({:?}, {:#x}, {} bytes)",
            inner.name, inner.start.0, inner.len
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call, in each order of the three.
    #[test]
    fn the_order_of_the_calls_does_not_matter() {
        let calls: [fn(Access) -> Access; 3] = [
            |access| access.modes(Modes::READ),
            |access| access.and_port(NodeId(2), PortId(3), Modes::WRITE),
            |access| access.notify(1..=10),
        ];
        let line = |node, port, modes| Admission { node, port, modes };
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let access = order.iter().fold(Access::everyone(), |access, &call: &usize| {
                calls.get(call).map_or(access.clone(), |call| call(access))
            });
            let lines = [
                line(Some(NodeId(2)), Some(PortId(3)), Modes::WRITE | Modes::NOTIFY),
                line(None, None, Modes::READ | Modes::NOTIFY),
            ];
            assert_eq!(access.admissions(), lines, "{order:?}");
            assert_eq!(access.most(), Modes::READ | Modes::WRITE | Modes::NOTIFY);
        }
        assert_eq!(Access::everyone().modes(Modes::READ).most(), Modes::READ);
    }
}
