//! A scripted platform for the NIC core: memory in vectors, DMAs and messages that wait until the test lets them
//! happen, in whatever order it likes. [`Board`] is a card's surroundings, [`Node`] a card with its
//! rings and ports, its pages and the plain host that serves them, [`World`] several nodes
//! with a wire, [`Slow`] two or more with a way that takes long. Here: the words in which the tests talk about them.

mod board;
mod host;
mod node;
mod slow;
mod world;

pub use board::{Board, Message, PAGE};
pub use node::Node;
pub use slow::Slow;
pub use world::World;

use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::event::{HostEvent, SourceAnswer};
use netvm_abi::*;

/// Small tables, so that tests reach their ends.
#[must_use]
pub fn geometry(nodes: u16) -> Geometry {
    Geometry {
        nodes,
        ports: 8,
        page_rows: 256,
        capabilities: 64,
        staging: 8,
        reads: 8,
        ..Geometry::default()
    }
}

/// A capability for everything from node `holder` port 1 to port 1 at `0x10000..0x20000`.
#[must_use]
pub fn capability(holder: u16) -> Capability {
    Capability {
        port: PortId(1),
        modes: Modes::READ | Modes::WRITE | Modes::NOTIFY,
        segment: SegmentId(5),
        holder: NodeId(holder),
        holder_port: PortId(1),
        start: VirtAddr(0x10000),
        end: VirtAddr(0x20000),
        secret: 0x1234_5678_9ABC_DEF0,
        notify_first: NotificationId(1),
        notify_last: NotificationId(u32::MAX),
        ..Capability::NOTHING
    }
}

/// A write from node 0 to node 1 through [`capability()`] in slot 3.
#[must_use]
pub fn write(op: u32, remote: u64, local: u64, len: u32) -> Command {
    Command {
        len: ByteLen(len),
        node: NodeId(1),
        port: PortId(1),
        capability: CapabilitySlot(3),
        secret: 0x1234_5678_9ABC_DEF0,
        remote: VirtAddr(remote),
        local: VirtAddr(local),
        op: OpId(op),
        ..Command::default()
    }
}

/// A write whose payload is in its descriptor.
#[must_use]
pub fn inline(op: u32, remote: u64, len: u32) -> Command {
    Command {
        flags: CommandFlags::INLINE,
        ..write(op, remote, 0, len)
    }
}

/// The same command, with a notification.
#[must_use]
pub fn notify(command: Command, id: u32) -> Command {
    Command {
        notification: NotificationId(id),
        ..command
    }
}

/// Answers a source miss.
#[must_use]
pub fn answer(staging: StagingId, generation: Generation, answer: SourceAnswer) -> HostEvent {
    HostEvent::SourceAnswer {
        staging,
        generation,
        answer,
    }
}
