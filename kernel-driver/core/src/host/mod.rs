//! The whole of one node's driver, and the two things that everything needs: posting an event to the
//! NIC, and finding that the card is dead.

mod answers;
mod attach;
mod barrier;
mod bounce;
pub mod census;
mod control;
mod events;
mod export;
mod grant;
mod import;
mod lease;
mod map;
mod overdue;
mod paging;
mod peer;
mod port;
mod segment;
mod tally;
mod unmap;
mod watch;

use crate::attach::HostConfig;
use crate::bounce::Work;
pub use crate::card::{CardFailure, CardState};
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
use netvm_abi::bar::BarMap;
use netvm_abi::event::HostEvent;
use netvm_abi::page_table::PageTable;
use netvm_abi::ring::{RingReader, RingWriter};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Geometry, Incarnation, Nanos, NodeId};

/// The state of one node's driver. All methods are called under one lock of the platform.
pub struct Host<S: Storage> {
    pub(crate) geometry: Geometry,
    pub(crate) node: NodeId,
    pub(crate) config: HostConfig,
    pub(crate) bar_map: BarMap,
    pub(crate) shared_map: SharedMap,
    pub(crate) card: CardState,
    /// The start of the firmware that it has attached to.
    pub(crate) incarnation: Incarnation,
    /// The start of the firmware for which the tables are being emptied, and the first entry that is left.
    pub(crate) emptied: Option<(Incarnation, u32)>,
    /// The platform has not heard of the card's death yet.
    pub(crate) death_untold: bool,
    pub(crate) watch: Watch,
    pub(crate) to_nic: RingWriter,
    pub(crate) from_nic: RingReader,
    pub(crate) shadow: Shadow<S>,
    pub(crate) races: Races<S>,
    pub(crate) ports: S::Table<Port>,
    pub(crate) numbers: Numbers,
    /// Ports that wait for nothing but the NIC, the longest first.
    pub(crate) closing: List<0>,
    /// Ports that have work for their workers, the one whose worker was looked at first before the others.
    pub(crate) awaited: List<1>,
    pub(crate) segments: Segments<S>,
    pub(crate) exports: Exports<S>,
    pub(crate) grants: Grants<S>,
    pub(crate) barriers: Barriers,
    pub(crate) imports: Imports<S>,
    pub(crate) peers: S::Table<Peer>,
    /// Peers whose old incarnation is not released yet.
    pub(crate) releasing: u32,
    /// Those of them that wait for no worker: each look lets go of a slice of the first one.
    pub(crate) ready: List<0>,
    pub(crate) work: S::Table<Work>,
    /// Work that waits for the card to say whether its lease is over.
    pub(crate) asking: List<0>,
    /// Questions of programs that are out.
    pub(crate) leases_asked: u32,
    pub(crate) slowest_answer: Nanos,
    pub(crate) control: ControlSlots,
    pub(crate) counters: Counters,
}

impl<S: Storage> core::fmt::Debug for Host<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host")
            .field("node", &self.node)
            .field("card", &self.card)
            .field("mapped", &self.shadow.mapped())
            .finish_non_exhaustive()
    }
}

impl<S: Storage> Host<S> {
    /// This node.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The sizes agreed with the card.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Place and hash key of the page table.
    #[must_use]
    pub const fn page_table(&self) -> &PageTable {
        &self.shadow.table
    }

    /// Whether the card can be used.
    #[must_use]
    pub const fn card(&self) -> CardState {
        self.card
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.card, CardState::Alive)
    }

    /// The card is dead from now on; `poll` cleans up and tells the platform.
    pub(crate) fn fail(&mut self, cause: CardFailure) {
        if self.is_alive() {
            self.card = CardState::Dead(cause);
            self.death_untold = true;
            self.counters.cards_dead += 1;
        }
    }

    /// Tells the NIC something, and wakes it if it sleeps. The ring has room for everything that can
    /// be outstanding; a card that lets it fill up does not work.
    pub(crate) fn post<P: Platform>(&mut self, platform: &mut P, event: &HostEvent) {
        if !self.is_alive() {
            return;
        }
        if !self
            .to_nic
            .push(platform.bar(), platform.shared(), &event.encode())
        {
            self.fail(CardFailure::EventRingFull);
            return;
        }
        self.counters.host_events += 1;
        // The tail before the look: a NIC that goes to sleep sets its word, then looks at the tail.
        platform.bar().full_barrier();
        if platform.shared().load_acquire(status_page::SLEEPING) != 0 {
            self.counters.nic_wakes += 1;
            platform.wake_nic();
        }
    }
}
