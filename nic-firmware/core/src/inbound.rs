//! What arrives from other nodes: the slots of all receiving windows, the streams that the messages belong to, and the
//! units that atomics take.

mod order;
mod slot;
mod streams;
mod units;

pub(crate) use slot::Slot;
pub(crate) use slot::{Presence, SlotState};
pub(crate) use streams::Stream;
pub(crate) use units::UNITS;
pub(crate) use units::Unit;
pub(crate) use units::leave;

use crate::queue::Fifo;
use crate::windows::{Aside, SetAside};
use netvm_abi::BounceId;
use netvm_abi::storage::Storage;

/// All receiving windows.
pub(crate) struct Inbound<S: Storage> {
    slots: S::Table<Slot>,
    streams: S::Table<Stream>,
    /// Streams of nodes that have no window.
    aside: SetAside<S, Stream>,
    units: S::Table<Unit>,
    /// Atomics that have got their unit and wait for the next pass.
    ready: Fifo,
    /// Why each message's stream is looked at: how many links are held up ([`order`]), and [`POISONED`].
    wary: u16,
}

/// A stream has been poisoned once.
const POISONED: u16 = 1 << 15;

impl<S: Storage> Inbound<S> {
    pub(crate) fn new(
        slots: S::Table<Slot>,
        streams: S::Table<Stream>,
        aside: S::Table<Aside<Stream>>,
        units: S::Table<Unit>,
    ) -> Self {
        Self {
            slots,
            streams,
            aside: SetAside::new(aside),
            units,
            ready: Fifo::new(),
            wary: 0,
        }
    }

    /// A slot of a window.
    #[inline]
    pub(crate) fn get(&self, at: BounceId) -> Option<&Slot> {
        self.slots.get(at.index())
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: BounceId) -> Option<&mut Slot> {
        self.slots.get_mut(at.index())
    }

    /// Whether a message may belong to a stream that is poisoned, or to a link that is held up.
    #[inline]
    pub(crate) const fn wary(&self) -> bool {
        self.wary != 0
    }

    /// What the message in a slot waits for.
    #[inline]
    pub(crate) fn state(&self, at: BounceId) -> Option<SlotState> {
        self.get(at).map(Slot::state)
    }

    /// It waits for something else now.
    #[inline]
    pub(crate) fn set(&mut self, at: BounceId, state: SlotState) {
        if let Some(slot) = self.get_mut(at) {
            slot.set(state);
        }
    }

    /// Whether the LSN may pass a message, or has to act on it, when it gets there.
    #[inline]
    pub(crate) fn could_pass(&self, at: BounceId) -> bool {
        matches!(
            self.state(at),
            Some(SlotState::Landed | SlotState::Failed | SlotState::Ordered)
        )
    }

    /// Slots that a message is in, receive buffers that they have, and units that are taken.
    pub(crate) fn held(&self) -> (u32, u32, u32) {
        let slots = self
            .slots
            .iter()
            .filter(|slot| slot.state() != SlotState::Missing);
        let receives = self.slots.iter().filter(|slot| slot.has_receive());
        let units = self.units.iter().filter(|unit| unit.is_taken());
        (
            slots.count() as u32,
            receives.count() as u32,
            units.count() as u32,
        )
    }

    /// Whether a message is in a slot.
    pub(crate) fn has_arrived(&self, at: BounceId) -> bool {
        self.presence(at) != Presence::Missing
    }

    /// What a slot has of its message.
    pub(crate) fn presence(&self, at: BounceId) -> Presence {
        match self.state(at) {
            None | Some(SlotState::Missing) => Presence::Missing,
            Some(SlotState::Landed | SlotState::Failed | SlotState::Passed) => Presence::Ended,
            Some(_) => Presence::Held,
        }
    }
}
