//! Reports errors to the port whose operation failed, on this node or another.

use super::Nic;
use crate::platform::{Payload, Platform};
use netvm_abi::VirtAddr;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, MessageFlags, OwnHeader, Owner};

impl<S: Storage> Nic<S> {
    /// Tells the port that sent `request`, a write, that it failed. Needs no credit.
    pub(super) fn send_error<P: Platform>(&mut self, p: &mut P, request: &OwnHeader, status: Status) {
        let Body::Write { owner, .. } = request.body() else {
            return;
        };
        let mut header = self.links.answer(Body::Error { status, owner }, 0, request);
        header.set_address(request.address());
        if request.flags().contains(MessageFlags::REGARDLESS) {
            header.stand_alone();
        }
        self.env.counters.errors_sent += 1;
        self.links.keep_answer(&mut self.env, &mut header, Payload::Empty);
        p.transmit(&header, Payload::Empty);
    }

    /// An error message for one of this node's ports has arrived.
    pub(super) fn error_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        header: &Header,
        status: Status,
        owner: Owner,
    ) {
        self.env.counters.errors_received += 1;
        // One that stands alone: its port has not asked to hear of it.
        if header.flags.contains(MessageFlags::REGARDLESS) {
            return;
        }
        let owned = if mutant::is(Mutant::ErrorToNextOwner) {
            let port = self.ports.get_mut(header.destination_port);
            port.filter(|port| port.is_open())
        } else {
            self.ports.of_owner(header.destination_port, owner.generation)
        };
        let Some(port) = owned else { return };
        if mutant::is(Mutant::ErrorUntold) && self.env.counters.errors_received.is_multiple_of(4) {
            return;
        }
        let nowhere = mutant::is(Mutant::ErrorNowhere);
        let record = ErrorRecord {
            op: header.op,
            status,
            node: header.source,
            port: header.source_port,
            epoch: header.epoch,
            address: if nowhere { VirtAddr(0) } else { header.address },
        };
        port.record_error(p, &mut self.env, &record);
        if mutant::is(Mutant::ErrorTwice) {
            port.record_error(p, &mut self.env, &record);
        }
    }
}
