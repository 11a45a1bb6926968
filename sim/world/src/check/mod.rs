//! Independent checkers of the promises P1 to P7, one file each.
//!
//! They are fed with `Seen` facts, in the order in which they happened, after every step of the
//! world. Each keeps its own books; what several need (which message is where) is in `ledger`.

mod again;
mod causes;
mod contents;
mod ledger;
pub(crate) mod message;
mod p1_buffers;
mod p1_stale_dma;
mod p2_every_miss_answered;
mod p2_told;
mod p2_waits;
mod p3_truthful_pages;
mod p4_debts;
mod p4_order;
mod p4_signals;
mod p5_isolation;
mod p5_notify;
mod p5_turns;
mod p6_crash;
mod p6_owners;
mod p7_bounded_work;
mod shadow;
mod shared_queue;
mod silence;

use crate::seen::Seen;
use ledger::{Ledger, News};
use netvm_abi::Geometry;
use netvm_abi::Nanos;
use netvm_abi::page_table::ROW_SLOTS;
pub(crate) use p5_turns::Modest;
use serde::Serialize;
use std::fmt;

/// A promise that has a checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Promise {
    /// No stale DMA.
    P1,
    /// Every miss is answered once, nothing is dropped.
    P2,
    /// Truthful page state.
    P3,
    /// Order of notifications.
    P4,
    /// Isolation.
    P5,
    /// Crash safety.
    P6,
    /// Bounded work.
    P7,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P1 => "P1 (no stale DMA)",
            Self::P2 => "P2 (every miss answered once, nothing dropped)",
            Self::P3 => "P3 (truthful page state)",
            Self::P4 => "P4 (order)",
            Self::P5 => "P5 (isolation)",
            Self::P6 => "P6 (crash safety)",
            Self::P7 => "P7 (bounded work)",
        })
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which one.
    pub promise: Promise,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken: {}", self.promise, self.what)
    }
}

/// What a checker says to a fact.
type Verdict = Result<(), String>;

/// One promise's checker.
trait Checker {
    /// Its promise.
    fn promise(&self) -> Promise;

    /// Looks at a fact, and at what the ledger concluded from it.
    fn see(&mut self, now: Nanos, fact: &Seen, news: &[News], ledger: &Ledger) -> Verdict;

    /// Looks at deadlines; called about once a millisecond of virtual time.
    fn tick(&mut self, _now: Nanos, _ledger: &Ledger) -> Verdict {
        Ok(())
    }

    /// Looks at what there is when everything sent has ended and the receiving ports are still open.
    fn settled(&mut self, _ledger: &Ledger) -> Verdict {
        Ok(())
    }

    /// Bytes of its own books, where they are large.
    fn bytes(&self) -> usize {
        0
    }
}

/// What the checkers of a run hold against it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Honest nodes: those with lower numbers.
    pub(crate) nodes: u16,
    /// How long a message may take from its arrival to its end.
    pub(crate) deadline: Nanos,
    /// How long a page that does not come holds up its port.
    pub(crate) silence: Nanos,
    /// How much longer it may take, from when it leaves, until its sender knows how it ended, or of `LinkLost`.
    pub(crate) loss: Nanos,
    /// How long a link is greeted for, until it is given up.
    pub(crate) greeting: Nanos,
    /// A port that sends only so that there is traffic.
    pub(crate) background: Option<u16>,
    /// Of these nodes, each reaches each other one after the faults: those with lower numbers.
    pub(crate) reunited: u16,
}

/// All checkers of a run.
pub(crate) struct Checkers {
    again: again::Again,
    ledger: Ledger,
    all: Vec<Box<dyn Checker>>,
}

impl Checkers {
    /// The checkers of a run that keeps to these, and whose honest nodes have these tables.
    pub(crate) fn new(limits: Limits, tables: &[Geometry]) -> Self {
        let ports = tables.iter().map(|tables| tables.ports).collect();
        let windows: Vec<u32> = tables.iter().map(|tables| tables.window.into()).collect();
        let widest = windows.iter().max().copied().unwrap_or_default();
        let pages = tables.iter().map(|tables| tables.page_rows * ROW_SLOTS).max();
        Self {
            again: again::Again::default(),
            ledger: Ledger::with_background(limits.background),
            // A broken promise often breaks others in its wake: the most specific comes first.
            all: vec![
                Box::new(p6_crash::CrashSafety::default()),
                Box::new(p6_owners::Owners::default()),
                Box::new(p5_isolation::Isolation::new(windows)),
                Box::new(p5_notify::Notifies::default()),
                Box::new(p7_bounded_work::BoundedWork::new(
                    widest,
                    pages.unwrap_or_default(),
                )),
                Box::new(p1_stale_dma::StaleDma::default()),
                Box::new(p1_buffers::Buffers::default()),
                Box::new(p3_truthful_pages::TruthfulPages::default()),
                Box::new(contents::Contents::new(limits.nodes)),
                Box::new(shared_queue::SharedQueue::default()),
                Box::new(p4_order::Order::new(limits)),
                Box::new(p4_signals::Signals::default()),
                Box::new(p2_every_miss_answered::EveryMissAnswered::new(limits)),
                Box::new(p2_told::Told::new(limits)),
                Box::new(p2_waits::Waits::new(limits)),
                Box::new(causes::Causes::new(limits, ports)),
            ],
        }
    }

    /// Adds the checker of a modest port's turns.
    pub(crate) fn watch(&mut self, modest: Modest) {
        self.all.push(Box::new(p5_turns::Turns::new(modest)));
    }

    /// Shows a fact to all.
    pub(crate) fn see(&mut self, now: Nanos, fact: &Seen) -> Result<(), Violation> {
        let is_new = self.again.filter(fact).map_err(|what| Violation {
            promise: Promise::P2,
            what,
        })?;
        if !is_new {
            return Ok(());
        }
        let news = self.ledger.see(now, fact);
        let ledger = &self.ledger;
        first(&mut self.all, |checker| checker.see(now, fact, &news, ledger))
    }

    /// Looks at deadlines.
    pub(crate) fn tick(&mut self, now: Nanos) -> Result<(), Violation> {
        let ledger = &self.ledger;
        first(&mut self.all, |checker| checker.tick(now, ledger))
    }

    /// Looks at what there is when everything sent has ended.
    pub(crate) fn settled(&mut self) -> Result<(), Violation> {
        let ledger = &self.ledger;
        first(&mut self.all, |checker| checker.settled(ledger))
    }

    /// Bytes of the messages that the ledger keeps, and of the checkers' own books.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        let own: usize = self.all.iter().map(|checker| checker.bytes()).sum();
        [self.ledger.bytes(), own as u64]
    }

    /// Whether every message on links that are up has ended.
    pub(crate) fn quiet(&self) -> bool {
        self.ledger.quiet()
    }

    /// The oldest message of each direction that has not ended, for a report.
    pub(crate) fn unfinished(&self) -> String {
        self.ledger.unfinished()
    }

    /// Messages that took a window slot.
    pub(crate) fn messages(&self) -> u64 {
        self.ledger.messages
    }
}

fn first(
    all: &mut [Box<dyn Checker>],
    mut ask: impl FnMut(&mut dyn Checker) -> Verdict,
) -> Result<(), Violation> {
    for checker in all {
        if let Err(what) = ask(&mut **checker) {
            return Err(Violation {
                promise: checker.promise(),
                what,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::{Allowed, ExportFact, Place, Stored, Way};
    use crate::vm::ProcessId;
    use netvm_abi::control::Modes;
    use netvm_abi::{NodeId, NotificationId, PortId, Ppn};
    use std::rc::Rc;

    pub(super) const NODE: NodeId = NodeId(0);
    pub(super) const PORT: PortId = PortId(3);
    pub(super) const PROCESS: ProcessId = ProcessId(1);

    pub(super) fn feed_at(
        checker: &mut dyn Checker,
        ledger: &mut Ledger,
        now: Nanos,
        facts: &[Seen],
    ) -> Verdict {
        for fact in facts {
            let news = ledger.see(now, fact);
            checker.see(now, fact, &news, ledger)?;
        }
        Ok(())
    }

    pub(super) fn feed(checker: &mut dyn Checker, facts: &[Seen]) -> Verdict {
        feed_at(checker, &mut Ledger::default(), Nanos(1), facts)
    }

    /// The checker must object, in words that contain these.
    #[track_caller]
    pub(super) fn caught(verdict: Verdict, words: &str) {
        let objection = verdict.expect_err("the checker saw nothing");
        assert!(objection.contains(words), "the checker said: {objection}");
    }

    pub(super) fn port_opened() -> Seen {
        Seen::PortOpened {
            node: NODE,
            port: PORT,
            process: PROCESS,
        }
    }

    pub(super) fn present(page: u64, ppn: u64, writable: bool) -> Seen {
        Seen::Permission {
            node: NODE,
            process: PROCESS,
            page,
            ppn: Ppn(ppn),
            writable,
        }
    }

    pub(super) fn gone(page: u64, ppn: u64) -> Seen {
        Seen::Invalidated {
            node: NODE,
            process: PROCESS,
            page,
            ppn: Ppn(ppn),
        }
    }

    pub(super) fn place(page: u64) -> Place {
        Place {
            port: PORT,
            page,
            offset: 0,
            len: 64,
        }
    }

    pub(super) fn dma_start(dma: u64, way: Way, page: u64, ppn: u64) -> Seen {
        Seen::DmaStart {
            node: NODE,
            dma,
            way,
            ppn: Ppn(ppn),
            place: place(page),
        }
    }

    pub(super) fn dma_moved(dma: u64, way: Way, page: u64, ppn: u64, digest: u64) -> Seen {
        Seen::DmaMoved {
            node: NODE,
            dma,
            way,
            ppn: Ppn(ppn),
            place: place(page),
            bytes: digest.to_le_bytes().as_slice().into(),
            stored: (way == Way::ToPage).then_some(Stored::Message),
            parted: false,
        }
    }

    pub(super) fn dma_done(dma: u64) -> Seen {
        Seen::DmaDone { node: NODE, dma }
    }

    pub(super) fn sent(frame: Vec<u8>) -> Seen {
        Seen::Sent { frame: frame.into() }
    }

    pub(super) fn arrived(frame: Vec<u8>) -> Seen {
        Seen::Arrived {
            to: NodeId(1),
            frame: frame.into(),
        }
    }

    /// Bytes that appear in memory of port 4 of node 1.
    pub(super) fn moved_at(address: u64, bytes: &[u8]) -> Seen {
        let place = Place {
            port: PortId(4),
            page: address >> 12,
            offset: (address & 0xFFF) as u32,
            len: bytes.len() as u32,
        };
        Seen::DmaMoved {
            node: NodeId(1),
            dma: 1,
            way: Way::ToPage,
            ppn: Ppn(100),
            place,
            bytes: bytes.into(),
            stored: Some(Stored::Message),
            parted: false,
        }
    }

    /// An export of port 4 of node 1 to all ports.
    pub(super) fn exported(start: u64, end: u64, modes: Modes) -> Seen {
        let notify = (NotificationId(0), NotificationId(u32::MAX));
        let allowed = vec![Allowed {
            node: None,
            port: None,
            modes,
            notify,
        }];
        let fact = Rc::new(ExportFact {
            start,
            end,
            allowed,
            queue: None,
        });
        Seen::Exported {
            node: NodeId(1),
            port: PortId(4),
            fact,
        }
    }
}
