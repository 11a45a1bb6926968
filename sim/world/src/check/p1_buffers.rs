//! P1 for the buffers between memory and wire: staging buffers, bounce pages, received frames, operands. Nothing uses a
//! buffer while a DMA fills it, nothing gives it back or fills it again while it is in use, and a bounce page is not
//! filled again before the host has dealt with what lies in it.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{Buffer, DmaNumber, Seen, digest};
use netvm_abi::{BounceId, Nanos, NodeId, StagingId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a DMA takes bytes out of, and puts them into.
type Uses = (Option<Buffer>, Option<Buffer>);

/// Which DMA uses which buffer, and what lies in bounce pages.
#[derive(Default)]
pub(super) struct Buffers {
    active: BTreeMap<(NodeId, DmaNumber), Uses>,
    /// Staging buffers that are leaving.
    leaving: BTreeSet<(NodeId, StagingId)>,
    /// Digests of what DMAs have put into bounce pages, until the kernel has copied it.
    filled: BTreeMap<(NodeId, BounceId), u64>,
    /// Bounce pages that the driver has been told of, and that it is not done with: whose messages they are.
    given: BTreeMap<(NodeId, BounceId), NodeId>,
}

impl Buffers {
    /// A DMA that uses a buffer, of those that fill it alone, or of all.
    fn user(&self, node: NodeId, buffer: Buffer, fills: bool) -> Option<DmaNumber> {
        let of_node = self.active.range((node, 0)..=(node, DmaNumber::MAX));
        let uses = |(from, into): &Uses| *into == Some(buffer) || (!fills && *from == Some(buffer));
        of_node.filter(|(_, of)| uses(of)).map(|(key, _)| key.1).next()
    }

    /// What is wrong with filling a buffer.
    fn fill(&self, node: NodeId, buffer: Buffer, by: fmt::Arguments<'_>) -> Verdict {
        if let Some(dma) = self.user(node, buffer, false) {
            return Err(format!(
                "node {node}: {by} fills {buffer} while DMA {dma} uses it"
            ));
        }
        match buffer {
            Buffer::Staging(staging) if self.leaving.contains(&(node, staging)) => {
                Err(format!("node {node}: {by} fills {buffer} before it has left"))
            }
            Buffer::Bounce(bounce) if self.given.contains_key(&(node, bounce)) => Err(format!(
                "node {node}: {by} fills {buffer} before the host has dealt with what lies in it"
            )),
            _ => Ok(()),
        }
    }

    /// What is wrong with taking bytes out of a buffer.
    fn drain(&self, node: NodeId, buffer: Buffer, by: fmt::Arguments<'_>) -> Verdict {
        match self.user(node, buffer, true) {
            Some(dma) => Err(format!(
                "node {node}: {by} uses {buffer} while DMA {dma} fills it"
            )),
            None => Ok(()),
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.active.retain(|key, _| key.0 != node);
        self.leaving.retain(|key| key.0 != node);
        self.filled.retain(|key, _| key.0 != node);
        self.given.retain(|key, _| key.0 != node);
    }
}

impl Checker for Buffers {
    fn promise(&self) -> Promise {
        Promise::P1
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match fact {
            Seen::DmaUses {
                node,
                dma,
                from,
                into,
            } => {
                if let Some(from) = *from {
                    self.drain(*node, from, format_args!("DMA {dma}"))?;
                }
                if let Some(into) = *into {
                    self.fill(*node, into, format_args!("DMA {dma}"))?;
                }
                self.active.insert((*node, *dma), (*from, *into));
            }
            Seen::DmaDone { node, dma } | Seen::DmaAborted { node, dma } => {
                self.active.remove(&(*node, *dma));
            }
            Seen::BufferRead { node, buffer } => self.drain(*node, *buffer, format_args!("a processor"))?,
            Seen::BufferTaken { node, buffer } => {
                if let Some(dma) = self.user(*node, *buffer, false) {
                    return Err(format!(
                        "node {node}: the card's processor changes {buffer}, or gives it back, while DMA {dma} uses it"
                    ));
                }
            }
            Seen::StagingLeaves { node, staging } => {
                self.drain(*node, Buffer::Staging(*staging), format_args!("a message"))?;
                if !self.leaving.insert((*node, *staging)) {
                    return Err(format!(
                        "node {node}: staging buffer {staging} leaves twice at once"
                    ));
                }
            }
            Seen::StagingLeft { node, staging } => {
                self.leaving.remove(&(*node, *staging));
            }
            Seen::BounceFilled {
                node,
                bounce,
                from: None,
                bytes,
            } => {
                self.filled.insert((*node, *bounce), digest(bytes));
            }
            Seen::BounceFilled { node, bounce, .. } => {
                // The operand of an atomic is changed there before it goes back.
                self.filled.remove(&(*node, *bounce));
                if let Some(dma) = self.user(*node, Buffer::Bounce(*bounce), false) {
                    return Err(format!(
                        "node {node}: the kernel fills bounce page {bounce} while DMA {dma} uses it"
                    ));
                }
            }
            Seen::HostCopied {
                node, bounce, bytes, ..
            } => {
                self.drain(*node, Buffer::Bounce(*bounce), format_args!("the kernel"))?;
                if self
                    .filled
                    .remove(&(*node, *bounce))
                    .is_some_and(|filled| filled != digest(bytes))
                {
                    return Err(format!(
                        "node {node}: what the kernel copies out of bounce page {bounce} is not what was put there"
                    ));
                }
            }
            Seen::BounceGiven { node, bounce, from } => {
                self.drain(*node, Buffer::Bounce(*bounce), format_args!("the driver"))?;
                self.given.insert((*node, *bounce), *from);
            }
            Seen::BounceEnded { node, bounce } => {
                self.given.remove(&(*node, *bounce));
            }
            Seen::MessagesEnded { node, from } => {
                self.given.retain(|key, of| key.0 != *node || of != from);
            }
            Seen::Restarted { node } | Seen::CardDead { node } => self.forget(*node),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, caught, feed, place};
    use super::*;
    use crate::seen::Stored;
    use netvm_abi::{Ppn, ReceiveId};

    const BOUNCE: Buffer = Buffer::Bounce(BounceId(3));
    const STAGING: Buffer = Buffer::Staging(StagingId(2));

    fn uses(dma: DmaNumber, from: Option<Buffer>, into: Option<Buffer>) -> Seen {
        Seen::DmaUses {
            node: NODE,
            dma,
            from,
            into,
        }
    }

    fn done(dma: DmaNumber) -> Seen {
        Seen::DmaDone { node: NODE, dma }
    }

    fn read(buffer: Buffer) -> Seen {
        Seen::BufferRead { node: NODE, buffer }
    }

    fn filled(text: &[u8]) -> Seen {
        Seen::BounceFilled {
            node: NODE,
            bounce: BounceId(3),
            from: None,
            bytes: text.into(),
        }
    }

    fn copied(text: &[u8]) -> Seen {
        Seen::HostCopied {
            node: NODE,
            bounce: BounceId(3),
            ppn: Ppn(100),
            place: place(1),
            bytes: text.into(),
            stored: Stored::Message,
        }
    }

    fn judge(facts: &[Seen]) -> Verdict {
        feed(&mut Buffers::default(), facts)
    }

    #[test]
    fn a_bounce_page_is_filled_copied_and_filled_again() {
        let fill = |dma| uses(dma, None, Some(BOUNCE));
        let given = Seen::BounceGiven {
            node: NODE,
            bounce: BounceId(3),
            from: NodeId(1),
        };
        let begun = [fill(1), filled(b"data"), done(1), given.clone()];
        let after = |facts: &[Seen]| judge(&[&begun[..], facts].concat());
        let ended = Seen::BounceEnded {
            node: NODE,
            bounce: BounceId(3),
        };
        let all_of = |from| Seen::MessagesEnded {
            node: NODE,
            from: NodeId(from),
        };
        assert_eq!(after(&[copied(b"data"), ended.clone(), fill(2)]), Ok(()));
        assert_eq!(after(&[ended, fill(2)]), Ok(()));
        assert_eq!(after(&[all_of(1), fill(2)]), Ok(()));
        caught(after(&[all_of(2), fill(2)]), "before the host has dealt with");
        caught(after(&[fill(2)]), "before the host has dealt with");
        caught(
            after(&[copied(b"data"), fill(2)]),
            "before the host has dealt with",
        );
        caught(
            judge(&[fill(1), given]),
            "the driver uses bounce page 3 while DMA 1",
        );
        caught(after(&[copied(b"dada")]), "is not what was put there");
        caught(
            judge(&[fill(1), filled(b"data"), copied(b"data")]),
            "while DMA 1 fills it",
        );
        caught(
            judge(&[fill(1), filled(b"data"), read(BOUNCE)]),
            "while DMA 1 fills it",
        );
        caught(judge(&[fill(1), fill(2)]), "while DMA 1 uses it");
    }

    #[test]
    fn a_staging_buffer_leaves_when_it_is_full_and_is_filled_when_it_has_left() {
        let fill = |dma| uses(dma, None, Some(STAGING));
        let leaves = Seen::StagingLeaves {
            node: NODE,
            staging: StagingId(2),
        };
        let left = Seen::StagingLeft {
            node: NODE,
            staging: StagingId(2),
        };
        assert_eq!(judge(&[fill(1), done(1), leaves.clone(), left, fill(2)]), Ok(()));
        caught(judge(&[fill(1), leaves.clone()]), "while DMA 1 fills it");
        caught(
            judge(&[fill(1), done(1), leaves.clone(), fill(2)]),
            "before it has left",
        );
        caught(judge(&[leaves.clone(), leaves]), "leaves twice");
    }

    #[test]
    fn a_frame_and_an_operand_stay_until_their_dma_is_over() {
        for buffer in [Buffer::Receive(ReceiveId(7)), Buffer::Operand(7)] {
            let (fills, moves) = (uses(1, None, Some(buffer)), uses(1, Some(buffer), None));
            let taken = Seen::BufferTaken { node: NODE, buffer };
            assert_eq!(
                judge(&[moves.clone(), read(buffer), done(1), taken.clone()]),
                Ok(())
            );
            caught(judge(&[moves, taken]), "while DMA 1 uses it");
            caught(judge(&[fills, read(buffer)]), "while DMA 1 fills it");
        }
    }
}
