//! A control message of another driver arrives.

use super::Nic;
use super::receive::Step;
use crate::dmas::Holder;
use crate::inbound::SlotState;
use crate::platform::Platform;
use netvm_abi::control::CONTROL_BYTES;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, PortId};

impl<S: Storage> Nic<S> {
    /// A control message has arrived: it goes to the driver.
    pub(super) fn control_arrives<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get(at) else {
            return Step::Ended(Status::Malformed);
        };
        let header = slot.header().decode();
        let from_driver = header.source_port == PortId::DRIVER && header.destination_port == PortId::DRIVER;
        if !from_driver || usize::from(header.len) != CONTROL_BYTES {
            self.env.counters.refused_malformed += 1;
            return Step::Ended(Status::Malformed);
        }
        let Some(ticket) = self.dmas.ticket() else {
            self.inbound.set(at, SlotState::Queued);
            self.dmas.park(&mut self.env, Holder::Window(at));
            return Step::Pending;
        };
        self.env.counters.control_received += 1;
        self.bounce_message(p, ticket, at);
        Step::Pending
    }
}
