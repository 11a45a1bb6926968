//! In which runs of a card its socket is asked for datagrams.
//!
//! To ask is a system call, which costs several times what the rest of a run does that finds nothing. So while the card's rings
//! are busy and nothing is to be expected over UDP, the socket is asked each [`PAUSE`] only. At all other times each run asks: a
//! thread that waits for UDP sees a datagram as soon as it can.
//!
//! No datagram is left lying. Among the runs of busy threads, the first that comes [`PAUSE`] after the last asking takes it. When
//! no thread runs the card any more, its helper does: it looks in within a tick, asks then, and once it blocks it waits for the
//! socket as well. The kernel wakes it for what lies there already, not only for what comes.

use netvm_abi::Nanos;

/// How long rings that are busy keep the card from its socket.
pub(crate) const PAUSE: Nanos = Nanos(10_000);
/// For how long after a datagram, of either direction, the next one is expected: a round trip of a local network.
pub(crate) const EXPECTED: Nanos = Nanos(100_000);

/// What a card has moved so far, both ways.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Messages over rings.
    pub(crate) rings: u64,
    /// Datagrams.
    pub(crate) datagrams: u64,
}

/// What is remembered from run to run.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    seen: Traffic,
    expected_until: Nanos,
    paused_until: Nanos,
}

impl Attention {
    /// Whether this run asks.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Nanos, traffic: Traffic) -> bool {
        if traffic.datagrams != self.seen.datagrams {
            self.seen.datagrams = traffic.datagrams;
            self.expected_until = now.after(EXPECTED);
        }
        let rings_are_busy = traffic.rings != self.seen.rings;
        if rings_are_busy && now < self.paused_until && now >= self.expected_until {
            return false;
        }
        self.seen.rings = traffic.rings;
        self.paused_until = now.after(PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100;

    #[test]
    fn busy_rings_keep_the_card_from_its_socket_for_a_pause_at_most() {
        let mut attention = Attention::default();
        let mut traffic = Traffic::default();
        let mut asked = Vec::new();
        for at in (0..10 * PAUSE.0).step_by(STEP as usize) {
            traffic.rings += 1;
            if attention.is_due(Nanos(at), traffic) {
                asked.push(at);
            }
        }
        assert_eq!(
            asked,
            (0..10 * PAUSE.0).step_by(PAUSE.0 as usize).collect::<Vec<u64>>()
        );
    }

    #[test]
    fn each_run_asks_while_rings_rest() {
        let mut attention = Attention::default();
        let traffic = Traffic {
            rings: 5,
            ..Traffic::default()
        };
        assert!((0..50).all(|run| attention.is_due(Nanos(run * STEP), traffic)));
    }

    #[test]
    fn each_run_asks_while_a_datagram_is_expected() {
        let mut attention = Attention::default();
        let mut traffic = Traffic::default();
        let mut now = 0;
        let mut run = |datagram: bool| {
            now += STEP;
            traffic.rings += 1;
            traffic.datagrams += u64::from(datagram);
            attention.is_due(Nanos(now), traffic)
        };
        assert!(run(false) && !run(false));
        assert!(run(true), "one has left");
        let expected = EXPECTED.0 / STEP;
        assert!((1..expected).all(|_| run(false)));
        assert!((0..PAUSE.0 / STEP - 1).all(|_| !run(false)), "it is late");
        assert!(run(false), "it may come after all");
    }
}
