//! Reports errors to the port whose operation failed, on this node or another.

use crate::nic::Nic;
use crate::platform::{Payload, Platform};
use netvm_abi::bar::port::ERROR_READ;
use netvm_abi::port_area::{ERROR_RECORDS, ERROR_WORDS, ERROR_WRITE, ERRORS, ERRORS_LOST, ErrorRecord};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, MessageFlags, OwnHeader, Owner};
use netvm_abi::words::SharedWords;
use netvm_abi::{Incarnation, PortId};

impl<S: Storage> Nic<S> {
    /// Tells the port that sent `request`, a write, that it failed. Needs no credit.
    pub(crate) fn send_error<P: Platform>(&mut self, p: &mut P, request: &Header, status: Status) {
        let Body::Write { owner } = request.body() else {
            return;
        };
        let mut header = self.answer(Body::Error { status, owner }, 0, request);
        header.set_address(request.address);
        if request.flags.contains(MessageFlags::REGARDLESS) {
            header.stand_alone();
        }
        self.env.counters.errors_sent += 1;
        p.transmit(&header, Payload::Empty);
    }

    /// A message that answers `request`, with `len` bytes behind it, in the present life of the link.
    #[inline(always)]
    pub(crate) fn answer(&self, body: Body, len: u16, request: &Header) -> OwnHeader {
        let peer = self.peers.get(request.source.index());
        let incarnations = peer.map_or([Incarnation(0); 2], |peer| [peer.local, peer.remote]);
        OwnHeader::answering(request, incarnations, body, len)
    }

    /// An error message for one of this node's ports has arrived.
    pub(crate) fn error_arrives<P: Platform>(
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
        let id = header.destination_port;
        let open = self.ports.get(id.index());
        if !open.is_some_and(|port| port.is(owner.generation)) {
            return;
        }
        let record = ErrorRecord {
            op: header.op,
            status,
            node: header.source,
            port: header.source_port,
            epoch: header.epoch,
            address: header.address,
        };
        self.record_error(p, id, &record);
    }

    /// Puts a record into a port's error ring, or counts that it was full, and interrupts. The
    /// record is stored before the word that announces it, and both before the interrupt; an
    /// application that goes to sleep looks at the word after it has said so to the kernel.
    pub(crate) fn record_error<P: Platform>(&mut self, p: &mut P, id: PortId, record: &ErrorRecord) {
        let area = self.env.shared.port_area(id);
        let read = p.bar().load_acquire(self.env.bar.port(id).plus(ERROR_READ.0));
        let Some(port) = self.ports.get_mut(id.index()) else {
            return;
        };
        if port.error_write.wrapping_sub(read) >= ERROR_RECORDS {
            port.errors_lost = port.errors_lost.wrapping_add(1);
            self.env.counters.errors_lost += 1;
            p.shared()
                .store_release(area.plus(ERRORS_LOST.0), port.errors_lost);
        } else {
            let slot = port.error_write % ERROR_RECORDS;
            port.error_write = port.error_write.wrapping_add(1);
            self.env.counters.error_records += 1;
            let at = area.plus(ERRORS.0 + slot * ERROR_WORDS as u32);
            p.shared().store_slice(at, &record.encode());
            p.shared()
                .store_release(area.plus(ERROR_WRITE.0), port.error_write);
        }
        self.env.interrupt_port(p, id);
    }
}
