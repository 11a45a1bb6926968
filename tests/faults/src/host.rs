//! A plain host driver that answers everything, right or late: it owns the page table, the capabilities and the rings.

use crate::board::Board;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::bar::BarMap;
use netvm_abi::bounce::{BounceUse, load_record};
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::event::{AtomicAnswer, HostEvent, NicEvent, SourceAnswer};
use netvm_abi::lease::{Terms, lease_at};
use netvm_abi::page_lock::{self, LockState};
use netvm_abi::page_table::{PageEntry, PageSlot, PageTable};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::Kind;
use netvm_abi::words::SharedWords;
use netvm_abi::{CapabilitySlot, Generation, Geometry, Nanos, Status, Vpn};
use netvm_nic::platform::Dma;
use std::collections::HashMap;

/// The host's side of the rings and tables.
pub struct Host {
    events: RingReader,
    to_nic: RingWriter,
    /// The page table.
    pub table: PageTable,
    slots: HashMap<u64, PageSlot>,
    used: HashMap<u32, u64>,
    /// Events that wait for an answer.
    pub pending: Vec<NicEvent>,
    /// Ports that have been reported closed.
    pub closed: Vec<netvm_abi::PortId>,
    /// Bounced messages and replies reported.
    pub bounced: u64,
    /// Barriers answered.
    pub barriers: u64,
    /// Of each lease that was ever given, its latest use.
    leases: HashMap<u32, u32>,
}

impl Host {
    /// A host with empty tables.
    #[must_use]
    pub fn new(geometry: &Geometry, table: PageTable) -> Self {
        Self {
            events: RingReader::new(RingPlace::nic_events(geometry)),
            to_nic: RingWriter::new(RingPlace::host_events(geometry)),
            table,
            slots: HashMap::new(),
            used: HashMap::new(),
            pending: Vec::new(),
            closed: Vec::new(),
            bounced: 0,
            barriers: 0,
            leases: HashMap::new(),
        }
    }

    /// Posts an event.
    pub fn tell(&mut self, board: &Board, event: HostEvent) {
        assert!(
            self.to_nic.push(&board.bar, &board.shared, &event.encode()),
            "the ring to the NIC is full"
        );
    }

    /// Takes what the NIC has to say.
    pub fn take_events(&mut self, board: &Board) -> bool {
        let mut any = false;
        while let Some(words) = self.events.pop(&board.shared, &board.bar) {
            any = true;
            match NicEvent::decode(&words).expect("an event that means something") {
                NicEvent::PortClosed { port, .. } => self.closed.push(port),
                NicEvent::BarrierDone { .. } => self.barriers += 1,
                NicEvent::PeerUp { .. } | NicEvent::ControlSent { .. } | NicEvent::LeaseLeft { .. } => {}
                event => {
                    if matches!(event, NicEvent::Bounced { .. }) {
                        self.bounced += 1;
                    }
                    self.pending.push(event);
                }
            }
        }
        any
    }

    /// Answers the event at this place of the list; `choice` picks among the answers.
    pub fn answer(&mut self, board: &mut Board, at: usize, choice: u8) {
        let event = self.pending.swap_remove(at);
        let failed = Status::from_code(9 + choice % 4);
        let answer = match event {
            NicEvent::Bounced { bounce, generation } => HostEvent::BounceEnded {
                bounce,
                generation,
                status: if choice < 200 { Status::Ok } else { failed },
            },
            NicEvent::AtomicMiss {
                bounce,
                generation,
                attempt,
            } => match choice {
                0..40 => HostEvent::BounceEnded {
                    bounce,
                    generation,
                    status: failed,
                },
                40..180 if attempt < 3 => HostEvent::AtomicAnswer {
                    bounce,
                    generation,
                    answer: AtomicAnswer::Retry,
                },
                _ => HostEvent::AtomicAnswer {
                    bounce,
                    generation,
                    answer: AtomicAnswer::Done(AtomicResult::default()),
                },
            },
            NicEvent::SourceMiss {
                staging,
                generation,
                attempt,
                ..
            } => HostEvent::SourceAnswer {
                staging,
                generation,
                answer: match choice {
                    0..60 => SourceAnswer::Failed(failed),
                    60..180 if attempt < 3 => SourceAnswer::Retry,
                    _ => SourceAnswer::Copied,
                },
            },
            NicEvent::PeerReset { peer, incarnation } | NicEvent::PeerLost { peer, incarnation } => {
                // Bounced messages of the old life are dropped with it.
                let windows = board.geometry.window as u32;
                let first = u32::from(peer.0) * windows;
                self.pending.retain(|event| {
                    !matches!(event, NicEvent::Bounced { bounce, .. } | NicEvent::AtomicMiss { bounce, .. } if (first..first + windows).contains(&bounce.0))
                });
                HostEvent::PeerReleased { peer, incarnation }
            }
            _ => return,
        };
        copy(board, &event, &answer);
        self.tell(board, answer);
    }

    /// Answers what peers' new lives wait for.
    pub fn release_peers(&mut self, board: &mut Board) {
        while let Some(at) = self
            .pending
            .iter()
            .position(|event| matches!(event, NicEvent::PeerReset { .. } | NicEvent::PeerLost { .. }))
        {
            self.answer(board, at, 0);
        }
    }

    /// Maps a page, or leaves it out when its places are taken.
    pub fn map(&mut self, board: &mut Board, entry: PageEntry) {
        if self.slots.contains_key(&entry.vpn.raw()) {
            return;
        }
        let places = self.table.places(entry.vpn);
        let Some(slot) = places.into_iter().find(|slot| !self.used.contains_key(&slot.0)) else {
            return;
        };
        page_lock::publish(&board.bar, &self.table, slot, &entry);
        self.slots.insert(entry.vpn.raw(), slot);
        self.used.insert(slot.0, entry.vpn.raw());
        board.mapped.insert(entry.vpn.raw(), entry);
    }

    /// Unmaps a page unless a DMA holds it. Checks that none is under way if the lock says so (promise P1).
    pub fn unmap(&mut self, board: &mut Board, vpn: Vpn) {
        let Some(&slot) = self.slots.get(&vpn.raw()) else {
            return;
        };
        page_lock::retract(&board.bar, &self.table, slot);
        board.bar.full_barrier();
        let held = board.dmas.iter().any(|(_, dma)| match dma {
            Dma::PageToStaging { page, .. }
            | Dma::ReceiveToPage { page, .. }
            | Dma::PageToOperand { page }
            | Dma::OperandToPage { page } => page.vpn == vpn,
            _ => false,
        });
        let free = page_lock::lock_state(&board.bar, &self.table, slot) == LockState::Free;
        assert_eq!(free, !held, "the lock of {vpn} lies");
        if free {
            self.slots.remove(&vpn.raw());
            self.used.remove(&slot.0);
            board.mapped.remove(&vpn.raw());
        } else {
            page_lock::restore(&board.bar, &self.table, slot);
        }
    }

    /// Whether no page is locked.
    #[must_use]
    pub fn all_unlocked(&self, board: &Board) -> bool {
        self.slots
            .values()
            .all(|&slot| page_lock::lock_state(&board.bar, &self.table, slot) == LockState::Free)
    }

    /// Grants a capability.
    pub fn grant(&self, board: &mut Board, slot: CapabilitySlot, capability: Capability) {
        let at = capability_at(BarMap::new(&board.geometry).capabilities, slot);
        capability.publish(&board.bar, at);
        board.capabilities[slot.index()] = Some(capability);
    }

    /// Grants a lease, and tells the NIC of every second one: others begin at their first access.
    pub fn lend(
        &mut self,
        board: &mut Board,
        slot: CapabilitySlot,
        capability: Capability,
        life: [Nanos; 2],
    ) {
        let generation = self.lease(slot).unwrap_or(0) + 1;
        self.leases.insert(slot.0, generation);
        let [duration, longest] = life;
        let terms = Terms {
            generation: Generation(generation),
            duration,
            longest,
        };
        terms.publish(&board.bar, lease_at(BarMap::new(&board.geometry).leases, slot));
        let capability = Capability {
            expires: Nanos(0),
            ..capability
        };
        self.grant(board, slot, capability);
        if generation.is_multiple_of(2) {
            let generation = Generation(generation);
            self.tell(board, HostEvent::LeaseBegin { slot, generation });
        }
    }

    /// Which use of a slot its lease is, if it was ever one.
    #[must_use]
    pub fn lease(&self, slot: CapabilitySlot) -> Option<u32> {
        self.leases.get(&slot.0).copied()
    }

    /// Revokes a capability. The slot is not used again, so that no barrier has to be waited for.
    pub fn revoke(&self, board: &mut Board, slot: CapabilitySlot) {
        let at = capability_at(BarMap::new(&board.geometry).capabilities, slot);
        Capability::retract(&board.bar, at);
        board.capabilities[slot.index()] = None;
    }
}

/// Moves what this answer says that the host has copied.
fn copy(board: &mut Board, event: &NicEvent, answer: &HostEvent) {
    let Some(bytes) = &mut board.bytes else {
        return;
    };
    match (*event, *answer) {
        (
            NicEvent::Bounced { bounce, .. },
            HostEvent::BounceEnded {
                status: Status::Ok, ..
            },
        ) => {
            let at = SharedMap::new(&board.geometry).bounce_record(bounce);
            let record = load_record(&board.shared, at).expect("a record that is a header");
            if matches!(record.kind, Kind::Write | Kind::ReadReply) {
                bytes.landed(bounce, &record);
            }
        }
        (
            NicEvent::SourceMiss {
                staging,
                vpn,
                offset,
                len,
                ..
            },
            HostEvent::SourceAnswer {
                answer: SourceAnswer::Copied,
                ..
            },
        ) => bytes.sourced(BounceUse::Source(staging).id(&board.geometry), vpn, offset, len),
        _ => {}
    }
}
