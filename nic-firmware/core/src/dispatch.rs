//! From a descriptor to the entry that will carry it out: one handler for each opcode.
//!
//! The descriptor has been copied once; everything here looks at the copy (promise P5).

use crate::config::Config;
use crate::nic::Nic;
use crate::stream::{Entry, Source, Stage};
use netvm_abi::descriptor::{Command, CommandFlags, HEAD_WORDS, Opcode};
use netvm_abi::port_area::REPLY_SLOTS;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Kind, MessageFlags};
use netvm_abi::{Generation, NodeId, NotificationId, OpId, PAGE_SIZE, PortId, ReplySlot, VirtAddr};

/// What a handler makes of a command: the part of its message that differs from kind to kind.
struct Plan {
    kind: Kind,
    source: Source,
    flags: MessageFlags,
    len: u16,
    notification: NotificationId,
    compare: u64,
    /// The opcode of an atomic.
    status: u8,
    operand: u64,
}

impl<S: Storage> Nic<S> {
    /// Makes an entry of a descriptor, in its place in the pipeline. A refused command becomes an
    /// entry that fails at its turn, so that commands end in the order in which they were posted.
    #[inline]
    pub(crate) fn dispatch(&mut self, id: PortId, index: u8, head: &[u32; HEAD_WORDS]) {
        let config = &self.config;
        let Some(port) = self.ports.get_mut(id.index()) else {
            return;
        };
        let generation = port.generation;
        let Some(place) = port.entry(index) else {
            return;
        };
        let Ok(command) = Command::decode(head) else {
            self.counters.commands_refused += 1;
            *place = refused_words(id, config.node, head);
            return;
        };
        let plan = match plan(config, &command, generation) {
            Ok(plan) => plan,
            Err(status) => {
                self.counters.commands_refused += 1;
                *place = refused(id, config.node, &command, status);
                return;
            }
        };
        *place = Entry {
            stage: Stage::Wanting,
            source: plan.source,
            header: Header {
                kind: plan.kind,
                flags: plan.flags,
                len: plan.len,
                source_port: id,
                destination_port: command.port,
                notification: plan.notification,
                address: command.remote,
                capability: command.capability,
                op: command.op,
                secret: command.secret,
                reply: command.reply,
                epoch: command.epoch,
                status: plan.status,
                operand: plan.operand,
                compare: plan.compare,
                ..Header::new(plan.kind, config.node, command.node)
            },
            local: command.local,
            is_write: command.opcode.is_write(),
            ..Entry::EMPTY
        };
    }
}

/// Checks a command and finds out what its message is like.
#[inline]
fn plan(config: &Config, command: &Command, generation: Generation) -> Result<Plan, Status> {
    if command.node.0 >= config.geometry.nodes {
        return Err(Status::NoSuchNode);
    }
    if command.reply != ReplySlot::NONE && command.reply.0 >= REPLY_SLOTS {
        return Err(Status::Malformed);
    }
    // The receiver echoes it in errors, so that they reach no later owner of the port. A node that
    // starts again counts generations from the beginning: the half above tells its owners from those
    // before.
    let owner = u64::from(generation.0) | (u64::from(config.incarnation_seed) << 32);
    let mut flags = MessageFlags::empty();
    flags.set(
        MessageFlags::ORDERED,
        command.flags.contains(CommandFlags::ORDERED),
    );
    flags.set(
        MessageFlags::REGARDLESS,
        command.flags.contains(CommandFlags::REGARDLESS),
    );
    if command.flags.contains(CommandFlags::APPEND) {
        flags |= append_flags(command)?;
    }
    match command.opcode {
        Opcode::Write => write_command(config, command, flags, owner),
        Opcode::Read => read_command(config, command, flags),
        Opcode::FlushRemote => flush_command(command, flags, owner),
        _ => atomic_command(command, flags),
    }
}

/// A write: data, a notification, or both.
#[inline]
fn write_command(
    config: &Config,
    command: &Command,
    flags: MessageFlags,
    owner: u64,
) -> Result<Plan, Status> {
    let len = check_remote(config, command)?;
    let source = if len == 0 {
        Source::Nothing
    } else if command.flags.contains(CommandFlags::INLINE) {
        if len > config.inline_bytes {
            return Err(Status::Malformed);
        }
        Source::Descriptor
    } else {
        check_local(command.local, len)?;
        Source::Page
    };
    Ok(Plan {
        kind: Kind::Write,
        source,
        flags,
        len,
        notification: command.notification,
        status: 0,
        operand: 0,
        compare: owner,
    })
}

/// The flags of an append: a write that the receiving NIC gives its place. It has something to put there, and never
/// stands alone: what follows it in its stream waits for it.
#[cold]
fn append_flags(command: &Command) -> Result<MessageFlags, Status> {
    let alone = command.flags.contains(CommandFlags::REGARDLESS);
    if command.opcode != Opcode::Write || command.len.0 == 0 || alone {
        return Err(Status::Malformed);
    }
    Ok(MessageFlags::APPEND | MessageFlags::ORDERED)
}

/// A read: the answer comes into a read slot, and from there into the local page.
fn read_command(config: &Config, command: &Command, flags: MessageFlags) -> Result<Plan, Status> {
    let len = check_remote(config, command)?;
    check_local(command.local, len)?;
    Ok(Plan {
        kind: Kind::ReadRequest,
        source: Source::Nothing,
        flags,
        len: 0,
        notification: NotificationId::NONE,
        status: 0,
        operand: 0,
        compare: u64::from(len),
    })
}

/// A flush: waits at the receiver until everything earlier of this port has landed.
fn flush_command(command: &Command, flags: MessageFlags, owner: u64) -> Result<Plan, Status> {
    if command.len.0 != 0 {
        return Err(Status::Malformed);
    }
    Ok(Plan {
        kind: Kind::Flush,
        source: Source::Nothing,
        flags: flags | MessageFlags::ORDERED,
        len: 0,
        notification: NotificationId::NONE,
        status: 0,
        operand: 0,
        compare: owner,
    })
}

/// An atomic: everything that the other side needs is in the header.
fn atomic_command(command: &Command, flags: MessageFlags) -> Result<Plan, Status> {
    let wide = command.flags.contains(CommandFlags::WIDE);
    let bytes = u64::from(command.opcode.operand_bytes(wide));
    if command.len.0 != 0 || bytes == 0 || !command.remote.0.is_multiple_of(bytes) {
        return Err(Status::Malformed);
    }
    let mut flags = flags;
    flags.set(MessageFlags::WIDE, wide);
    Ok(Plan {
        kind: Kind::AtomicRequest,
        source: Source::Nothing,
        flags,
        len: 0,
        notification: NotificationId::NONE,
        status: command.opcode as u8,
        operand: command.operand,
        compare: command.compare,
    })
}

/// A transfer that stays inside one remote page and one payload.
#[inline]
fn check_remote(config: &Config, command: &Command) -> Result<u16, Status> {
    let offset = u32::from(command.remote.page_offset().0);
    if command.len.0 > config.geometry.payload || offset + command.len.0 > PAGE_SIZE {
        return Err(Status::Malformed);
    }
    Ok(command.len.0 as u16)
}

/// A local address is a claim: its page is looked up as the port's own, whatever it says; here only
/// its form is checked.
#[inline]
fn check_local(local: VirtAddr, len: u16) -> Result<(), Status> {
    let too_high = local.0 >> 60 != 0;
    if too_high || u32::from(local.page_offset().0) + u32::from(len) > PAGE_SIZE {
        return Err(Status::LocalAddress);
    }
    Ok(())
}

/// An entry for a command that is refused: what an error record or a reply has to say.
#[cold]
fn refused(id: PortId, node: NodeId, command: &Command, status: Status) -> Entry {
    // Towards no node there is no stream to poison.
    let destination = if status == Status::NoSuchNode {
        node
    } else {
        command.node
    };
    let mut header = Header::new(Kind::Write, node, destination);
    header.source_port = id;
    header.destination_port = command.port;
    header.address = if status == Status::LocalAddress {
        command.local
    } else {
        command.remote
    };
    header.op = command.op;
    header.reply = command.reply;
    header.epoch = command.epoch;
    Entry {
        stage: Stage::Failed(status),
        header,
        is_write: command.opcode.is_write(),
        ..Entry::EMPTY
    }
}

/// An entry for words that are no command: as much of them as an error record can name.
#[cold]
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
