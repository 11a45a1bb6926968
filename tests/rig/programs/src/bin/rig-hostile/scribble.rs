//! Random bytes into everything that can be mapped, random arguments to everything that can be called: about half of it
//! nonsense from end to end, half of it nearly right.

use std::ffi::c_void;
use std::io;
use std::time::Instant;

use netvm::abi::bar::port as block;
use netvm::abi::descriptor::{Command, CommandFlags, DESCRIPTOR_WORDS, Opcode, QUEUE_ENTRIES};
use netvm::abi::ioctl::{self, Adopt, Export, Import, Register};
use netvm::abi::{ByteLen, CapabilitySlot, OpId, ReplySlot};
use netvm::{NodeId, NotificationId, PortId, VirtAddr};
use netvm_rig::meeting::Trouble;
use netvm_rig::storm::Mix;

use crate::device::{Argument, Device, ROOM, Words, of, register, with};
use crate::trap;

const PAGE: u64 = 4096;
/// Pages of its own memory, and of memory whose faults are never answered.
const OWN: u64 = 32;
const HIDDEN: u64 = 16;
/// Steps with one open file.
const STEPS: u64 = 3000;
/// Most repetitions of a call that a signal has ended.
const TRIES: u32 = 1000;
/// Time between two interruptions of a call that sleeps, in microseconds.
const NUDGE: i64 = 4000;

/// One life: how much it tried, and how much of it was refused.
pub(crate) fn live(end: Instant, seed: u64) -> Result<String, Trouble> {
    interrupts()?;
    let mut mix = Mix::new(seed);
    let own = vec![0x5A_u8; (OWN * PAGE) as usize + PAGE as usize];
    let hidden = trap::memory(HIDDEN)?.as_ptr().addr() as u64;
    let own = (own.leak().as_ptr().addr() as u64).next_multiple_of(PAGE);
    let (mut tried, mut refused) = (0_u64, 0_u64);
    while Instant::now() < end {
        let mut scribbler = Scribbler::new(own, hidden)?;
        for _ in 0..STEPS {
            if Instant::now() >= end {
                break;
            }
            tried += 1;
            refused += u64::from(scribbler.step(&mut mix));
        }
        refused += u64::from(scribbler.failures());
    }
    Ok(format!("{tried} {refused}"))
}

/// Signals that end a call which sleeps.
fn interrupts() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let often = libc::timeval {
        tv_sec: 0,
        tv_usec: NUDGE,
    };
    let timer = libc::itimerval {
        it_interval: often,
        it_value: often,
    };
    // SAFETY: the handler does nothing; without SA_RESTART calls return. All structures are whole.
    let code = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut())
            | libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut())
    };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A port in bad hands.
struct Scribbler {
    device: Device,
    regions: [Words; 3],
    port: u16,
    /// What it may use, and what is asked of the card most: places of its own memory, then hidden ones, then nonsense.
    own: u64,
    hidden: u64,
    segment: u32,
    grant: Import,
    posted: u32,
}

impl Scribbler {
    fn new(own: u64, hidden: u64) -> Result<Self, Trouble> {
        let device = Device::open()?;
        let mut argument = with(register());
        let mut tries = 0;
        while device.call(ioctl::REGISTER, &mut argument) {
            // The signals below come in between.
            let error = io::Error::last_os_error();
            tries += 1;
            if tries > TRIES || error.kind() != io::ErrorKind::Interrupted {
                return Err(format!("a port was refused to an ordinary process: {error}").into());
            }
        }
        let port = of::<Register>(&argument).port;
        let regions = device.regions().ok_or("a port's own words were refused to it")?;
        let mut segment = 0;
        for (address, pages) in [(own, OWN), (hidden, HIDDEN)] {
            let mut adopt = with(Adopt {
                address,
                len: pages * PAGE,
                ..Adopt::default()
            });
            device.call(ioctl::ADOPT, &mut adopt);
            segment = of::<Adopt>(&adopt).segment;
            let mut export = with(Export {
                name: name(if address == own { b"own" } else { b"hidden" }),
                address,
                len: pages * PAGE,
                segment,
                modes: 0xF,
                notify_last: 2000,
                ..Export::default()
            });
            device.call(ioctl::EXPORT, &mut export);
        }
        let mut scribbler = Self {
            device,
            regions,
            port,
            own,
            hidden,
            segment,
            grant: Import::default(),
            posted: 0,
        };
        scribbler.import(0);
        Ok(scribbler)
    }

    /// Gets a real capability, to misuse: mostly for its own memory.
    fn import(&mut self, pick: u64) -> bool {
        let mut import = with(Import {
            name: name(if pick.is_multiple_of(2) { b"own" } else { b"hidden" }),
            node: 0,
            port: self.port,
            modes: 0xF,
            ..Import::default()
        });
        let refused = self.device.call(ioctl::IMPORT, &mut import);
        if !refused {
            self.grant = of(&import);
        }
        refused
    }

    /// Errors that the card has told it of.
    fn failures(&self) -> u32 {
        let at = netvm::abi::port_area::ERROR_WRITE.index() as u64;
        self.regions[1].load(at)
    }

    /// One misdeed. Whether it was refused at once.
    fn step(&mut self, mix: &mut Mix) -> bool {
        match mix.below(32) {
            0..=5 => {
                let at = match mix.below(3) {
                    0 => mix.below(8),
                    1 => block::COMMANDS.index() as u64 + mix.below(u64::from(QUEUE_ENTRIES) * 48),
                    _ => mix.below(self.regions[0].count()),
                };
                self.regions[0].store(at, mix.below(1 << 32) as u32);
                false
            }
            6..=17 => self.command(mix),
            18..=20 => self.any_call(mix),
            21..=24 => self.near_call(mix),
            25 => self.import(mix.below(4)),
            26 => self.any_map(mix),
            27 => self.any_advice(mix),
            28 => self.device.call_at(ioctl::NUDGE, std::ptr::null_mut()),
            29 => self.device.call_at(ioctl::WAKE, std::ptr::null_mut()),
            _ => {
                let region = &self.regions[mix.below(3) as usize];
                region.load(mix.below(region.count()));
                false
            }
        }
    }

    /// A command that is nearly right, and the doorbell; now and then one that no honest library would ring.
    fn command(&mut self, mix: &mut Mix) -> bool {
        let mut wild = |value: u64, often: u64| match mix.below(often) {
            0 => value ^ (1 << mix.below(48)),
            1 => mix.below(1 << 47),
            _ => value,
        };
        let grant = self.grant;
        let inside = wild(grant.address + 64, 6);
        let local = wild(self.own, 6);
        let (secret, slot) = (wild(grant.secret, 16), wild(u64::from(grant.capability), 16));
        let hidden = mix.below(4) == 0;
        let longest = if mix.below(4) == 0 { 65_536 } else { 1024 };
        let command = Command {
            opcode: Opcode::from_code(mix.below(256) as u8)
                .unwrap_or(Opcode::ALL[mix.below(Opcode::ALL.len() as u64) as usize]),
            flags: CommandFlags::from_bits_truncate(mix.below(8) as u8),
            len: ByteLen(mix.below(longest) as u32),
            node: NodeId(if mix.below(8) == 0 {
                mix.below(4096) as u16
            } else {
                mix.below(2) as u16
            }),
            port: PortId(if mix.below(8) == 0 {
                mix.below(80) as u16
            } else {
                self.port
            }),
            capability: CapabilitySlot(slot as u32),
            secret,
            remote: VirtAddr(inside),
            local: VirtAddr(if hidden {
                self.hidden + mix.below(HIDDEN * PAGE)
            } else {
                local
            }),
            notification: NotificationId(if mix.below(2) == 0 {
                u32::MAX
            } else {
                mix.below(3000) as u32
            }),
            op: OpId(mix.below(1 << 32) as u32),
            reply: ReplySlot(mix.below(80) as u16),
            operand: mix.below(1 << 40),
            compare: mix.below(2),
            ..Command::default()
        };
        let entry = u64::from(self.posted % QUEUE_ENTRIES) * DESCRIPTOR_WORDS as u64;
        for (at, word) in (0..).zip(command.encode()) {
            let word = if mix.below(200) == 0 {
                mix.below(1 << 32) as u32
            } else {
                word
            };
            self.regions[0].store(block::COMMANDS.index() as u64 + entry + at, word);
        }
        self.posted = match mix.below(400) {
            0 => mix.below(1 << 32) as u32,
            _ => self.posted.wrapping_add(1),
        };
        self.regions[0].store(block::DOORBELL.index() as u64, self.posted);
        self.device.call_at(ioctl::WAKE, std::ptr::null_mut())
    }

    /// Any number of a call, with any argument, or with one that is not there.
    fn any_call(&mut self, mix: &mut Mix) -> bool {
        let number = match mix.below(3) {
            0 => mix.below(1 << 32) as u32,
            // Right but for its number.
            1 => (3 << 30) | (136 << 16) | (u32::from(ioctl::LETTER) << 8) | mix.below(32) as u32,
            _ => ioctl::ALL[mix.below(ioctl::ALL.len() as u64) as usize].1,
        };
        if mix.below(4) == 0 {
            let nowhere =
                std::ptr::without_provenance_mut::<c_void>(mix.below(1 << 48) as usize & !0xFFF | 1);
            // Only addresses below every mapping: a call may write to its argument.
            let low = nowhere.map_addr(|address| address % 65_536);
            return self.device.call_at(number, low);
        }
        let mut argument = Argument([0; ROOM]);
        for byte in &mut argument.0 {
            *byte = mix.below(256) as u8;
        }
        // A call may write where the argument says: not into this process.
        if number == ioctl::STAT {
            argument.0[..8].fill(0);
        }
        self.device.call(number, &mut argument)
    }

    /// A call that is right but for a field.
    fn near_call(&mut self, mix: &mut Mix) -> bool {
        let address = [self.own, self.hidden, 0x1000, !0xFFF][mix.below(4) as usize];
        let len = [PAGE, OWN * PAGE, 1 << 40, !0xFFF][mix.below(4) as usize];
        let some = mix.below(8) as u32 + if mix.below(2) == 0 { self.segment } else { 0 };
        let mut argument = match mix.below(9) {
            0 => {
                let mut adopt = with(Adopt {
                    address,
                    len,
                    ..Adopt::default()
                });
                let refused = self.device.call(ioctl::ADOPT, &mut adopt);
                if !refused {
                    self.segment = of::<Adopt>(&adopt).segment;
                }
                return refused;
            }
            1 => with(ioctl::Disown {
                segment: some,
                ..ioctl::Disown::default()
            }),
            2 => with(Export {
                name: name(&[b'a' + mix.below(26) as u8]),
                address,
                len,
                segment: self.segment,
                modes: mix.below(32) as u32,
                notify_first: mix.below(3000) as u32,
                notify_last: mix.below(3000) as u32,
                allow: address,
                allow_count: mix.below(40) as u32 % 3 * 7,
                ..Export::default()
            }),
            3 => with(ioctl::Unexport {
                export: some,
                ..ioctl::Unexport::default()
            }),
            4 => with(ioctl::Unimport {
                secret: self.grant.secret,
                capability: self.grant.capability,
                node: mix.below(2) as u16,
                ..ioctl::Unimport::default()
            }),
            5 => with(ioctl::Lend {
                address,
                len,
                duration: mix.below(1 << 32),
                longest: mix.below(1 << 32),
                export: some,
                modes: mix.below(64) as u32,
                node: mix.below(3) as u16,
                port: mix.below(70) as u16,
                ..ioctl::Lend::default()
            }),
            6 => with(ioctl::LeaseLeft {
                capability: mix.below(2000) as u32,
                generation: mix.below(8) as u32,
                ..ioctl::LeaseLeft::default()
            }),
            7 => with(ioctl::Recall {
                leases: address,
                count: mix.below(40) as u32,
                ..ioctl::Recall::default()
            }),
            _ => with(ioctl::Wait {
                timeout: mix.below(1 << 20),
                ..ioctl::Wait::default()
            }),
        };
        let number = [
            ioctl::DISOWN,
            ioctl::EXPORT,
            ioctl::UNEXPORT,
            ioctl::UNIMPORT,
            ioctl::WAIT,
            ioctl::LEND,
            ioctl::LEASE_LEFT,
            ioctl::RECALL,
        ][mix.below(8) as usize];
        self.device.call(number, &mut argument)
    }

    fn any_map(&mut self, mix: &mut Mix) -> bool {
        let offset = (mix.below(5) << 32) + mix.below(20) * PAGE;
        let access = mix.below(8) as i32;
        let flags = if mix.below(2) == 0 {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        let len = (1 + mix.below(20)) * PAGE;
        match self.device.map(offset, len as usize, access, flags) {
            None => true,
            // No process may write where only the card or the driver writes.
            Some(words) if access & libc::PROT_WRITE != 0 && access & libc::PROT_READ != 0 => {
                words.store(mix.below(words.count()), mix.below(1 << 32) as u32);
                false
            }
            Some(_) => false,
        }
    }

    fn any_advice(&mut self, mix: &mut Mix) -> bool {
        let region = &mut self.regions[mix.below(3) as usize];
        match mix.below(8) {
            0 => region.grow(),
            // Its own are writable.
            1 => self.regions[1].make_writable(),
            2 => self.regions[2].make_writable(),
            _ => region.advise(mix.below(26) as i32),
        }
    }
}

fn name(text: &[u8]) -> [u8; netvm::abi::control::NAME_BYTES] {
    let mut name = [0; netvm::abi::control::NAME_BYTES];
    for (to, from) in name.iter_mut().zip(text) {
        *to = *from;
    }
    name
}
