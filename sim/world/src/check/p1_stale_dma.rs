//! P1: after the host has completed unmapping a page, no access of the card to it happens or is in
//! flight.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{DmaNumber, Place, Seen, Way};
use crate::vm::ProcessId;
use netvm_abi::{Nanos, NodeId, PortId, Ppn};
use std::collections::BTreeMap;

/// A DMA under way: frame, place, owner, direction.
type Active = (Ppn, Place, ProcessId, Way);

/// Compares each DMA, at its start, when bytes move and at its end, with the kernel's page table.
#[derive(Default)]
pub(super) struct StaleDma {
    /// What the kernel's entries say.
    mapped: BTreeMap<(NodeId, ProcessId, u64), Ppn>,
    owners: BTreeMap<(NodeId, PortId), ProcessId>,
    active: BTreeMap<(NodeId, DmaNumber), Active>,
}

impl StaleDma {
    fn check(&self, node: NodeId, ppn: Ppn, place: Place, when: &str) -> Verdict {
        let Some(&process) = self.owners.get(&(node, place.port)) else {
            return Err(format!(
                "node {node}: DMA {when} for port {}, which is not open",
                place.port
            ));
        };
        self.check_owned(node, ppn, place, process, when)
    }

    fn check_owned(&self, node: NodeId, ppn: Ppn, place: Place, process: ProcessId, when: &str) -> Verdict {
        match self.mapped.get(&(node, process, place.page)) {
            Some(&present) if present == ppn => Ok(()),
            Some(&present) => Err(format!(
                "node {node}: DMA {when} uses frame {ppn} for page {:#x} of port {}, which is in frame {present}",
                place.page, place.port
            )),
            None => Err(format!(
                "node {node}: DMA {when} uses frame {ppn} for page {:#x} of port {}, which is not mapped",
                place.page, place.port
            )),
        }
    }
}

impl Checker for StaleDma {
    fn promise(&self) -> Promise {
        Promise::P1
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
                ppn,
                ..
            } => {
                self.mapped.insert((node, process, page), ppn);
            }
            Seen::Invalidated {
                node,
                process,
                page,
                ppn,
            } => {
                self.mapped.remove(&(node, process, page));
                let hit = self.active.iter().find(|((at, _), (frame, place, owner, _))| {
                    *at == node && *frame == ppn && place.page == page && *owner == process
                });
                if let Some(((_, dma), (_, place, ..))) = hit {
                    return Err(format!(
                        "node {node}: page {page:#x} of port {} was unmapped while DMA {dma} used its frame {ppn}",
                        place.port
                    ));
                }
            }
            Seen::Protected { node, process, page } => {
                let hit = self.active.iter().find(|((at, _), (_, place, owner, way))| {
                    *at == node && place.page == page && *owner == process && *way == Way::ToPage
                });
                if let Some(((_, dma), (_, place, ..))) = hit {
                    return Err(format!(
                        "node {node}: page {page:#x} of port {} was write-protected while DMA {dma} wrote it",
                        place.port
                    ));
                }
            }
            Seen::FrameTaken { node, ppn } => {
                let hit = self
                    .active
                    .iter()
                    .find(|((at, _), (frame, ..))| *at == node && *frame == ppn);
                if let Some(((_, dma), _)) = hit {
                    return Err(format!("node {node}: frame {ppn} was freed under DMA {dma}"));
                }
            }
            Seen::DmaStart {
                node,
                dma,
                way,
                ppn,
                place,
            } => {
                self.check(node, ppn, place, "start")?;
                if let Some(&process) = self.owners.get(&(node, place.port)) {
                    self.active.insert((node, dma), (ppn, place, process, way));
                }
            }
            Seen::DmaMoved {
                node,
                dma,
                ppn,
                place,
                ..
            } => {
                // A port may have been closed since; the process that owned it then still counts.
                if let Some(&(_, _, process, _)) = self.active.get(&(node, dma)) {
                    self.check_owned(node, ppn, place, process, "transfer")?;
                }
            }
            Seen::DmaPart { node, ppn, place, .. } => self.check(node, ppn, place, "transfer")?,
            Seen::HostCopied { node, ppn, place, .. }
            | Seen::BounceFilled {
                node,
                from: Some((ppn, place)),
                ..
            } => self.check(node, ppn, place, "by the kernel")?,
            Seen::DmaDone { node, dma } => {
                if let Some((ppn, place, process, _)) = self.active.remove(&(node, dma)) {
                    self.check_owned(node, ppn, place, process, "end")?;
                }
            }
            Seen::DmaAborted { node, dma } => {
                self.active.remove(&(node, dma));
            }
            Seen::Restarted { node } => {
                self.mapped.retain(|key, _| key.0 != node);
                self.owners.retain(|key, _| key.0 != node);
                self.active.retain(|key, _| key.0 != node);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, PROCESS, caught, dma_done, dma_start, feed, gone, port_opened, present};
    use super::*;

    #[test]
    fn dma_into_a_mapped_page_is_fine() {
        let facts = [
            port_opened(),
            present(10, 100, true),
            dma_start(1, Way::ToPage, 10, 100),
            dma_done(1),
        ];
        assert_eq!(feed(&mut StaleDma::default(), &facts), Ok(()));
    }

    #[test]
    fn an_unmap_that_does_not_wait_is_caught() {
        let facts = [
            port_opened(),
            present(10, 100, true),
            dma_start(1, Way::ToPage, 10, 100),
            gone(10, 100),
        ];
        caught(feed(&mut StaleDma::default(), &facts), "was unmapped while DMA");
    }

    #[test]
    fn write_protection_waits_for_writes_only() {
        let protect = Seen::Protected {
            node: NODE,
            process: PROCESS,
            page: 10,
        };
        for (way, fine) in [(Way::FromPage, true), (Way::ToPage, false)] {
            let facts = [
                port_opened(),
                present(10, 100, true),
                dma_start(1, way, 10, 100),
                protect.clone(),
            ];
            assert_eq!(feed(&mut StaleDma::default(), &facts).is_ok(), fine);
        }
    }

    #[test]
    fn dma_into_an_unmapped_or_moved_page_is_caught() {
        let facts = [
            port_opened(),
            present(10, 100, true),
            gone(10, 100),
            dma_start(1, Way::FromPage, 10, 100),
        ];
        caught(feed(&mut StaleDma::default(), &facts), "not mapped");
        let facts = [
            port_opened(),
            present(10, 101, true),
            dma_start(1, Way::FromPage, 10, 100),
        ];
        caught(feed(&mut StaleDma::default(), &facts), "in frame 101");
    }
}
