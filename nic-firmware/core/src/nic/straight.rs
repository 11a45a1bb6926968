//! The straight way of a write that lacks nothing: from the words of its descriptor into its frame.
//!
//! Most small writes find an empty pipeline, a link that is up and a credit. Such a write needs no entry, as it waits
//! for nothing: its message is built once, numbered, and sent. What lacks something, or could fail, goes through the
//! pipeline ([`super::send`]), which does the same in steps. The checks of the command are one function for both
//! ([`crate::dispatch::plan`]), and so is the numbering.

use super::Nic;
use crate::dispatch::plan;
use crate::links::Outgoing;
use crate::pipeline::Source;
use crate::platform::{Payload, Platform};
use crate::ports::Count;
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::descriptor::{HEAD_WORDS, INLINE_BYTES, RawCommand};
use netvm_abi::storage::Storage;
use netvm_abi::wire::OwnHeader;
use netvm_abi::words::Part;
use netvm_abi::{Nanos, PortId};

impl<S: Storage> Nic<S> {
    /// Sends the write whose descriptor's head has been copied, if nothing of its port is on its way and it lacks
    /// nothing. Returns false, and has changed nothing, where it belongs into the pipeline.
    #[inline(always)]
    pub(super) fn send_straight<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: PortId,
        head: &[u32; HEAD_WORDS],
    ) -> bool {
        let Some(command) = RawCommand::short_write(head) else {
            return false;
        };
        let config = &self.env.config;
        let Some(port) = self.ports.get_mut(id) else {
            return false;
        };
        // While a page of the port is missing it gets fewer credits: the pipeline knows how many.
        if !port.pipeline.is_empty() || port.missing() != 0 {
            return false;
        }
        let Ok((message, source)) = plan(config, port.generation(), &command) else {
            return false;
        };
        let node = command.node();
        let Some(mut way) = self.links.way(config, node, id) else {
            return false;
        };
        let peer = way.peer();
        let waits = !peer.is_up() || u32::from(message.len) > peer.payload() || way.has_lost();
        if waits || !way.reserve(config.geometry.window) {
            return false;
        }
        let mut header = OwnHeader::carrying(message, (config.node, id), &command);
        let out = Outgoing {
            port: id,
            epoch: command.epoch(),
            op: command.op(),
            generation: port.generation(),
        };
        way.number(config, &mut header, out);
        self.env.counters.commands += 1;
        self.env.counters.messages_sent += 1;
        self.env.counters.bytes_sent += u64::from(message.len);
        if source == Source::Descriptor {
            let mut words = [0; INLINE_BYTES / 4];
            let block = Part::new(p.bar(), self.env.bar.port(id), BLOCK_WORDS);
            if let Some(used) = words.get_mut(..usize::from(message.len).div_ceil(4)) {
                port.pipeline.leaving().copy_inline(&block, used);
            }
            self.env.counters.inline_sent += 1;
            p.transmit(&header, Payload::Inline(&words));
        } else {
            p.transmit(&header, Payload::Empty);
        }
        let (taken, done) = port.pass_through();
        if done {
            port.refresh(p, &mut self.env, Count::Writes);
        }
        if taken {
            port.refresh(p, &mut self.env, Count::Taken);
        }
        self.links.arm_probe(&self.env, node, now);
        true
    }
}
