//! Answers to import requests: this node's own, and those that its ports get.
//!
//! An answer is the end of a pending import, unless it waits for an export that does not exist yet. A
//! grant that no import waits for any more (a cancelled import, an answer that came after its time) is given back at
//! once.

use super::Host;
use crate::imports::State;
use crate::platform::Platform;
use netvm_abi::control::{Control, Grant, Modes, Name};
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, NodeId, PortId, Status, Token};

impl<S: Storage> Host<S> {
    /// This node's answer to an import request, from the network or from one of its own ports.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the request")]
    pub(crate) fn answer_import<P: Platform>(
        &mut self,
        platform: &mut P,
        holder: NodeId,
        port: PortId,
        importer: PortId,
        modes: Modes,
        name: &Name,
        request: Token,
    ) -> Result<Grant, Status> {
        if !self.port_is_open(port) {
            return Err(Status::NoSuchPort);
        }
        let export = self.exports.named(port, name).ok_or(Status::NoSuchExport)?;
        self.grant(platform, export, holder, importer, modes, request)
    }

    /// The exporter's answer.
    pub(crate) fn import_answered<P: Platform>(
        &mut self,
        platform: &mut P,
        from: NodeId,
        token: Token,
        answer: Result<Grant, Status>,
        now: Nanos,
    ) {
        let retry = now.after(self.config.import_retry);
        let entry = self
            .imports
            .entry(token)
            .filter(|(_, entry)| entry.spec.is_some_and(|spec| spec.node == from));
        match (entry, answer) {
            (Some((index, entry)), answer) if entry.state == State::Pending => {
                let waits = entry.spec.is_some_and(|spec| spec.wait);
                match answer {
                    Ok(grant) if grant.start.checked_add(grant.len).is_none() => {
                        self.settle(index, State::Failed(Status::Malformed));
                    }
                    Ok(grant) => self.settle(index, State::Live(grant)),
                    Err(Status::NoSuchPort | Status::NoSuchExport | Status::LinkLost | Status::TableFull)
                        if waits =>
                    {
                        entry.next_try = retry;
                        self.imports.next_due = self.imports.next_due.min(retry);
                    }
                    Err(status) => self.settle(index, State::Failed(status)),
                }
            }
            // The second answer to a request that was sent twice.
            (Some((_, entry)), Ok(grant)) if matches!(entry.state, State::Live(had) | State::Leaving(had) if had == grant) =>
                {}
            (_, Ok(grant)) => {
                self.counters.stray_grants += 1;
                let message = Control::Release {
                    capability: grant.capability,
                    secret: grant.secret,
                };
                self.send_farewell(platform, from, &message);
            }
            (_, Err(_)) => {}
        }
    }

    /// A request could not be sent.
    pub(crate) fn request_failed<P: Platform>(
        &mut self,
        platform: &mut P,
        token: Token,
        status: Status,
        now: Nanos,
    ) {
        if let Some(node) = self
            .imports
            .entry(token)
            .and_then(|(_, entry)| entry.spec)
            .map(|spec| spec.node)
        {
            self.import_answered(platform, node, token, Err(status), now);
        }
    }
}
