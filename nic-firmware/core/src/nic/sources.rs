//! Where payload comes from: a staging buffer is filled for a command or for a read, and tells which when it is full.

use super::Nic;
use crate::platform::Platform;
use crate::staging::{Answered, Filling, StagingFor};
use netvm_abi::event::SourceAnswer;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{Generation, Nanos, StagingId};

impl<S: Storage> Nic<S> {
    /// Starts to fill a buffer, fills it, or asks the host for its page. The authority of a read is checked each time anew: it
    /// may have been revoked while the host was asked.
    ///
    /// # Errors
    /// Why it may not be filled.
    pub(super) fn fill<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) -> Result<(), Status> {
        let Some((owner, port)) = self.staging.of(id) else {
            return Ok(());
        };
        let segment = match owner {
            StagingFor::Read(request) => Some(self.authorise_read(p, now, request)?),
            StagingFor::Nothing | StagingFor::Port { .. } => None,
        };
        let port = self.ports.get_mut(port).ok_or(Status::NoSuchPort)?;
        let filling = self
            .staging
            .fill(p, &mut self.env, &mut self.dmas, port, (id, segment));
        if let StagingFor::Read(request) = owner
            && let Some(slot) = self.inbound.get_mut(request)
        {
            slot.misses_source(filling == Filling::Missing);
        }
        if filling == Filling::Full {
            self.filled(p, now, id, true);
        }
        Ok(())
    }

    /// Fills a buffer that has waited, unless it is not wanted any more.
    pub(super) fn fill_again<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) {
        if let Some((StagingFor::Nothing, _)) = self.staging.of(id) {
            self.release_staging(p, now, id);
        } else if let Err(status) = self.fill(p, now, id) {
            self.unfilled(p, now, id, status);
        }
    }

    /// A buffer's DMA has ended.
    pub(super) fn filled<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId, ok: bool) {
        match self.staging.filled(id) {
            None => {}
            Some(StagingFor::Nothing) => self.release_staging(p, now, id),
            Some(_) if !ok => self.unfilled(p, now, id, Status::BusError),
            Some(StagingFor::Port { port, entry }) => self.staged(p, now, port, entry, Ok(())),
            Some(StagingFor::Read(request)) => {
                self.staging.leaves(id);
                self.read_served(p, now, request, Ok(id));
            }
        }
    }

    /// A buffer will not be filled: tells its owner and frees it.
    fn unfilled<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId, status: Status) {
        let owner = self.staging.of(id);
        self.release_staging(p, now, id);
        match owner {
            Some((StagingFor::Port { port, entry }, _)) => self.staged(p, now, port, entry, Err(status)),
            Some((StagingFor::Read(request), _)) => self.read_served(p, now, request, Err(status)),
            Some((StagingFor::Nothing, _)) | None => {}
        }
    }

    /// Frees a buffer and gives it to a read that waits for one.
    fn release_staging<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) {
        self.staging.release(&mut self.ports, id);
        self.resume_reads(p, now);
    }

    /// The host's answer to a source miss.
    pub(super) fn source_answered<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        (id, generation): (StagingId, Generation),
        answer: SourceAnswer,
    ) {
        match self
            .staging
            .answered(&mut self.env, &mut self.ports, (id, generation), answer)
        {
            Answered::Ignored => {}
            Answered::Again => self.fill_again(p, now, id),
            Answered::Failed(status) => self.unfilled(p, now, id, status),
        }
    }

    /// The platform has sent a buffer.
    pub(super) fn sent<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) {
        if self.staging.has_left(id) {
            self.release_staging(p, now, id);
        }
    }
}
