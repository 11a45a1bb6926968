//! Sending control messages, and acting on those received.

use super::Host;
use crate::control::Purpose;
use crate::platform::Platform;
use netvm_abi::control::{CONTROL_WORDS, Control};
use netvm_abi::event::HostEvent;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, NodeId, Status};

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
                if self.control.room(Purpose::Answer) == 0 {
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
