//! From a descriptor to the entry that will carry it out: one handler for each opcode.
//!
//! The descriptor has been copied once; everything here looks at the copy (promise P5).

use crate::config::Config;
use crate::pipeline::{Entry, Source, Stage};
use netvm_abi::descriptor::{CommandFlags, HEAD_WORDS, Opcode, RawCommand};
use netvm_abi::port_area::REPLY_SLOTS;
use netvm_abi::status::Status;
use netvm_abi::wire::{Body, Header, Kind, Message, MessageFlags, OwnHeader, Owner, ReadTicket};
use netvm_abi::{
    ByteLen, Generation, Incarnation, NodeId, NotificationId, OpId, PAGE_SIZE, PortId, ReadSlot, ReplySlot,
    VirtAddr,
};

/// What a command becomes: the part of its message that differs from kind to kind, and where the payload comes from.
type Plan = Result<(Message, Source), Status>;

impl Entry {
    /// Becomes the entry of a command. Returns whether it is carried out: a refused one becomes an entry that fails at
    /// its turn, so that commands end in the order in which they were posted.
    #[inline]
    pub(crate) fn dispatch(
        &mut self,
        config: &Config,
        id: PortId,
        generation: Generation,
        head: &[u32; HEAD_WORDS],
    ) -> bool {
        let from = (config.node, id);
        let Ok(command) = RawCommand::of(head) else {
            *self = refused_words(from, head);
            return false;
        };
        match plan(config, generation, &command) {
            Ok((message, source)) => {
                self.stage = Stage::Wanting;
                self.source = source;
                self.header = OwnHeader::carrying(message, from, &command);
                self.local = command.local();
                self.session = Incarnation(0);
                self.read = None;
                self.staging = None;
                self.stalled = false;
                true
            }
            Err(status) => {
                *self = refused(from, &command, status);
                false
            }
        }
    }
}

/// Whom a message names as its owner: the receiver echoes it in errors, so that they reach no later owner of the port.
#[inline(always)]
pub(crate) const fn owner(config: &Config, generation: Generation) -> Owner {
    Owner {
        generation,
        start: Incarnation(config.incarnation_seed),
    }
}

/// Whether there is a node of this number, and a reply slot.
#[inline(always)]
pub(crate) fn check_names(config: &Config, node: NodeId, reply: ReplySlot) -> Result<(), Status> {
    if node.0 >= config.geometry.nodes {
        return Err(Status::NoSuchNode);
    }
    if reply != ReplySlot::NONE && reply.0 >= REPLY_SLOTS {
        return Err(Status::Malformed);
    }
    Ok(())
}

/// Checks a command and finds out what its message is like.
#[inline(always)]
pub(crate) fn plan(config: &Config, generation: Generation, command: &RawCommand<'_>) -> Plan {
    check_names(config, command.node(), command.reply())?;
    let owner = owner(config, generation);
    let flags = MessageFlags::of_command(command.flags());
    if command.flags().contains(CommandFlags::APPEND) {
        return append_command(config, command, flags, owner);
    }
    if command.opcode() == Opcode::Write {
        let refusal = OpId(0);
        return write_command(config, command, flags, Body::Write { owner, refusal });
    }
    let message = match command.opcode() {
        Opcode::Read => read_command(config, command.remote(), command.local(), command.len(), flags)?,
        Opcode::FlushRemote => flush_command(command.len(), flags | MessageFlags::ORDERED, owner)?,
        Opcode::FlushReceived => {
            let message = flush_command(command.len(), MessageFlags::empty(), owner)?;
            return Ok((message, Source::NoMessage));
        }
        _ => atomic_command(command, flags)?,
    };
    Ok((message, Source::Nothing))
}

/// A write: data, a notification, or both.
#[inline(always)]
fn write_command(config: &Config, command: &RawCommand<'_>, flags: MessageFlags, body: Body) -> Plan {
    let len = check_remote(config, command.remote(), command.len())?;
    let inline = command.flags().contains(CommandFlags::INLINE);
    let source = source_of(config, inline, len)?;
    if source == Source::Page {
        check_local(command.local(), len)?;
    }
    let message = Message::new(body, flags, len, command.notification());
    Ok((message, source))
}

/// Where the payload of a write comes from.
#[inline(always)]
pub(crate) const fn source_of(config: &Config, inline: bool, len: u16) -> Result<Source, Status> {
    if len == 0 {
        Ok(Source::Nothing)
    } else if !inline {
        Ok(Source::Page)
    } else if len > config.inline_bytes {
        Err(Status::Malformed)
    } else {
        Ok(Source::Descriptor)
    }
}

/// An append: a write that the receiving NIC gives its place, and that names a refusal. It has something to put there,
/// and never stands alone: what follows it in its stream waits for it.
#[cold]
#[inline(never)]
fn append_command(config: &Config, command: &RawCommand<'_>, flags: MessageFlags, owner: Owner) -> Plan {
    let alone = command.flags().contains(CommandFlags::REGARDLESS);
    if command.opcode() != Opcode::Write || command.is_empty() || alone {
        return Err(Status::Malformed);
    }
    let flags = flags | MessageFlags::APPEND | MessageFlags::ORDERED;
    let refusal = OpId(command.operand() as u32);
    write_command(config, command, flags, Body::Write { owner, refusal })
}

/// A message without payload that asks for an answer. It gets its ticket when it leaves.
#[inline(always)]
const fn request(body: Body, flags: MessageFlags) -> Message {
    Message::new(body, flags, 0, NotificationId::NONE)
}

/// What stands in a request for the ticket that it has not got yet.
const NO_TICKET: ReadTicket = ReadTicket {
    slot: ReadSlot(0),
    generation: Generation(0),
};

/// A read: the answer comes into a read slot, and from there into the local page.
#[inline]
fn read_command(
    config: &Config,
    remote: VirtAddr,
    local: VirtAddr,
    len: ByteLen,
    flags: MessageFlags,
) -> Result<Message, Status> {
    let len = check_remote(config, remote, len)?;
    check_local(local, len)?;
    let body = Body::ReadRequest {
        ticket: NO_TICKET,
        len: u32::from(len),
    };
    Ok(request(body, flags))
}

/// A flush: waits at the receiver until everything earlier of this port has landed, or here until it has been received.
#[inline]
fn flush_command(len: ByteLen, flags: MessageFlags, owner: Owner) -> Result<Message, Status> {
    if len.0 != 0 {
        return Err(Status::Malformed);
    }
    let body = Body::Flush {
        ticket: NO_TICKET,
        owner,
    };
    Ok(request(body, flags))
}

/// An atomic: everything that the other side needs is in the header.
#[inline(always)]
fn atomic_command(command: &RawCommand<'_>, mut flags: MessageFlags) -> Result<Message, Status> {
    let wide = command.flags().contains(CommandFlags::WIDE);
    let bytes = u64::from(command.opcode().operand_bytes(wide));
    if !command.is_empty() || bytes == 0 || !command.remote().0.is_multiple_of(bytes) {
        // An extension has an atomic's form, and no operand in memory.
        if !command.is_empty() || command.opcode() != Opcode::ExtendLease {
            return Err(Status::Malformed);
        }
    }
    flags.set(MessageFlags::WIDE, wide);
    let body = Body::AtomicRequest {
        ticket: NO_TICKET,
        opcode: Some(command.opcode()),
        operand: command.operand(),
        compare: command.compare(),
    };
    Ok(request(body, flags))
}

/// A transfer that stays inside one remote page and one payload.
#[inline]
pub(crate) fn check_remote(config: &Config, remote: VirtAddr, len: ByteLen) -> Result<u16, Status> {
    if len.0 > config.geometry.payload || u32::from(remote.page_offset().0) + len.0 > PAGE_SIZE {
        return Err(Status::Malformed);
    }
    Ok(len.0 as u16)
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
#[inline(never)]
fn refused((node, id): (NodeId, PortId), command: &RawCommand<'_>, status: Status) -> Entry {
    // Towards no node there is no stream to poison.
    let destination = if status == Status::NoSuchNode {
        node
    } else {
        command.node()
    };
    let mut header = Header::new(kind_of(command.opcode()), node, destination);
    header.source_port = id;
    header.destination_port = command.port();
    header.address = if status == Status::LocalAddress {
        command.local()
    } else {
        command.remote()
    };
    header.op = command.op();
    header.reply = command.reply();
    header.epoch = command.epoch();
    Entry {
        stage: Stage::Failed(status),
        header: OwnHeader::new(&header),
        ..Entry::EMPTY
    }
}

/// The message that carries an operation out.
const fn kind_of(opcode: Opcode) -> Kind {
    match opcode {
        Opcode::Write => Kind::Write,
        Opcode::Read => Kind::ReadRequest,
        Opcode::FlushRemote | Opcode::FlushReceived => Kind::Flush,
        _ => Kind::AtomicRequest,
    }
}

/// An entry for words that are no command: as much of them as an error record can name.
#[cold]
#[inline(never)]
fn refused_words((node, id): (NodeId, PortId), head: &[u32; HEAD_WORDS]) -> Entry {
    let [opcode, _, _, _, _, _, _, _, _, _, op, ..] = *head;
    // What is no operation at all counts as a write.
    let kind = Opcode::from_code(opcode as u8).map_or(Kind::Write, kind_of);
    let mut header = Header::new(kind, node, node);
    header.source_port = id;
    header.op = OpId(op);
    Entry {
        stage: Stage::Failed(Status::Malformed),
        header: OwnHeader::new(&header),
        ..Entry::EMPTY
    }
}
