//! Command descriptors.

use crate::common::{Golden, dump, shared};
use crate::{ADDRESS, SECRET};
use netvm_abi::bar::port;
use netvm_abi::command_queue::{Consumer, Doorbell, Producer};
use netvm_abi::descriptor::HEAD_WORDS;
use netvm_abi::descriptor::{Command, CommandFlags, DESCRIPTOR_WORDS, Opcode};
use netvm_abi::value::{ValueCode, ValueOp, ValueType};
use netvm_abi::*;

#[test]
fn descriptors() {
    let mut golden = Golden::read("descriptor");
    let to_seven = Command {
        node: NodeId(1),
        port: PortId(7),
        capability: CapabilitySlot(9),
        secret: SECRET,
        remote: ADDRESS,
        epoch: Epoch(2),
        ..Command::default()
    };
    let commands = [
        (
            "write_inline",
            Command {
                flags: CommandFlags::INLINE,
                len: ByteLen(8),
                notification: NotificationId(5),
                op: OpId(77),
                ..to_seven
            },
            vec![0x0403_0201, 0x0807_0605],
        ),
        (
            "write_local",
            Command {
                flags: CommandFlags::ORDERED,
                len: ByteLen(4096),
                node: NodeId(0x0102),
                port: PortId(0x0304),
                capability: CapabilitySlot(0x0a0b_0c0d),
                secret: 0xfedc_ba98_7654_3210,
                remote: VirtAddr(0x5555_5555_6000),
                local: VirtAddr(0x7fff_dead_b000),
                notification: NotificationId::FIRST_ONE_SHOT,
                op: OpId(0x0102_0304),
                epoch: Epoch(0xabcd),
                ..Command::default()
            },
            vec![],
        ),
        (
            "read",
            Command {
                opcode: Opcode::Read,
                len: ByteLen(100),
                node: NodeId(3),
                port: PortId(1),
                capability: CapabilitySlot(2),
                secret: 0x8000_0000_0000_0001,
                remote: VirtAddr(0x1000_0020),
                local: VirtAddr(0x2000_0fff),
                op: OpId(78),
                reply: ReplySlot(12),
                epoch: Epoch(1),
                ..Command::default()
            },
            vec![],
        ),
        (
            "flush_remote",
            Command {
                opcode: Opcode::FlushRemote,
                node: NodeId(3),
                op: OpId(79),
                reply: ReplySlot(13),
                epoch: Epoch(1),
                ..Command::default()
            },
            vec![],
        ),
        (
            "flush_received",
            Command {
                opcode: Opcode::FlushReceived,
                node: NodeId(3),
                op: OpId(82),
                reply: ReplySlot(14),
                epoch: Epoch(1),
                ..Command::default()
            },
            vec![],
        ),
        (
            "compare_swap",
            Command {
                opcode: Opcode::CompareSwap,
                flags: CommandFlags::WIDE,
                len: ByteLen(8),
                op: OpId(80),
                reply: ReplySlot(63),
                operand: 0xaaaa_aaaa_bbbb_bbbb,
                compare: 0xcccc_cccc_dddd_dddd,
                ..to_seven
            },
            vec![],
        ),
        (
            "value_product",
            Command {
                opcode: ValueCode::new(ValueOp::Product, ValueType::Complex32)
                    .unwrap()
                    .opcode(),
                flags: CommandFlags::WIDE | CommandFlags::ORDERED,
                op: OpId(83),
                reply: ReplySlot(62),
                operand: 0x4000_0000_3f80_0000,
                ..to_seven
            },
            vec![],
        ),
        (
            "extend_lease",
            Command {
                opcode: Opcode::ExtendLease,
                op: OpId(84),
                reply: ReplySlot(61),
                operand: Nanos::from_millis(50).0,
                compare: 5,
                ..to_seven
            },
            vec![],
        ),
    ];
    for (section, command, inline) in commands {
        let expected: [u32; DESCRIPTOR_WORDS] = golden.take_words(section);
        let head = expected[..HEAD_WORDS].try_into().unwrap();
        assert_eq!(command.encode(), head, "{section}");
        assert_eq!(Command::decode(&head), Ok(command), "{section}");

        // Through a queue: what the library posts is what stands in NIC memory and what the NIC copies.
        let block = shared(port::BLOCK_WORDS as usize, 0);
        let block = &block[..];
        assert!(Producer::default().post(block, &head, &inline));
        let entry: [u32; DESCRIPTOR_WORDS] = dump(block, port::COMMANDS.index());
        assert_eq!(entry, expected, "{section}");
        let consumer = Consumer::default();
        assert_eq!(consumer.poll(block), Doorbell::Pending(1));
        let mut copied = [0; HEAD_WORDS];
        consumer.copy_head(block, &mut copied);
        assert_eq!(copied, head);
        let mut copied = vec![0; inline.len()];
        consumer.copy_inline(block, &mut copied);
        assert_eq!(copied, inline);
    }
    golden.end();
}
