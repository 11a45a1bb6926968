//! The software card as a node's machine.

use std::sync::Arc;
use std::time::Duration;

use netvm_abi::port_area::PORT_STATE;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, PortId, Status, WordIndex};
use netvm_host::platform::PageGone;
use netvm_soft::Parts;
use netvm_soft::card::SoftCard;

use crate::life::Life;
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

/// A node's card.
pub(crate) struct ProcessCard {
    card: Arc<SoftCard>,
    life: Life,
    shared: Arc<netvm_soft::memory::WordSpace>,
    states: Vec<WordIndex>,
}

impl ProcessCard {
    pub(super) fn new(card: Arc<SoftCard>, life: Life, parts: &Parts) -> Self {
        let map = SharedMap::new(&parts.geometry);
        let state = |port| WordIndex(map.port_area(PortId(port)).0 + PORT_STATE.0);
        Self {
            card,
            life,
            shared: Arc::clone(&parts.shared),
            states: (0..parts.geometry.ports).map(state).collect(),
        }
    }

    pub(super) fn is_this_process(&self) -> bool {
        self.life.is_present()
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
        if self.life.is_present() {
            self.card.run();
        } else {
            self.orphan();
        }
    }

    fn kick_in_passing(&self) {
        if self.life.is_present() {
            self.card.run_in_passing();
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
        if self.life.is_present() {
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
        self.life.is_present()
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
