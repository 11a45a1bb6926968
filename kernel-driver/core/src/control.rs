//! Messages between host drivers: sending them through control slots, and acting on those received.
//!
//! A control message waits in one of 64 slots until the NIC says that it has left. The slots are
//! divided: requests, answers and farewells (releases, revocations) each have their own, so that
//! none can keep another from being sent. A request whose answer finds no slot is dropped; the
//! importer asks again. A received message ends its bounce slot at once, whatever it asks for, so
//! two nodes that ask each other can never wait for each other's slots.

use crate::host::Host;
use crate::platform::Platform;
use netvm_abi::control::{CONTROL_SLOTS, CONTROL_WORDS, Control};
use netvm_abi::event::HostEvent;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, NodeId, Status, Token};

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

const REQUESTS: core::ops::Range<u16> = 0..24;
const ANSWERS: core::ops::Range<u16> = 24..48;
const FAREWELLS: core::ops::Range<u16> = 48..CONTROL_SLOTS;

#[derive(Clone, Copy, Debug)]
struct ControlSlot {
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

    fn take(&mut self, purpose: Purpose) -> Option<(u16, Token)> {
        let share = match purpose {
            Purpose::Request(_) => REQUESTS,
            Purpose::Answer => ANSWERS,
            Purpose::Farewell => FAREWELLS,
        };
        for index in share {
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

    /// Whether a message for this purpose could be sent now.
    pub(crate) fn has_room(&self, purpose: Purpose) -> bool {
        let mut copy = *self;
        copy.take(purpose).is_some()
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

impl<S: Storage> Host<S> {
    /// Sends a message; false when there is no slot for it now.
    pub(crate) fn send_control<P: Platform>(
        &mut self,
        platform: &mut P,
        peer: NodeId,
        purpose: Purpose,
        message: &Control,
    ) -> bool {
        if !self.is_alive() {
            return false;
        }
        let Some((slot, token)) = self.control.take(purpose) else {
            return false;
        };
        platform
            .shared()
            .store_slice(self.shared_map.control_slot(slot), &message.encode());
        self.counters.control_sent += 1;
        self.post(platform, &HostEvent::SendControl { peer, slot, token });
        true
    }

    pub(crate) fn send_farewell<P: Platform>(
        &mut self,
        platform: &mut P,
        peer: NodeId,
        message: &Control,
    ) -> bool {
        self.send_control(platform, peer, Purpose::Farewell, message)
    }

    /// Acts on a message from the host driver of `from`.
    ///
    /// # Errors
    /// [`Status::Malformed`] when it makes no sense or `from` may not send it.
    pub(crate) fn handle_control<P: Platform>(
        &mut self,
        platform: &mut P,
        from: NodeId,
        words: &[u32; CONTROL_WORDS],
        now: Nanos,
    ) -> Result<(), Status> {
        match Control::decode(words)? {
            Control::Import {
                token,
                port,
                importer,
                modes,
                name,
            } => {
                self.counters.import_requests += 1;
                // First the slot, then the grant: a grant that cannot be told would be lost.
                if !self.control.has_room(Purpose::Answer) {
                    self.counters.import_requests_dropped += 1;
                    return Ok(());
                }
                let granted = self.answer_import(platform, from, port, importer, modes, &name, token);
                let answer = match granted {
                    Ok(grant) => Control::Granted { token, grant },
                    Err(status) => {
                        self.counters.imports_refused += 1;
                        Control::Refused { token, status }
                    }
                };
                self.send_control(platform, from, Purpose::Answer, &answer);
                Ok(())
            }
            Control::Granted { token, grant } => {
                self.import_answered(platform, from, token, Ok(grant), now);
                Ok(())
            }
            Control::Refused { token, status } => {
                self.import_answered(platform, from, token, Err(status), now);
                Ok(())
            }
            Control::Release { capability, secret } => {
                self.release_grant(platform, from, capability, secret, now)
            }
            Control::Revoked { capability, exporter } => {
                if exporter != from {
                    return Err(Status::Malformed);
                }
                self.import_revoked(from, capability);
                Ok(())
            }
        }
    }
}
