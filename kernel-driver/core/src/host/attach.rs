//! Negotiating with a card, its tables, and what follows its death.

use super::Host;
use crate::Progress;
use crate::attach::{AttachError, HostConfig};
use crate::bounce::Work;
use crate::card::{CardFailure, CardState};
use crate::control::ControlSlots;
use crate::counters::Counters;
use crate::exports::Exports;
use crate::grants::Grants;
use crate::imports::Imports;
use crate::lists::List;
use crate::numbers::Numbers;
use crate::peers::Peer;
use crate::platform::Platform;
use crate::ports::Port;
use crate::races::Races;
use crate::revoke::Barriers;
use crate::segments::Segments;
use crate::shadow::Shadow;
use crate::watch::Watch;
use netvm_abi::attach::CardHeader;
use netvm_abi::bar::{BarMap, header};
use netvm_abi::capability::capability_at;
use netvm_abi::page_table::{HashKey, PageSlot, PageTable};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::words::SharedWords;
use netvm_abi::{CapabilitySlot, Geometry, Incarnation, Nanos, NodeId};

impl<S: MakeTable> Host<S> {
    /// Negotiates with a card whose firmware is up, and makes the tables. The shared memory must
    /// have been zeroed before the firmware was told of it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach<P: Platform>(
        platform: &mut P,
        tables: &mut S,
        config: &HostConfig,
        now: Nanos,
    ) -> Result<Self, AttachError> {
        for (name, entries) in [
            ("segments", config.segments),
            ("exports", config.exports),
            ("imports", config.imports),
        ] {
            if entries == 0 || entries > u32::from(u16::MAX) {
                return Err(AttachError::Config { name });
            }
        }
        let card = CardHeader::load(platform.bar()).map_err(AttachError::Card)?;
        let geometry = card.geometry;
        if let Some(wanted) = &config.geometry {
            compare(&geometry, wanted)?;
        }
        let mut host = Self::with_tables(tables, config, &card, now);
        let _ = host.empty_tables(platform, 0, u32::MAX);
        Ok(host)
    }

    fn with_tables(tables: &mut S, config: &HostConfig, card: &CardHeader, now: Nanos) -> Self {
        let geometry = card.geometry;
        Self {
            geometry,
            node: card.node,
            config: *config,
            bar_map: BarMap::new(&geometry),
            shared_map: SharedMap::new(&geometry),
            card: CardState::Alive,
            incarnation: card.incarnation,
            emptied: None,
            death_untold: false,
            watch: Watch::new(now),
            to_nic: RingWriter::new(RingPlace::host_events(&geometry)),
            from_nic: RingReader::new(RingPlace::nic_events(&geometry)),
            shadow: Shadow::new(tables, PageTable::of(&geometry, card.key), config.segments),
            races: Races::new(tables, geometry.ports),
            ports: tables.table(usize::from(geometry.ports), |_| Port::new(card.incarnation)),
            numbers: Numbers::new(geometry.ports),
            closing: List::EMPTY,
            awaited: List::EMPTY,
            segments: Segments::new(tables, config.segments, geometry.ports),
            exports: Exports::new(tables, config.exports, geometry.ports),
            grants: Grants::new(tables, geometry.capabilities, geometry.ports),
            barriers: Barriers::new(),
            imports: Imports::new(tables, config.imports, geometry.ports),
            peers: tables.table(usize::from(geometry.nodes), |_| Peer::new()),
            releasing: 0,
            ready: List::EMPTY,
            work: tables.table(geometry.bounce_slots() as usize, |_| Work::new()),
            asking: List::EMPTY,
            leases_asked: 0,
            slowest_answer: Nanos(0),
            control: ControlSlots::new(),
            counters: Counters::default(),
        }
    }
}

impl<S: Storage> Host<S> {
    /// Makes entries of the page and capability table invalid, at most `budget` from the one numbered `from` on; where to go
    /// on, if some are left.
    fn empty_tables<P: Platform>(&mut self, platform: &mut P, from: u32, budget: u32) -> Option<u32> {
        let bar = platform.bar();
        let slots = self.shadow.slots.len() as u32;
        let end = slots + self.geometry.capabilities;
        let until = from.saturating_add(budget).min(end);
        for entry in from..until {
            match entry.checked_sub(slots) {
                None => self.shadow.empty(bar, PageSlot(entry)),
                Some(slot) => {
                    bar.store_release(capability_at(self.bar_map.capabilities, CapabilitySlot(slot)), 0);
                }
            }
        }
        bar.full_barrier();
        (until < end).then_some(until)
    }

    /// The platform has dealt with a dead card. `proven`: its bus mastering is off and its last DMA
    /// was seen to end; then every page still in its table goes, as dirty. Otherwise these pages are
    /// told to the sinks with [`leaked`](crate::platform::PageGone::leaked): keep a reference to each
    /// for ever, and log it. Nothing waits for the card any more in either case.
    ///
    /// A caller that learns of the death from an unmap calls this before [`poll`](Self::poll) could tell of it: then
    /// ports and imports learn of it here, and no notice follows. Poll afterwards, for the imports that have failed.
    pub fn card_stopped<P: Platform>(&mut self, platform: &mut P, proven: bool, now: Nanos) {
        let CardState::Dead(cause) = self.card else {
            return;
        };
        self.card = CardState::Stopped { cause, proven };
        if core::mem::replace(&mut self.death_untold, false) {
            self.end_everything(platform, now);
        }
        // The next firmware starts with empty rings; there is no other writer now.
        let shared = platform.shared();
        for word in [
            status_page::SLEEPING,
            status_page::HEARTBEAT,
            status_page::HOST_EVENT_HEAD,
            status_page::NIC_EVENT_TAIL,
        ] {
            shared.store_release(word, 0);
        }
        for node in 0..self.geometry.nodes {
            shared.store_release(status_page::peer(NodeId(node)), 0);
        }
        self.reap();
    }

    /// The card was pulled out, or its driver goes: it is dead, whatever it says. As after any death, the platform stops
    /// it and says [`Self::card_stopped`].
    pub fn card_gone(&mut self) {
        self.fail(CardFailure::AllOnes);
    }

    /// Attaches again to a card that was reset and whose firmware is up: page and capability table
    /// emptied, rings empty, peers unknown. Ports stay dead and can only be closed; all of them must
    /// be closed first, so that no page is left of them.
    ///
    /// Empties at most `budget` entries of the tables, some of which cost a read across the bus. [`Progress::Again`]: call it
    /// again; the lock may be released in between, and the card must not be told of the driver's memory before the end.
    ///
    /// # Errors
    /// [`AttachError`]; a card with another geometry or node is refused.
    pub fn reattach<P: Platform>(
        &mut self,
        platform: &mut P,
        now: Nanos,
        budget: u32,
    ) -> Result<Progress, AttachError> {
        let idle = self.shadow.mapped() == 0 && self.numbers.all_free();
        if !matches!(self.card, CardState::Stopped { .. }) || !idle {
            return Err(AttachError::NotStopped);
        }
        let card = CardHeader::load(platform.bar()).map_err(AttachError::Card)?;
        compare(&card.geometry, &self.geometry)?;
        if card.node != self.node {
            return Err(AttachError::OtherNode(card.node));
        }
        self.shadow.table = PageTable::of(&card.geometry, card.key);
        // A card that was reset since the last call has other words.
        let from = match self.emptied {
            Some((incarnation, from)) if incarnation == card.incarnation => from,
            _ => 0,
        };
        let left = self.empty_tables(platform, from, budget);
        self.emptied = left.map(|from| (card.incarnation, from));
        if left.is_some() {
            return Ok(Progress::Again);
        }
        self.incarnation = card.incarnation;
        platform.bar().store_release(header::HOST_EVENT_TAIL, 0);
        platform.bar().store_release(header::NIC_EVENT_HEAD, 0);
        self.to_nic = RingWriter::new(RingPlace::host_events(&self.geometry));
        self.from_nic = RingReader::new(RingPlace::nic_events(&self.geometry));
        self.barriers = Barriers::new();
        self.control = ControlSlots::new();
        self.leases_asked = 0;
        for peer in self.peers.iter_mut() {
            peer.forget();
        }
        (self.releasing, self.ready) = (0, List::EMPTY);
        self.watch = Watch::new(now);
        self.card = CardState::Alive;
        self.counters.reattached += 1;
        Ok(Progress::Done)
    }
}

fn compare(card: &Geometry, host: &Geometry) -> Result<(), AttachError> {
    let fields = [
        ("version", u32::from(card.version), u32::from(host.version)),
        ("page_size", card.page_size, host.page_size),
        ("payload", card.payload, host.payload),
        ("ports", u32::from(card.ports), u32::from(host.ports)),
        ("nodes", u32::from(card.nodes), u32::from(host.nodes)),
        ("window", u32::from(card.window), u32::from(host.window)),
        ("page_rows", card.page_rows, host.page_rows),
        ("capabilities", card.capabilities, host.capabilities),
        ("staging", u32::from(card.staging), u32::from(host.staging)),
        ("reads", u32::from(card.reads), u32::from(host.reads)),
        (
            "notification_queue",
            card.notification_queue,
            host.notification_queue,
        ),
    ];
    match fields.into_iter().find(|(_, card, host)| card != host) {
        Some((name, card, host)) => Err(AttachError::Mismatch { name, card, host }),
        None => Ok(()),
    }
}

/// Tables that are only measured.
struct Measured(usize);

impl Storage for Measured {
    type Table<T: 'static> = &'static mut [T];
}

impl MakeTable for Measured {
    fn table<T: 'static>(&mut self, len: usize, _: impl FnMut(usize) -> T) -> &'static mut [T] {
        self.0 += len * size_of::<T>();
        &mut []
    }
}

impl HostConfig {
    /// Bytes of the tables that a host of this size asks its platform for: all its state but the
    /// [`Host`] itself (promise P7: a constant for each page slot, peer and port).
    #[must_use]
    pub fn table_bytes(&self, geometry: &Geometry) -> usize {
        let mut measured = Measured(0);
        let card = CardHeader {
            geometry: *geometry,
            node: NodeId(0),
            incarnation: Incarnation(0),
            key: HashKey::default(),
        };
        let _ = Host::with_tables(&mut measured, self, &card, Nanos(0));
        measured.0
    }
}
