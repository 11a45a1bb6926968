//! Names for ranges: how they begin and how they end.

use super::Host;
use crate::Progress;
use crate::exports::{ExportError, ExportSpec, State, Unexport};
use crate::platform::Platform;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::storage::Storage;
use netvm_abi::{ExportId, Nanos, NotificationId, PortId, VirtAddr};

/// Grants taken back in one step.
const REVOKE_SLICE: u32 = 64;

impl<S: Storage> Host<S> {
    /// Gives a name to a range of a port's memory. The cost does not grow with its size.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&mut self, port: PortId, spec: &ExportSpec<'_>) -> Result<ExportId, ExportError> {
        if !self.port_is_open(port) {
            return Err(ExportError::NoSuchPort);
        }
        if spec.len == 0 {
            return Err(ExportError::Empty);
        }
        let notifies = spec.modes.contains(Modes::NOTIFY);
        if notifies && (!spec.notify_first.is_some() || spec.notify_first > spec.notify_last) {
            return Err(ExportError::BadNotifications);
        }
        let end = VirtAddr(spec.start.0.saturating_add(spec.len));
        let (mut modes, queue) = (spec.modes, spec.queue);
        let fits = queue.places(spec.start, end).is_some() && !queue.notification().is_one_shot();
        if queue.is_some() && !(fits && modes.contains(Modes::APPEND)) {
            return Err(ExportError::BadQueue);
        }
        if !queue.is_some() {
            modes.remove(Modes::APPEND);
        }
        let allow = heapless::Vec::from_slice(spec.allow).map_err(|_| ExportError::TooManyAllowed)?;
        let (segment, _) = self
            .segments
            .holding(port, spec.start, spec.len)
            .ok_or(ExportError::NotRegistered)?;
        let exports = &mut self.exports;
        let at = match exports.search(port, spec.name.bytes()) {
            Err(at) => at,
            Ok(at) => {
                let taken = exports.names.get(at).unwrap_or(0);
                return Err(ExportError::NameTaken(exports.id(taken)));
            }
        };
        if !exports.shares.take(port) {
            return Err(ExportError::TableFull);
        }
        let index = exports
            .free
            .pop_front(&mut exports.table)
            .ok_or(ExportError::TableFull)?;
        if let Some(export) = exports.table.get_mut(index as usize) {
            export.state = State::Live;
            export.name = *spec.name.bytes();
            export.allow = allow;
            export.root = Capability {
                port,
                modes,
                segment,
                start: spec.start,
                end,
                queue,
                notify_first: if notifies {
                    spec.notify_first
                } else {
                    NotificationId::NONE
                },
                notify_last: if notifies {
                    spec.notify_last
                } else {
                    NotificationId::NONE
                },
                ..Capability::NOTHING
            };
        }
        exports.names.insert(at, index);
        if let Some(segment) = self.segments.get(segment) {
            segment.exports.push_back(&mut exports.table, index);
        }
        self.counters.exports += 1;
        Ok(self.exports.id(index))
    }

    /// Begins to end an export: the name is free at once, its grants are revoked.
    ///
    /// # Errors
    /// [`ExportError::NoSuchExport`].
    pub fn unexport_begin(&mut self, port: PortId, export: ExportId) -> Result<Unexport, ExportError> {
        let index = self
            .exports
            .index(export)
            .filter(|&index| {
                let entry = self.exports.table.get(index as usize);
                entry.is_some_and(|entry| entry.root.port == port)
            })
            .ok_or(ExportError::NoSuchExport)?;
        self.unname(index);
        Ok(Unexport { export })
    }

    /// Goes on ending it. When done, DMAs authorised earlier are over, and bounced or parked
    /// messages that name one of its grants are refused (promise P5).
    pub fn unexport_step<P: Platform>(
        &mut self,
        platform: &mut P,
        unexport: &mut Unexport,
        now: Nanos,
    ) -> Progress {
        match self.exports.index(unexport.export) {
            Some(index) => self.end_export(platform, index, now),
            None => Progress::Done,
        }
    }

    fn unname(&mut self, index: u32) {
        let Some(export) = self.exports.table.get_mut(index as usize) else {
            return;
        };
        if export.state != State::Live {
            return;
        }
        export.state = State::Ending;
        let (port, name) = (export.root.port, export.name);
        if let Ok(at) = self.exports.search(port, &name) {
            self.exports.names.remove(at);
        }
    }

    /// One step of the end of an export; several callers may drive it at once.
    pub(crate) fn end_export<P: Platform>(&mut self, platform: &mut P, index: u32, now: Nanos) -> Progress {
        self.unname(index);
        for _ in 0..REVOKE_SLICE {
            let first = self.exports.table.get(index as usize);
            let Some(grant) = first.and_then(|export| export.grants.first()) else {
                break;
            };
            self.retract_grant(platform, grant, true);
        }
        self.request_barrier(platform, now);
        self.reap();
        let Some(export) = self.exports.table.get_mut(index as usize) else {
            return Progress::Done;
        };
        if !export.grants.is_empty() {
            return Progress::Again;
        }
        if export.ending > 0 {
            return Progress::Wait;
        }
        export.state = State::Free;
        export.generation = export.generation.wrapping_add(1);
        let (port, segment) = (export.root.port, export.root.segment);
        if let Some(segment) = self.segments.get(segment) {
            segment.exports.remove(&mut self.exports.table, index);
        }
        self.exports.free.push_back(&mut self.exports.table, index);
        self.exports.shares.give(port);
        self.counters.unexports += 1;
        Progress::Done
    }
}
