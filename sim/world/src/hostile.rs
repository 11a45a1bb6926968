//! The hostile parts of a world: the only ones that post raw commands and raw frames.
//!
//! - The *rogue* is a node number that no other node owns. It greets, gets a link, and sends what it likes on it.
//!   Whatever it does may harm no other node (promise P5).
//! - Frames among honest nodes are played again, cut short, or changed so that an honest receiver
//!   must refuse them. (An attacker that can forge *valid* frames can deny service: the threat model says so, and the
//!   checkers would have nothing to compare with.)
//! - A hostile app opens a port as any app may, and fills its command queue with anything. It imports what it may have,
//!   and asks for more than that with the capability that it got.

use crate::card;
use crate::dice::Dice;
use crate::faults::FaultKind;
use crate::mix;
use crate::seen::Seen;
use crate::sim::{Event, Sim};
use netvm::backend::{Backend, ImportRequest, OpenRequest, PortBackend};
use netvm_abi::bar::port as block;
use netvm_abi::control::{Grant, Modes, Name};
use netvm_abi::descriptor::{Command, CommandFlags, DESCRIPTOR_WORDS, HEAD_WORDS, Opcode, QUEUE_ENTRIES};
use netvm_abi::wire::{Body, Greeting, HEADER_BYTES, Header, Kind, MessageFlags};
use netvm_abi::words::SharedWords;
use netvm_abi::{
    ABI_VERSION, ByteLen, CapabilitySlot, Epoch, Incarnation, Nanos, NodeId, NotificationId, OpId, PAGE_SIZE,
    PortId, ReplySlot, Seq, Status, VirtAddr, WordIndex, port_area,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the rogue knows of one node.
#[derive(Clone, Copy, Default)]
struct Link {
    theirs: u32,
    next: u32,
    up: bool,
}

/// The rogue node.
pub(crate) struct Rogue {
    node: NodeId,
    own: u32,
    links: BTreeMap<NodeId, Link>,
}

impl Rogue {
    /// A rogue with this number.
    pub(crate) fn new(node: NodeId) -> Self {
        Self {
            node,
            own: 0x0BAD_CAFE,
            links: BTreeMap::new(),
        }
    }

    /// A frame reached it.
    pub(crate) fn hear(&mut self, sim: &Sim, header: &Header) {
        let link = self.links.entry(header.source).or_default();
        match header.body() {
            Body::Hello { .. } => {
                link.theirs = header.source_incarnation.0;
                let body = Body::HelloAck {
                    status: Status::Ok,
                    greeting: offered(sim),
                };
                let mut answer = self.greeting(body, header.source);
                answer.destination_incarnation = header.source_incarnation;
                send(sim, answer, &[]);
            }
            Body::HelloAck { status, .. } => {
                link.theirs = header.source_incarnation.0;
                link.up = status == Status::Ok;
                link.next = 0;
            }
            _ => {}
        }
    }

    fn greeting(&self, body: Body, to: NodeId) -> Header {
        let mut header = Header::of(body, self.node, to);
        header.source_incarnation = Incarnation(self.own);
        header
    }

    /// It sends something to a random node.
    pub(crate) fn act(&mut self, sim: &Sim) {
        let to = NodeId(sim.below(sim.nodes.len() as u64) as u16);
        if !sim.fires(FaultKind::HostileFrame, to) {
            return;
        }
        let link = self.links.get(&to).copied().unwrap_or_default();
        if !link.up || sim.below(50) == 0 {
            if sim.below(4) == 0 {
                self.own = self.own.wrapping_add(1);
            }
            let greeting = offered(sim);
            send(sim, self.greeting(Body::Hello { greeting }, to), &[]);
            return;
        }
        let mut dice = sim.dice.borrow_mut();
        let mut header = any_header(&mut dice, self.node, to);
        header.source_incarnation = Incarnation(self.own);
        header.destination_incarnation = Incarnation(link.theirs);
        header.seq = Seq(link.next);
        let mut payload = vec![0; usize::from(header.len)];
        dice.fill(&mut payload);
        drop(dice);
        if header.kind.is_windowed()
            && let Some(link) = self.links.get_mut(&to)
        {
            link.next = link.next.wrapping_add(1);
        }
        send(sim, header, &payload);
    }
}

/// An offer that every node accepts.
fn offered(sim: &Sim) -> Greeting {
    let geometry = sim.nodes[0].geometry;
    Greeting {
        page_size: PAGE_SIZE,
        payload: geometry.payload,
        window: geometry.window,
        version: ABI_VERSION,
        refuses: false,
    }
}

fn any_header(dice: &mut Dice, from: NodeId, to: NodeId) -> Header {
    let mut header = Header::new(Kind::ALL[dice.index(Kind::ALL.len())], from, to);
    header.flags = MessageFlags::from_bits_truncate(dice.below(8) as u8);
    header.raw.status = dice.below(32) as u8;
    header.len = [0, 1, 8, 128, 129, 4096][dice.index(6)];
    header.source_port = PortId(dice.below(8) as u16);
    header.destination_port = PortId(dice.below(8) as u16);
    header.notification = NotificationId(dice.below(2048) as u32);
    header.address = VirtAddr(if dice.below(2) == 0 {
        dice.word()
    } else {
        0x1_0000_0000 + dice.below(1 << 20)
    });
    header.capability = CapabilitySlot(dice.below(40) as u32);
    header.op = OpId(dice.word() as u32);
    header.secret = dice.word();
    header.reply = ReplySlot(dice.below(70) as u16);
    header.epoch = Epoch(dice.below(3) as u16);
    header.raw.operand = dice.word();
    header.raw.compare = dice.below(10_000);
    header
}

fn send(sim: &Sim, header: Header, payload: &[u8]) {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    let delay = sim
        .dice
        .borrow_mut()
        .span(netvm_abi::Nanos(500), netvm_abi::Nanos(20_000));
    sim.after(
        delay,
        Event::Arrive {
            to: header.destination,
            frame: bytes.into(),
        },
    );
}

/// A frame that honest nodes exchanged comes again, spoilt.
pub(crate) fn spoilt_frame(sim: &Sim) {
    let frame = {
        let kept = sim.overheard.borrow();
        if kept.is_empty() {
            return;
        }
        kept[sim.below(kept.len() as u64) as usize].clone()
    };
    let Ok(header) = Header::decode(&frame) else {
        return;
    };
    let to = header.destination;
    if to.index() >= sim.nodes.len() || !sim.fires(FaultKind::HostileFrame, to) {
        return;
    }
    let mut bytes = frame.to_vec();
    match sim.below(8) {
        // A greeting of a life that no card has begun.
        7 => {
            bytes = made_up_greeting(sim, &header).encode().to_vec();
            sim.see(Seen::MadeUp {
                from: header.source,
                to,
            });
        }
        0 => bytes[0] ^= 0xFF,
        1 => bytes[2] = bytes[2].wrapping_add(1),
        2 => bytes[3] = 200,
        3 => bytes[4] |= 0x80,
        4 => bytes.truncate(sim.below(HEADER_BYTES as u64) as usize),
        // The receiver's incarnation of another life.
        5 => bytes[20] ^= 0x55,
        // A length that the bytes do not bear out.
        _ => bytes[7] = 0x7F,
    }
    card::arrive(sim, to, Rc::from(bytes));
}

/// A greeting between the nodes of a frame.
fn made_up_greeting(sim: &Sim, of: &Header) -> Header {
    let greeting = offered(sim);
    let mut hello = Header::of(Body::Hello { greeting }, of.source, of.destination);
    hello.source_incarnation = Incarnation(1 + sim.below(u64::from(u32::MAX - 1)) as u32);
    hello.seq = Seq(sim.below(1 << 32) as u32);
    hello
}

/// The body of the hostile app: it opens a port and posts anything until told to stop.
pub(crate) fn app(sim: &std::rc::Weak<Sim>, node: NodeId, backend: &dyn Backend, stop: &dyn Fn() -> bool) {
    // A random number could be one that a conformance body needs.
    let request = OpenRequest {
        port: Some(PortId(crate::workload::PORTS - 15)),
    };
    let Ok(port) = backend.open(&request) else {
        return;
    };
    let memory = port.alloc(4 * 4096).ok();
    if let Some(world) = sim.upgrade() {
        world.see(Seen::Hostile {
            node,
            port: port.port(),
        });
        world.node(node).hostile.borrow_mut().insert(port.port());
    }
    let (words, area) = (port.block_words(), port.area_words());
    let start = memory.as_ref().map_or(0, |memory| memory.address().0);
    let mut posted = words.load_acquire(block::DOORBELL);
    let mut granted = Granted::default();
    while !stop() && area.load_acquire(port_area::PORT_STATE) == 0 {
        let Some(world) = sim.upgrade() else { return };
        if world.below(150) == 0 {
            let exporter = NodeId(world.below(world.nodes.len() as u64) as u16);
            drop(world);
            granted.renew(&*port, exporter);
            continue;
        }
        if world.fires(FaultKind::HostileDescriptor, node) {
            let (entry, doorbell) = {
                let mut dice = world.dice.borrow_mut();
                let entry = match granted.overreach(&mut dice, start) {
                    Some(command) => command.encode(),
                    None => descriptor(&mut dice, start, world.nodes.len() as u64),
                };
                // A doorbell that skips ahead, or goes back, now and then.
                let step = if dice.below(20) == 0 {
                    dice.word() as u32
                } else {
                    1
                };
                (entry, posted.wrapping_add(step))
            };
            let at = block::COMMANDS.plus((posted % QUEUE_ENTRIES) * DESCRIPTOR_WORDS as u32);
            words.store_slice(at, &entry);
            words.store_release(block::DOORBELL, doorbell);
            if doorbell == posted.wrapping_add(1) {
                posted = doorbell;
            } else {
                words.store_release(block::DOORBELL, posted);
            }
            // Other words of its own block are as much its own.
            let (word, value) = {
                let mut dice = world.dice.borrow_mut();
                (WordIndex(1 + dice.below(2_040) as u32), dice.word() as u32)
            };
            words.store_release(word, value);
            port.doorbell();
        }
        drop(world);
        port.relax(6);
    }
    port.close();
}

/// What a hostile app may use of a receiver's memory.
#[derive(Default)]
struct Granted {
    exporter: NodeId,
    /// To read, write and notify, and to read only.
    grants: [Option<Grant>; 2],
}

impl Granted {
    /// Gives back what it has, and imports from this node.
    fn renew(&mut self, port: &dyn PortBackend, exporter: NodeId) {
        for grant in self.grants.iter().flatten() {
            port.release(self.exporter, grant);
        }
        self.exporter = exporter;
        let all = Modes::READ | Modes::WRITE | Modes::NOTIFY;
        self.grants = [(mix::MEMORY, all), (mix::READ_ONLY, Modes::READ)].map(|(name, modes)| {
            let request = ImportRequest {
                node: exporter,
                port: mix::RECEIVER,
                name: &Name::new(name).ok()?,
                modes,
            };
            let deadline = port.now().after(Nanos::from_micros(500));
            port.import(&request, deadline).ok()
        });
    }

    /// Now and then, a command with a valid capability, for what that does not allow.
    fn overreach(&self, dice: &mut Dice, start: u64) -> Option<Command> {
        let kind = dice.index(8);
        let grant = self.grants.get(kind)?.as_ref()?;
        let mut command = Command {
            flags: CommandFlags::from_bits_truncate(dice.below(32) as u8),
            node: self.exporter,
            port: mix::RECEIVER,
            capability: grant.capability,
            secret: grant.secret,
            remote: grant.start,
            local: VirtAddr(start),
            epoch: Epoch(dice.below(3) as u16),
            ..Command::default()
        };
        if kind == 0 {
            let past = mix::LAST_NOTIFICATION + 1;
            command.notification = NotificationId(past + dice.below(u64::from(2048 - past)) as u32);
        } else {
            let opcodes: Vec<_> = opcodes()
                .filter(|code| code.is_write() || code.is_atomic())
                .collect();
            command.opcode = opcodes[dice.index(opcodes.len())];
            command.len = ByteLen(8);
            command.notification = NotificationId(dice.below(3) as u32);
        }
        Some(command)
    }
}

/// All that there are.
fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_code)
}

fn descriptor(dice: &mut Dice, start: u64, nodes: u64) -> [u32; HEAD_WORDS] {
    let command = Command {
        opcode: Opcode::from_code(dice.below(256) as u8)
            .unwrap_or(Opcode::ALL[dice.index(Opcode::ALL.len())]),
        flags: CommandFlags::from_bits_truncate(dice.below(8) as u8),
        len: ByteLen([0, 1, 7, 8, 128, 300, 4096, 5000][dice.index(8)]),
        node: NodeId(dice.below(nodes + 2) as u16),
        port: PortId(dice.below(8) as u16),
        capability: CapabilitySlot(dice.below(40) as u32),
        secret: dice.word(),
        remote: VirtAddr(0x1_0000_0000 + dice.below(1 << 20)),
        local: VirtAddr(if dice.below(4) == 0 {
            dice.word()
        } else {
            start + dice.below(5 * 4096)
        }),
        notification: NotificationId(dice.below(2048) as u32),
        op: OpId(dice.word() as u32),
        reply: ReplySlot(dice.below(70) as u16),
        epoch: Epoch(dice.below(3) as u16),
        operand: dice.word(),
        compare: dice.word(),
    };
    let mut words = command.encode();
    for _ in 0..dice.below(3) {
        words[dice.index(HEAD_WORDS)] = dice.word() as u32;
    }
    words
}
