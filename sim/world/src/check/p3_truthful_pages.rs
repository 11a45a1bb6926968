//! P3: the host never takes a page for clean that the card wrote, nor for old that the card used;
//! and the card never writes where the kernel's own entry is not writable.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{DmaNumber, Place, Seen, Way};
use crate::vm::{ProcessId, ZERO_PAGE};
use netvm_abi::{Nanos, NodeId, PortId, Ppn};
use std::collections::{BTreeMap, BTreeSet};

/// Follows what the card does to frames and what the kernel believes of them.
#[derive(Default)]
pub(super) struct TruthfulPages {
    writable: BTreeMap<(NodeId, ProcessId, u64), bool>,
    owners: BTreeMap<(NodeId, PortId), ProcessId>,
    /// Frames the card wrote since they were last saved.
    dirty: BTreeSet<(NodeId, Ppn)>,
    /// Frames the card used since reclaim last asked.
    young: BTreeSet<(NodeId, Ppn)>,
    /// Frames that reclaim asks about, and whether the card had used them by then. What it does while
    /// the question is under way may be in this answer or in the next.
    asked: BTreeMap<(NodeId, Ppn), bool>,
    active: BTreeMap<(NodeId, DmaNumber), Ppn>,
}

impl TruthfulPages {
    fn may_write(&self, node: NodeId, ppn: Ppn, place: Place) -> Verdict {
        if ppn == ZERO_PAGE {
            return Err(format!("node {node}: DMA writes the shared zero page"));
        }
        let Some(process) = self.owners.get(&(node, place.port)) else {
            return Ok(());
        };
        match self.writable.get(&(node, *process, place.page)) {
            Some(false) => Err(format!(
                "node {node}: DMA writes page {:#x} of port {}, which the kernel maps read-only",
                place.page, place.port
            )),
            _ => Ok(()),
        }
    }
}

impl Checker for TruthfulPages {
    fn promise(&self) -> Promise {
        Promise::P3
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match *fact {
            Seen::PortOpened { node, port, process } => {
                self.owners.insert((node, port), process);
            }
            Seen::Permission {
                node,
                process,
                page,
                writable,
                ..
            } => {
                self.writable.insert((node, process, page), writable);
            }
            Seen::Invalidated {
                node, process, page, ..
            } => {
                self.writable.remove(&(node, process, page));
            }
            Seen::FrameGiven { node, ppn, .. } | Seen::FrameTaken { node, ppn } => {
                self.dirty.remove(&(node, ppn));
                self.young.remove(&(node, ppn));
            }
            Seen::WrittenBack { node, ppn } => {
                self.dirty.remove(&(node, ppn));
            }
            Seen::DroppedClean { node, ppn, same } => {
                if self.dirty.contains(&(node, ppn)) {
                    return Err(format!(
                        "node {node}: frame {ppn} was dropped as clean after the card wrote it"
                    ));
                }
                if !same {
                    return Err(format!(
                        "node {node}: frame {ppn} was dropped as clean and differs from its copy"
                    ));
                }
            }
            Seen::AgeAsked { node, ppn } => {
                let in_use = self
                    .active
                    .iter()
                    .any(|((at, _), frame)| *at == node && *frame == ppn);
                let used = in_use || self.young.contains(&(node, ppn));
                self.asked.insert((node, ppn), used);
            }
            Seen::AgeTold { node, ppn, young } => {
                let used = self.asked.remove(&(node, ppn)).unwrap_or(false);
                if young {
                    self.young.remove(&(node, ppn));
                } else if used {
                    return Err(format!(
                        "node {node}: frame {ppn} looked old although the card used it"
                    ));
                }
            }
            Seen::DmaStart {
                node,
                dma,
                way,
                ppn,
                place,
            } => {
                if way == Way::ToPage {
                    self.may_write(node, ppn, place)?;
                }
                self.active.insert((node, dma), ppn);
            }
            Seen::DmaMoved {
                node,
                way: Way::ToPage,
                ppn,
                place,
                ..
            } => {
                self.may_write(node, ppn, place)?;
                self.dirty.insert((node, ppn));
            }
            Seen::DmaPart {
                node,
                way: Way::ToPage,
                ppn,
                place,
                ..
            } => {
                self.may_write(node, ppn, place)?;
                self.dirty.insert((node, ppn));
            }
            // The kernel copies for the card, which could not use the page itself.
            Seen::HostCopied { node, ppn, place, .. } => {
                self.may_write(node, ppn, place)?;
                self.dirty.insert((node, ppn));
                self.young.insert((node, ppn));
            }
            Seen::BounceFilled {
                node,
                from: Some((ppn, _)),
                ..
            } => {
                self.young.insert((node, ppn));
            }
            Seen::DmaDone { node, dma } => {
                if let Some(ppn) = self.active.remove(&(node, dma)) {
                    self.young.insert((node, ppn));
                }
            }
            Seen::DmaAborted { node, dma } => {
                self.active.remove(&(node, dma));
            }
            Seen::Restarted { node } => {
                self.writable.retain(|key, _| key.0 != node);
                self.owners.retain(|key, _| key.0 != node);
                self.active.retain(|key, _| key.0 != node);
                self.dirty.retain(|key| key.0 != node);
                self.young.retain(|key| key.0 != node);
                self.asked.retain(|key, _| key.0 != node);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{
        NODE, caught, dma_done, dma_moved, dma_start, feed, place, port_opened, present,
    };
    use super::*;

    fn written() -> Vec<Seen> {
        vec![
            port_opened(),
            present(10, 100, true),
            dma_start(1, Way::ToPage, 10, 100),
            dma_moved(1, Way::ToPage, 10, 100, 5),
            dma_done(1),
        ]
    }

    #[test]
    fn a_written_page_may_be_dropped_only_after_it_was_saved() {
        let ppn = Ppn(100);
        let mut facts = written();
        facts.push(Seen::WrittenBack { node: NODE, ppn });
        facts.push(Seen::DroppedClean {
            node: NODE,
            ppn,
            same: true,
        });
        assert_eq!(feed(&mut TruthfulPages::default(), &facts), Ok(()));
        let mut facts = written();
        facts.push(Seen::DroppedClean {
            node: NODE,
            ppn,
            same: true,
        });
        caught(
            feed(&mut TruthfulPages::default(), &facts),
            "dropped as clean after",
        );
        let facts = [Seen::DroppedClean {
            node: NODE,
            ppn,
            same: false,
        }];
        caught(feed(&mut TruthfulPages::default(), &facts), "differs");
    }

    #[test]
    fn a_page_that_the_kernel_copies_to_or_from_is_used_and_if_written_dirty() {
        let (ppn, bounce) = (Ppn(100), netvm_abi::BounceId(3));
        let into = Seen::HostCopied {
            node: NODE,
            bounce,
            ppn,
            place: place(10),
            bytes: [1].as_slice().into(),
            stored: crate::seen::Stored::Message,
        };
        let out_of = Seen::BounceFilled {
            node: NODE,
            bounce,
            from: Some((ppn, place(10))),
            bytes: [1].as_slice().into(),
        };
        let asked = Seen::AgeAsked { node: NODE, ppn };
        let old = Seen::AgeTold {
            node: NODE,
            ppn,
            young: false,
        };
        let clean = Seen::DroppedClean {
            node: NODE,
            ppn,
            same: true,
        };
        let judge = |writable, facts: &[Seen]| {
            let facts = [&[port_opened(), present(10, 100, writable)], facts].concat();
            feed(&mut TruthfulPages::default(), &facts)
        };
        for copy in [&into, &out_of] {
            let facts = [copy.clone(), asked.clone(), old.clone()];
            caught(judge(true, &facts), "looked old");
        }
        caught(
            judge(true, &[into.clone(), clean.clone()]),
            "dropped as clean after",
        );
        caught(judge(false, &[into]), "read-only");
        assert_eq!(judge(false, &[out_of, clean]), Ok(()));
    }

    #[test]
    fn a_used_page_must_look_young_once() {
        let ppn = Ppn(100);
        let asked = || Seen::AgeAsked { node: NODE, ppn };
        let told = |young| Seen::AgeTold {
            node: NODE,
            ppn,
            young,
        };
        let mut facts = written();
        facts.extend([asked(), told(false)]);
        caught(feed(&mut TruthfulPages::default(), &facts), "looked old");
        let mut facts = written();
        facts.extend([asked(), told(true), asked(), told(false)]);
        assert_eq!(feed(&mut TruthfulPages::default(), &facts), Ok(()));
        // A use that begins while it is asked: in this answer, or in the next.
        let mut facts = vec![port_opened(), present(10, 100, true), asked()];
        facts.extend([dma_start(1, Way::ToPage, 10, 100), told(false), dma_done(1)]);
        assert_eq!(feed(&mut TruthfulPages::default(), &facts), Ok(()));
        facts.extend([asked(), told(false)]);
        caught(feed(&mut TruthfulPages::default(), &facts), "looked old");
        // One that was under way, and ends.
        let mut facts = vec![port_opened(), present(10, 100, true)];
        facts.extend([
            dma_start(1, Way::ToPage, 10, 100),
            asked(),
            dma_done(1),
            told(false),
        ]);
        caught(feed(&mut TruthfulPages::default(), &facts), "looked old");
    }

    #[test]
    fn a_read_only_page_and_the_zero_page_may_be_read_but_not_written() {
        let start = [
            port_opened(),
            present(10, 100, false),
            dma_start(1, Way::FromPage, 10, 100),
        ];
        assert_eq!(feed(&mut TruthfulPages::default(), &start), Ok(()));
        let start = [
            port_opened(),
            present(10, 100, false),
            dma_start(1, Way::ToPage, 10, 100),
        ];
        caught(feed(&mut TruthfulPages::default(), &start), "read-only");
        let start = [
            port_opened(),
            present(10, 1, false),
            dma_start(1, Way::ToPage, 10, 1),
        ];
        caught(feed(&mut TruthfulPages::default(), &start), "zero page");
    }
}
