//! The straight way of a write that lacks nothing: from the words of its descriptor into its frame.
//!
//! Most small writes find an empty pipeline, a link that is up and a credit. Such a write needs no entry, as it waits
//! for nothing: its message is built once, numbered, and sent. What lacks something, or could fail, goes through the
//! pipeline ([`super::send`]), which does the same in steps. The checks of the command are one function for both
//! ([`crate::dispatch::plan`]), and so is the numbering.

use super::Nic;
use crate::dispatch::{check_names, check_remote, owner, source_of};
use crate::links::Outgoing;
use crate::pipeline::Source;
use crate::platform::{Payload, Platform};
use crate::ports::Count;
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::storage::Storage;
use netvm_abi::words::Part;
use netvm_abi::{ByteLen, Nanos, PortId};

impl<S: Storage> Nic<S> {
    /// Sends the command of a port that waits first, if nothing of the port is on its way, and it is a short write that
    /// lacks nothing. Where it belongs into the pipeline, nothing has changed: it is copied there anew, and checked in
    /// that copy.
    #[inline(always)]
    pub(super) fn send_straight<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        let Some(port) = self.ports.get_mut(id) else {
            return false;
        };
        // While a page of the port is missing it gets fewer credits: the pipeline knows how many.
        if !port.pipeline.is_empty() || port.missing() != 0 {
            return false;
        }
        let (env, generation) = (&mut self.env, port.generation());
        let config = &env.config;
        let block = Part::new(p.bar(), env.bar.port(id), BLOCK_WORDS);
        let (from, owner) = ((config.node, id), owner(config, generation));
        let Some(mut write) = port.pipeline.copy_short_write(block, from, owner) else {
            return false;
        };
        let header = &mut write.header;
        let (node, len) = (header.destination(), header.payload_len());
        let checked = check_names(config, node, header.reply())
            .and_then(|()| check_remote(config, header.address(), ByteLen(u32::from(len))))
            .and_then(|len| source_of(config, write.inline, len));
        let Ok(source) = checked else {
            return false;
        };
        let Some(mut way) = self.links.way(config, node, id) else {
            return false;
        };
        let peer = way.peer();
        if !peer.is_up() || u32::from(len) > peer.payload() || way.has_lost() {
            return false;
        }
        let Some(seq) = way.take() else {
            return false;
        };
        let out = Outgoing {
            port: id,
            epoch: header.epoch(),
            op: header.op(),
            generation,
            settled: false,
        };
        let watched = way.number(config, now, header, out, seq);
        env.counters.commands += 1;
        env.counters.messages_sent += 1;
        env.counters.bytes_sent += u64::from(len);
        if source == Source::Descriptor {
            env.counters.inline_sent += 1;
            let mut all;
            let mut payload: &[u32] = &write.pair;
            if len > 8 {
                all = [0; INLINE_BYTES / 4];
                let block = Part::new(p.bar(), env.bar.port(id), BLOCK_WORDS);
                if let Some(used) = all.get_mut(..usize::from(len).div_ceil(4)) {
                    port.pipeline.leaving().copy_inline(&block, used);
                }
                payload = &all;
            }
            self.links
                .keep_request(config, now, node, header, Payload::Inline(payload));
            p.transmit(header, Payload::Inline(payload));
        } else {
            self.links.keep_request(config, now, node, header, Payload::Empty);
            p.transmit(header, Payload::Empty);
        }
        let (taken, done) = port.pass_through();
        if done {
            port.refresh(p, env, Count::Writes);
        }
        if taken {
            port.refresh(p, env, Count::Taken);
        }
        if !watched {
            self.links.arm_probe(env, node, now);
        }
        true
    }

    /// The same for a command that is not the first of its turn.
    #[inline(never)]
    pub(super) fn send_another<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        self.send_straight(p, now, id)
    }
}
