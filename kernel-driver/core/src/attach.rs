//! Negotiating with a card, watching it, and attaching again after a reset.
//!
//! Order: [`Host::attach`]; when the card is found dead: [`Notice::CardDead`], the platform stops
//! its DMA, [`Host::card_stopped`]; ports and unmaps end; the card is reset, its firmware comes up,
//! [`Host::reattach`].
//!
//! [`Notice::CardDead`]: crate::events::Notice::CardDead

use crate::bounce::Work;
use crate::control::ControlSlots;
use crate::counters::Counters;
use crate::exports::Exports;
use crate::grants::Grants;
use crate::host::{CardFailure, CardState, Host};
use crate::imports::Imports;
use crate::peers::Peer;
use crate::platform::Platform;
use crate::ports::Port;
use crate::races::Races;
use crate::revoke::Barriers;
use crate::segments::Segments;
use crate::shadow::Shadow;
use crate::watch::Watch;
use core::fmt;
use netvm_abi::attach::{AttachError as CardError, CardHeader};
use netvm_abi::bar::{BarMap, header};
use netvm_abi::capability::capability_at;
use netvm_abi::page_table::{HashKey, PageTable};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::words::SharedWords;
use netvm_abi::{CapabilitySlot, Geometry, Incarnation, Nanos, NodeId};

/// What the platform chooses: sizes of the tables that the NIC does not know, and deadlines.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// The geometry that the card must have; `None`: whatever it has, if it can be served.
    pub geometry: Option<Geometry>,
    /// Segments of all ports, at most 65535. Of these, of exports and of imports, half are divided among the port numbers:
    /// each port can have its part whatever others hold.
    pub segments: u32,
    /// Exports of all ports, at most 65535.
    pub exports: u32,
    /// Imports of all ports, pending ones included, at most 65535.
    pub imports: u32,
    /// Port numbers from 1 to this one are given only to callers that name them: the platform decides which callers
    /// may.
    pub reserved_ports: u16,
    /// How long an unmap, a barrier or a port close may wait for the NIC before the card counts as
    /// dead: time in which the card runs ([`crate::watch`]).
    pub nic_deadline: Nanos,
    /// How long the heartbeat may stand still before the card counts as dead: time in which the host
    /// looks, counted from a call where the card sleeps. [`Nanos::MAX`]: for ever, except while
    /// something waits for the card.
    pub heartbeat_deadline: Nanos,
    /// How long a pending import waits before it asks again.
    pub import_retry: Nanos,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            geometry: None,
            segments: 1024,
            exports: 1024,
            imports: 1024,
            reserved_ports: 0,
            nic_deadline: Nanos::from_millis(10),
            heartbeat_deadline: Nanos::from_millis(1000),
            import_retry: Nanos::from_millis(2),
        }
    }
}

/// Why a card cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// It is not up, gone, or not to be served by this driver.
    Card(CardError),
    /// Its geometry is not the configured one.
    Mismatch {
        /// The field.
        name: &'static str,
        /// What the card has.
        card: u32,
        /// What was asked for.
        host: u32,
    },
    /// Re-attach: the card says it is another node.
    OtherNode(NodeId),
    /// The configuration asks for a table with more entries than an id can name.
    Config {
        /// The field.
        name: &'static str,
    },
    /// Re-attach: the card still works, or its DMA has not been stopped, or a port is left.
    NotStopped,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card(error) => error.fmt(f),
            Self::Mismatch { name, card, host } => {
                write!(f, "the card has '{name}' = {card}, this host asks for {host}")
            }
            Self::OtherNode(node) => write!(f, "the card is node {node} now"),
            Self::Config { name } => write!(f, "'{name}' must be from 1 to 65535"),
            Self::NotStopped => write!(f, "the card was not stopped, or not all ports are closed"),
        }
    }
}

impl core::error::Error for AttachError {}

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
        host.empty_tables(platform);
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
            death_untold: false,
            watch: Watch::new(now),
            to_nic: RingWriter::new(RingPlace::host_events(&geometry)),
            from_nic: RingReader::new(RingPlace::nic_events(&geometry)),
            shadow: Shadow::new(tables, PageTable::of(&geometry, card.key), config.segments),
            races: Races::new(tables, geometry.ports),
            ports: tables.table(usize::from(geometry.ports), |_| Port::new()),
            segments: Segments::new(tables, config.segments, geometry.ports),
            exports: Exports::new(tables, config.exports, geometry.ports),
            grants: Grants::new(tables, geometry.capabilities),
            barriers: Barriers::new(),
            imports: Imports::new(tables, config.imports, geometry.ports),
            peers: tables.table(usize::from(geometry.nodes), |_| Peer::new()),
            releasing: 0,
            work: tables.table(geometry.bounce_slots() as usize, |_| Work::new()),
            slowest_answer: Nanos(0),
            control: ControlSlots::new(),
            counters: Counters::default(),
        }
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

impl<S: Storage> Host<S> {
    /// Makes every entry of the page and capability table invalid.
    fn empty_tables<P: Platform>(&mut self, platform: &mut P) {
        let bar = platform.bar();
        self.shadow.empty(bar);
        for slot in 0..self.geometry.capabilities {
            bar.store_release(capability_at(self.bar_map.capabilities, CapabilitySlot(slot)), 0);
        }
        bar.full_barrier();
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
    /// # Errors
    /// [`AttachError`]; a card with another geometry or node is refused.
    pub fn reattach<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> Result<(), AttachError> {
        let idle = self.shadow.mapped() == 0 && self.ports.iter().all(Port::is_free);
        if !matches!(self.card, CardState::Stopped { .. }) || !idle {
            return Err(AttachError::NotStopped);
        }
        let card = CardHeader::load(platform.bar()).map_err(AttachError::Card)?;
        compare(&card.geometry, &self.geometry)?;
        if card.node != self.node {
            return Err(AttachError::OtherNode(card.node));
        }
        self.incarnation = card.incarnation;
        self.shadow.table = PageTable::of(&card.geometry, card.key);
        platform.bar().store_release(header::HOST_EVENT_TAIL, 0);
        platform.bar().store_release(header::NIC_EVENT_HEAD, 0);
        self.to_nic = RingWriter::new(RingPlace::host_events(&self.geometry));
        self.from_nic = RingReader::new(RingPlace::nic_events(&self.geometry));
        self.barriers = Barriers::new();
        self.control = ControlSlots::new();
        for peer in self.peers.iter_mut() {
            peer.forget();
        }
        self.releasing = 0;
        self.watch = Watch::new(now);
        self.card = CardState::Alive;
        self.empty_tables(platform);
        self.counters.reattached += 1;
        Ok(())
    }
}
