//! From a descriptor to the entry that will carry it out: one handler for each opcode.
//!
//! The descriptor has been copied once; everything here looks at the copy (promise P5).

use crate::nic::Nic;
use crate::stream::{Entry, Source, Stage};
use netvm_abi::descriptor::{Command, CommandFlags, HEAD_WORDS, Opcode};
use netvm_abi::port_area::REPLY_SLOTS;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Kind, MessageFlags};
use netvm_abi::{NodeId, NotificationId, OpId, PAGE_SIZE, PortId, ReplySlot, VirtAddr};

/// What a handler makes of a command.
type Handled = Result<(Kind, Source), Status>;

impl<S: Storage> Nic<S> {
    /// Makes an entry of a descriptor. A refused command becomes an entry that fails at its turn,
    /// so that commands end in the order in which they were posted.
    #[inline]
    pub(crate) fn dispatch(&mut self, id: PortId, head: &[u32; HEAD_WORDS]) -> Entry {
        let Ok(command) = Command::decode(head) else {
            self.counters.commands_refused += 1;
            return refused_words(id, self.config.node, head);
        };
        let mut header = Header::new(Kind::Write, self.config.node, command.node);
        header.source_port = id;
        header.destination_port = command.port;
        header.notification = command.notification;
        header.address = command.remote;
        header.capability = command.capability;
        header.secret = command.secret;
        header.op = command.op;
        header.reply = command.reply;
        header.epoch = command.epoch;
        if command.flags.contains(CommandFlags::ORDERED) {
            header.flags |= MessageFlags::ORDERED;
        }
        let handled = self.check_common(&command).and_then(|()| match command.opcode {
            Opcode::Write => self.write_command(&command, &mut header),
            Opcode::Read => self.read_command(&command, &mut header),
            Opcode::FlushRemote => flush_command(&command, &mut header),
            Opcode::TestAndSet | Opcode::FetchAdd | Opcode::Swap | Opcode::CompareSwap => {
                self.counters.unsupported += 1;
                Err(Status::Unsupported)
            }
        });
        let mut entry = Entry {
            header,
            local: command.local,
            is_write: command.opcode.is_write(),
            ..Entry::EMPTY
        };
        match handled {
            Ok((kind, source)) => {
                entry.header.kind = kind;
                entry.source = source;
                // The receiver echoes it in errors, so that they reach no later owner of the port.
                let generation = self.ports.get(id.index()).map_or(0, |port| port.generation.0);
                if kind != Kind::ReadRequest {
                    // A node that starts again counts generations from the beginning: the half above
                    // tells its owners from those before.
                    entry.header.compare =
                        u64::from(generation) | (u64::from(self.config.incarnation_seed) << 32);
                }
            }
            Err(status) => {
                self.counters.commands_refused += 1;
                if matches!(status, Status::NoSuchNode) {
                    // Towards no node there is no stream to poison.
                    entry.header.destination = self.config.node;
                }
                if matches!(status, Status::LocalAddress) {
                    entry.header.address = command.local;
                }
                entry.stage = Stage::Failed(status);
            }
        }
        entry
    }

    fn check_common(&self, command: &Command) -> Result<(), Status> {
        if command.node.0 >= self.config.geometry.nodes {
            return Err(Status::NoSuchNode);
        }
        if command.reply != ReplySlot::NONE && command.reply.0 >= REPLY_SLOTS {
            return Err(Status::Malformed);
        }
        Ok(())
    }

    /// A write: data, a notification, or both.
    fn write_command(&self, command: &Command, header: &mut Header) -> Handled {
        let len = self.check_remote(command)?;
        header.len = len;
        if len == 0 {
            return Ok((Kind::Write, Source::Nothing));
        }
        if command.flags.contains(CommandFlags::INLINE) {
            if len > self.config.inline_bytes {
                return Err(Status::Malformed);
            }
            return Ok((Kind::Write, Source::Descriptor));
        }
        check_local(command.local, len)?;
        Ok((Kind::Write, Source::Page(command.local)))
    }

    /// A read: the answer comes into a read slot, and from there into the local page.
    fn read_command(&self, command: &Command, header: &mut Header) -> Handled {
        let len = self.check_remote(command)?;
        check_local(command.local, len)?;
        header.notification = NotificationId::NONE;
        header.compare = u64::from(len);
        Ok((Kind::ReadRequest, Source::Nothing))
    }

    /// A transfer that stays inside one remote page and one payload.
    fn check_remote(&self, command: &Command) -> Result<u16, Status> {
        let offset = u32::from(command.remote.page_offset().0);
        if command.len.0 > self.config.geometry.payload || offset + command.len.0 > PAGE_SIZE {
            return Err(Status::Malformed);
        }
        Ok(command.len.0 as u16)
    }
}

/// A flush: waits at the receiver until everything earlier of this port has landed.
fn flush_command(command: &Command, header: &mut Header) -> Handled {
    if command.len.0 != 0 {
        return Err(Status::Malformed);
    }
    header.notification = NotificationId::NONE;
    header.flags |= MessageFlags::ORDERED;
    Ok((Kind::Flush, Source::Nothing))
}

/// A local address is a claim: its page is looked up as the port's own, whatever it says; here only
/// its form is checked.
fn check_local(local: VirtAddr, len: u16) -> Result<(), Status> {
    let too_high = local.0 >> 60 != 0;
    if too_high || u32::from(local.page_offset().0) + u32::from(len) > PAGE_SIZE {
        return Err(Status::LocalAddress);
    }
    Ok(())
}

/// An entry for words that are no command: as much of them as an error record can name.
fn refused_words(id: PortId, node: NodeId, head: &[u32; HEAD_WORDS]) -> Entry {
    let [opcode, _, _, _, _, _, _, _, _, _, op, ..] = *head;
    let mut header = Header::new(Kind::Write, node, node);
    header.source_port = id;
    header.op = OpId(op);
    Entry {
        stage: Stage::Failed(Status::Malformed),
        header,
        // What is no operation at all counts as a write.
        is_write: Opcode::from_code(opcode as u8).is_none_or(Opcode::is_write),
        ..Entry::EMPTY
    }
}
