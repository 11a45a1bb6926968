//! A scripted platform: memory in vectors, DMAs and messages that wait until the test lets them
//! happen, in whatever order it likes. [`board`] is a card's surroundings, [`node`] a card with its
//! rings and ports, [`host`] its pages and the plain host that serves them, [`world`] several nodes
//! with a wire. Here: the words in which the tests talk about them.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    unused_imports,
    reason = "each test binary uses its own part"
)]

mod board;
mod host;
mod node;
mod world;

pub use board::{Board, Heap, Message, PAGE, Words, looks};
pub use node::Node;
pub use world::World;

use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::event::{HostEvent, SourceAnswer};
use netvm_abi::*;

/// Small tables, so that tests reach their ends.
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

/// A write from node 0 to node 1 through [`capability`] in slot 3.
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

pub fn inline(op: u32, remote: u64, len: u32) -> Command {
    Command {
        flags: CommandFlags::INLINE,
        ..write(op, remote, 0, len)
    }
}

pub fn notify(command: Command, id: u32) -> Command {
    Command {
        notification: NotificationId(id),
        ..command
    }
}

/// Answers a source miss.
pub fn answer(staging: StagingId, generation: Generation, answer: SourceAnswer) -> HostEvent {
    HostEvent::SourceAnswer {
        staging,
        generation,
        answer,
    }
}
