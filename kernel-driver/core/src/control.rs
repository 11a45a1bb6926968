//! Messages between host drivers: sending them through control slots, and acting on those received.
//!
//! A control message waits in one of 64 slots until the NIC says that it has left. The slots are
//! divided: requests, answers and farewells (releases, revocations) each have their own, so that
//! none can keep another from being sent. A request whose answer finds no slot is dropped; the
//! importer asks again. A received message ends its bounce slot at once, whatever it asks for, so
//! two nodes that ask each other can never wait for each other's slots.

use netvm_abi::Token;
use netvm_abi::control::CONTROL_SLOTS;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An import request, by the import's token.
    Request(Token),
    /// An answer to an import request.
    Answer,
    /// A release or a revocation.
    Farewell,
}

pub(crate) const REQUESTS: core::ops::Range<u16> = 0..24;
pub(crate) const ANSWERS: core::ops::Range<u16> = 24..48;
pub(crate) const FAREWELLS: core::ops::Range<u16> = 48..CONTROL_SLOTS;

const fn share(purpose: Purpose) -> core::ops::Range<u16> {
    match purpose {
        Purpose::Request(_) => REQUESTS,
        Purpose::Answer => ANSWERS,
        Purpose::Farewell => FAREWELLS,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlSlot {
    purpose: Option<Purpose>,
    generation: u16,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlSlots([ControlSlot; CONTROL_SLOTS as usize]);

impl ControlSlots {
    pub(crate) const fn new() -> Self {
        Self(
            [ControlSlot {
                purpose: None,
                generation: 0,
            }; CONTROL_SLOTS as usize],
        )
    }

    pub(crate) fn take(&mut self, purpose: Purpose) -> Option<(u16, Token)> {
        for index in share(purpose) {
            let slot = self.0.get_mut(usize::from(index))?;
            if slot.purpose.is_none() {
                slot.purpose = Some(purpose);
                slot.generation = slot.generation.wrapping_add(1);
                let token = Token(u32::from(index) | (u32::from(slot.generation) << 16));
                return Some((index, token));
            }
        }
        None
    }

    /// How many messages for this purpose could be sent now.
    pub(crate) fn room(&self, purpose: Purpose) -> usize {
        let slots = share(purpose).filter_map(|index| self.0.get(usize::from(index)));
        slots.filter(|slot| slot.purpose.is_none()).count()
    }

    /// Slots in use.
    pub(crate) fn held(&self) -> u32 {
        self.0.iter().filter(|slot| slot.purpose.is_some()).count() as u32
    }

    /// Frees the slot that a token names, and tells what it was used for.
    pub(crate) fn give_back(&mut self, token: Token) -> Option<Purpose> {
        let slot = self.0.get_mut((token.0 & 0xFFFF) as usize)?;
        if u32::from(slot.generation) != token.0 >> 16 {
            return None;
        }
        slot.purpose.take()
    }
}
