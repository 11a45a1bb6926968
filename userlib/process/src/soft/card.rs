//! The software card as a node's machine, and how a child of `fork` is told apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netvm_abi::port_area::PORT_STATE;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, PortId, Status, WordIndex};
use netvm_host::platform::PageGone;
use netvm_soft::card::SoftCard;
use netvm_soft::{PAGE_BYTES, Parts};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::machine::Machine;

/// Rings in memory lose nothing, and a process may lose its processor for long: patience with a link that works costs nothing.
/// The death of a peer is told by its socket. What is posted to a peer that is gone fails when greetings have had no answer,
/// after 32 ms; a peer that is only slow is greeted again ([`super::SoftNode::connect`]).
///
/// UDP does lose, and tells of no death: with it a peer is asked each 100 ms while something is outstanding, and is lost when
/// it has been silent for some 3 s, or for `peer_timeout`.
pub(super) fn timers(udp: bool, peer_timeout: Option<Duration>) -> netvm_soft::Timers {
    let usual = netvm_soft::Timers {
        queueing: SOFT_QUEUEING,
        ..netvm_soft::Timers::default()
    };
    if udp {
        return peer_timeout.map_or(usual, |timeout| within(timeout, usual));
    }
    netvm_soft::Timers {
        probe_interval: Nanos::from_millis(2_000),
        gap_timeout: Nanos::from_millis(60_000),
        hello_interval: Nanos::from_millis(4),
        hello_limit: 8,
        // A ring holds a window: what waits in it is in no other link's way.
        queueing: Nanos::MAX,
        ..usual
    }
}

/// A datagram waits in a socket until its process gets a processor, as one in a switch waits for its link.
const SOFT_QUEUEING: Nanos = Nanos::from_millis(2);

/// The most probes in a row. A message may be sent again twice as often and some, which is a byte: for twice the time, so that the
/// probes decide.
const MOST_PROBES: u8 = 120;

/// The usual time spans, with a peer lost after so long.
///
/// As many probes as usual, at least: each may be lost. And no longer between two than usual, as far as they are not too many: that
/// time also bounds the wait until what is lost leaves again.
fn within(peer_timeout: Duration, usual: netvm_soft::Timers) -> netvm_soft::Timers {
    let timeout = u64::try_from(peer_timeout.as_nanos()).unwrap_or(u64::MAX);
    let wanted = (timeout / usual.probe_interval.0).saturating_sub(1);
    let fits = wanted.clamp(usual.probe_limit.into(), MOST_PROBES.into());
    // The look after the last probe finds the peer lost.
    netvm_soft::Timers {
        probe_interval: Nanos(timeout / (fits + 1)),
        probe_limit: u8::try_from(fits).unwrap_or(MOST_PROBES),
        ..usual
    }
}

/// A word that is 1 in the process that made it and 0 in its children: the kernel wipes its page at a `fork`.
pub(super) struct Marker {
    at: usize,
}

impl Marker {
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice; the advice concerns it alone.
        let at = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let at = rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE)?;
            rustix::mm::madvise(at, PAGE_BYTES, Advice::LinuxWipeOnFork)?;
            at
        };
        let marker = Self {
            at: at.expose_provenance(),
        };
        marker.word().store(1, Ordering::Relaxed);
        Ok(marker)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is this value's own, and aligned.
        unsafe { &*core::ptr::with_exposed_provenance(self.at) }
    }

    fn is_mine(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: the page is this value's own, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(self.at), PAGE_BYTES) };
    }
}

/// A node's card.
pub(crate) struct ProcessCard {
    card: Arc<SoftCard>,
    marker: Marker,
    shared: Arc<netvm_soft::memory::WordSpace>,
    states: Vec<WordIndex>,
}

impl ProcessCard {
    pub(super) fn new(card: Arc<SoftCard>, marker: Marker, parts: &Parts) -> Self {
        let map = SharedMap::new(&parts.geometry);
        let state = |port| WordIndex(map.port_area(PortId(port)).0 + PORT_STATE.0);
        Self {
            card,
            marker,
            shared: Arc::clone(&parts.shared),
            states: (0..parts.geometry.ports).map(state).collect(),
        }
    }

    pub(super) fn is_this_process(&self) -> bool {
        self.marker.is_mine()
    }

    /// In a child of fork, whose copy of these words is its own: every port is dead.
    #[cold]
    fn orphan(&self) {
        for state in &self.states {
            self.shared.store_release(*state, Status::CardGone as u32);
        }
    }
}

impl Machine for ProcessCard {
    fn now(&self) -> Nanos {
        self.card.now()
    }

    #[inline]
    fn kick(&self) {
        if self.marker.is_mine() {
            self.card.run();
        } else {
            self.orphan();
        }
    }

    fn spins_per_run(&self) -> Option<u32> {
        Some(2)
    }

    fn served(&self) -> u32 {
        self.card.served()
    }

    fn rest(&self) {
        if self.marker.is_mine() {
            self.card.rest();
        } else {
            self.orphan();
        }
    }

    fn linger(&self, port: PortId) {
        self.card.drain(port, super::LINGER);
    }

    fn halt(&self) {
        self.card.halt();
    }

    fn page_gone(&self, _: PageGone) {
        // The process' own stores have set the kernel's marks.
    }

    fn is_ours(&self) -> bool {
        self.marker.is_mine()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_lost_after_the_time_that_was_chosen() {
        let usual = netvm_soft::Timers {
            queueing: SOFT_QUEUEING,
            ..netvm_soft::Timers::default()
        };
        assert_eq!(timers(true, None), usual);
        for millis in [200, 500, 3_200, 3_300, 10_000, 12_100, 60_000, 600_000] {
            let chosen = timers(true, Some(Duration::from_millis(millis)));
            let (interval, limit) = (chosen.probe_interval, u64::from(chosen.probe_limit));
            let lost = Nanos((limit + 1) * interval.0);
            let wanted = Nanos::from_millis(millis);
            assert!(
                lost <= wanted && lost.after(Nanos(1_000)) > wanted,
                "{millis} ms: {lost:?}"
            );
            assert!(chosen.probe_limit >= usual.probe_limit);
            if millis <= 12_100 {
                assert!(
                    interval <= Nanos(usual.probe_interval.0 * 11 / 10),
                    "{millis} ms: {interval:?}"
                );
            }
            // Probes decide, not what is sent again.
            assert!(chosen.resend_time() > lost, "{millis} ms");
        }
        assert_eq!(timers(true, Some(Duration::from_millis(3_200))), usual);
        assert_eq!(timers(false, Some(Duration::from_secs(1))), timers(false, None));
    }
}
