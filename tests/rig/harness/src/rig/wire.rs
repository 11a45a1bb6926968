//! The wire between the cards: takes each frame from one and gives it to the other, perhaps later, in another order, or
//! not at all, and keeps a capture. What happens to a frame is a function of the seed, its direction and its number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use netvm_abi::frame::decode;
use netvm_abi::wire::Kind;
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Larger than any frame of the cards.
const LARGEST: usize = 1 << 16;
/// So long until a thread looks whether it shall end, and a full socket is tried again.
const TICK: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_millis(1);
/// Frames that wait for a card that takes none, at most; later ones are lost, as at a switch.
const QUEUE: usize = 1 << 14;

/// Shares of frames are told in this many.
const MILLION: u32 = 1_000_000;

/// What the wire does to frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Frames in a million that do not arrive.
    pub(crate) lost: u32,
    /// Frames in a million that wait at random up to `longest`, so that later ones overtake them.
    pub(crate) held: u32,
    /// See `held`.
    pub(crate) longest: Duration,
    /// So long takes every frame.
    pub(crate) delay: Duration,
}

impl Faults {
    /// Nothing arrives.
    pub(crate) const CUT: Self = Self {
        lost: MILLION,
        held: 0,
        longest: Duration::ZERO,
        delay: Duration::ZERO,
    };
}

/// What the wire has done, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Arrived.
    pub(crate) frames: u64,
    /// Lost, on purpose or because they were not taken.
    pub(crate) lost: u64,
    /// Overtaken by a later frame.
    pub(crate) overtaken: u64,
}

#[derive(Default)]
struct Counts {
    frames: AtomicU64,
    lost: AtomicU64,
    overtaken: AtomicU64,
}

struct Shared {
    faults: Mutex<Faults>,
    /// Writes of each node to lose, whatever the faults are.
    doomed: [AtomicU64; 2],
    counts: [Counts; 2],
    capture: Mutex<PcapWriter<BufWriter<File>>>,
    over: AtomicBool,
    seed: u64,
}

/// A wire; ended when this ends.
pub(crate) struct Wire {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Wire {
    /// Carries what arrives at `inputs[n]` to `outputs[1 - n]`; the capture goes to `capture`.
    pub(crate) fn start(
        inputs: [PathBuf; 2],
        outputs: [PathBuf; 2],
        capture: &Path,
        seed: u64,
    ) -> Result<Self> {
        let file = File::create(capture).with_context(|| format!("writing {}", capture.display()))?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ..PcapHeader::default()
        };
        let shared = Arc::new(Shared {
            faults: Mutex::default(),
            doomed: Default::default(),
            counts: Default::default(),
            capture: Mutex::new(PcapWriter::with_header(BufWriter::new(file), header)?),
            over: AtomicBool::new(false),
            seed,
        });
        let mut threads = Vec::new();
        let [from, to] = [inputs, outputs];
        let [to_0, to_1] = to;
        for (direction, (input, output)) in from.into_iter().zip([to_1, to_0]).enumerate() {
            let socket =
                UnixDatagram::bind(&input).with_context(|| format!("binding {}", input.display()))?;
            socket.set_nonblocking(true)?;
            let shared = Arc::clone(&shared);
            let run = move || carry(&shared, direction, &socket, &output);
            let thread = std::thread::Builder::new().name(format!("wire-{direction}"));
            threads.push(thread.spawn(run)?);
        }
        Ok(Self { shared, threads })
    }

    /// From now on.
    pub(crate) fn set(&self, faults: Faults) {
        *self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Loses the next `count` writes of a node: a card that has sent one waits until it has landed, so this cannot go unnoticed,
    /// as the loss of an acknowledgement may.
    pub(crate) fn lose_writes(&self, node: usize, count: u64) {
        if let Some(doomed) = self.shared.doomed.get(node) {
            doomed.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// What was carried from each node to the other.
    pub(crate) fn carried(&self) -> [Carried; 2] {
        self.shared.counts.each_ref().map(|counts| Carried {
            frames: counts.frames.load(Ordering::Relaxed),
            lost: counts.lost.load(Ordering::Relaxed),
            overtaken: counts.overtaken.load(Ordering::Relaxed),
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("the wire broke: {error:#}"),
                Err(_) => eprintln!("the wire broke"),
            }
        }
    }
}

/// A frame on its way, by the time that it is due, then its number.
type Waiting = BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>;

/// One direction.
fn carry(shared: &Shared, direction: usize, from: &UnixDatagram, to: &Path) -> Result<()> {
    let counts = shared.counts.get(direction).context("a third direction")?;
    let doomed = shared.doomed.get(direction).context("a third direction")?;
    let add = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
    let mut waiting = Waiting::new();
    let mut buffer = vec![0; LARGEST];
    let (mut number, mut newest) = (0_u64, None);
    while !shared.over.load(Ordering::Relaxed) {
        let mut pause = TICK;
        // What is due leaves.
        while let Some(Reverse((due, _, _))) = waiting.peek() {
            let now = Instant::now();
            if *due > now {
                pause = pause.min(*due - now);
                break;
            }
            let Some(Reverse((due, at, frame))) = waiting.pop() else {
                break;
            };
            match from.send_to(&frame, to) {
                Ok(_) => {
                    add(&counts.frames);
                    if newest.is_some_and(|newest| newest > at) {
                        add(&counts.overtaken);
                    }
                    newest = newest.max(Some(at));
                    record(shared, &frame)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The card has no room: what stood before others goes on standing before them.
                    waiting.push(Reverse((due, at, frame)));
                    pause = RETRY;
                    break;
                }
                // It is not there.
                Err(_) => {
                    add(&counts.lost);
                }
            }
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: pause.as_nanos().try_into().unwrap_or(i64::from(u32::MAX)),
        };
        poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout)).context("waiting for frames")?;
        // What has come is given its time.
        loop {
            let length = match from.recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("receiving a frame"),
            };
            let faults = *shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
            let fate = fate(&faults, shared.seed, direction as u64, number);
            let frame = buffer.get(..length).unwrap_or_default();
            // Few look into frames.
            let lost = doomed.load(Ordering::Relaxed) > 0
                && is_write(frame)
                && doomed
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1))
                    .is_ok();
            match fate {
                Some(time) if !lost && waiting.len() < QUEUE => {
                    waiting.push(Reverse((Instant::now() + time, number, frame.to_vec())));
                }
                _ => {
                    add(&counts.lost);
                }
            }
            number += 1;
        }
    }
    Ok(())
}

/// Whether a frame carries a message that writes.
fn is_write(frame: &[u8]) -> bool {
    decode(frame).is_ok_and(|frame| frame.header.kind == Kind::Write)
}

/// How long frame `number` of a direction takes; never, if it is lost.
fn fate(faults: &Faults, seed: u64, direction: u64, number: u64) -> Option<Duration> {
    let mut state = seed ^ direction.rotate_right(8) ^ number.wrapping_mul(0xD129_0D3F_5B6A_4A35);
    let mut draw = |below: u64| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(state) % below.max(1)
    };
    if draw(MILLION.into()) < u64::from(faults.lost) {
        return None;
    }
    let held = draw(MILLION.into()) < u64::from(faults.held);
    let longest = u64::try_from(faults.longest.as_nanos()).unwrap_or(u64::MAX);
    let extra = draw(longest);
    Some(faults.delay + Duration::from_nanos(if held { extra } else { 0 }))
}

/// SplitMix64's output function (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
const fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

fn record(shared: &Shared, frame: &[u8]) -> Result<()> {
    let time = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let length = u32::try_from(frame.len())?;
    let mut capture = shared.capture.lock().unwrap_or_else(PoisonError::into_inner);
    capture
        .write_packet(&PcapPacket::new(time, length, frame))
        .context("writing the capture")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::descriptor::Opcode;
    use netvm_abi::frame::{Endpoint, HEAD_BYTES, encode_head};
    use netvm_abi::value::{ValueOp, ValueType};
    use netvm_abi::wire::{Header, MessageFlags, OwnHeader, Receipt};
    use netvm_abi::{NodeId, value};

    const ROUGH: Faults = Faults {
        lost: 100_000,
        held: 300_000,
        longest: Duration::from_millis(2),
        delay: Duration::from_micros(10),
    };

    #[test]
    fn fates_are_those_of_the_seed() {
        let fates =
            |seed, direction| -> Vec<_> { (0..1000).map(|n| fate(&ROUGH, seed, direction, n)).collect() };
        assert_eq!(fates(1, 0), fates(1, 0));
        assert_ne!(fates(1, 0), fates(2, 0));
        assert_ne!(fates(1, 0), fates(1, 1));
        let lost = fates(1, 0).iter().filter(|fate| fate.is_none()).count();
        let late = |fate: &&Option<Duration>| fate.is_some_and(|time| time > ROUGH.delay);
        let held = fates(1, 0).iter().filter(late).count();
        assert!(
            (60..140).contains(&lost) && (200..340).contains(&held),
            "{lost} {held}"
        );
        assert_eq!(fate(&Faults::default(), 1, 0, 7), Some(Duration::ZERO));
        assert!((0..1000).all(|n| fate(&Faults::CUT, 1, 0, n).is_none()));
    }

    /// A frame without payload.
    fn message(kind: Kind) -> [u8; HEAD_BYTES] {
        let [from, to] = [1, 2].map(|last| Endpoint {
            mac: [2, 0, 0, 0, 0, last],
            ip: [10, 0, 0, last],
            port: 5791,
        });
        encode_head(
            &from,
            &to,
            &OwnHeader::new(&Header::new(kind, NodeId(1), NodeId(0))),
            &[],
        )
        .unwrap()
    }

    #[test]
    fn frames_arrive_are_counted_and_captured() {
        let folder = std::env::temp_dir().join(format!("netvm-wire-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let cards = [
            UnixDatagram::bind(at("c0")).unwrap(),
            UnixDatagram::bind(at("c1")).unwrap(),
        ];
        let wire = Wire::start([at("w0"), at("w1")], [at("c0"), at("c1")], &at("pcap"), 1).unwrap();
        for card in &cards {
            card.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        let mut buffer = [0; HEAD_BYTES];
        for number in 0..100 {
            cards[0].send_to(&[number; 60], at("w0")).unwrap();
            assert_eq!(cards[1].recv(&mut buffer).unwrap(), 60);
            assert_eq!(buffer[0], number);
        }
        cards[1].send_to(b"back", at("w1")).unwrap();
        assert_eq!(cards[0].recv(&mut buffer).unwrap(), 4);
        // Only a write is lost, whatever comes before it.
        wire.lose_writes(1, 1);
        cards[1].send_to(b"what", at("w1")).unwrap();
        assert_eq!(cards[0].recv(&mut buffer).unwrap(), 4);
        cards[1].send_to(&message(Kind::Ack), at("w1")).unwrap();
        assert_eq!(cards[0].recv(&mut buffer).unwrap(), buffer.len());
        cards[1].send_to(&message(Kind::Write), at("w1")).unwrap();
        while wire.carried()[1].lost == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let [there, back] = wire.carried();
        assert_eq!((there.frames, there.lost, there.overtaken), (100, 0, 0));
        assert_eq!((back.frames, back.lost), (3, 1));
        drop(wire);
        // 24 bytes of header, 16 before each frame.
        let captured = std::fs::metadata(at("pcap")).unwrap().len();
        assert_eq!(
            captured,
            24 + 100 * (16 + 60) + 2 * (16 + 4) + 16 + HEAD_BYTES as u64
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The names that `docs/netvm.lua` shows are those of the crate that defines them.
    #[test]
    fn the_dissector_knows_every_kind_and_status() {
        let path = crate::cargo::root().join("docs/netvm.lua");
        let text = std::fs::read_to_string(path).unwrap();
        let table = |name: &str| -> Vec<String> {
            let table = text.split(&format!("local {name} = {{")).nth(1).unwrap();
            let table = table.split('}').next().unwrap();
            let entries = table.split(',').map(|entry| entry.trim().to_owned());
            entries.filter(|entry| !entry.is_empty()).collect()
        };
        let entry = |code: u8, name: String| format!("[{code}] = \"{name}\"");
        let kinds = netvm_abi::wire::Kind::ALL.iter();
        let kinds: Vec<_> = kinds
            .map(|kind| entry(*kind as u8, format!("{kind:?}")))
            .collect();
        assert_eq!(table("kinds"), kinds);
        let statuses = netvm_abi::Status::ALL.iter();
        let statuses: Vec<_> = statuses
            .map(|status| entry(status.code(), format!("{status:?}")))
            .collect();
        assert_eq!(table("statuses"), statuses);
        let atomics = Opcode::ALL.iter();
        let atomics = atomics.filter(|opcode| opcode.is_atomic() || **opcode == Opcode::ExtendLease);
        let atomics: Vec<_> = atomics
            .map(|opcode| entry(opcode.code(), format!("{opcode:?}")))
            .collect();
        assert_eq!(table("opcodes"), atomics);
        let operations: Vec<_> = ValueOp::ALL
            .iter()
            .map(|op| entry(*op as u8, format!("{op:?}")))
            .collect();
        assert_eq!(table("value_operations"), operations);
        let kinds: Vec<_> = ValueType::ALL
            .chunk_by(|one, other| one.kind() == other.kind())
            .map(|types| {
                let names: Vec<_> = types.iter().map(|on| format!("{on:?}")).collect();
                entry(value::FIRST + 32 * types[0].kind(), names.join(" or "))
            })
            .collect();
        assert_eq!(table("value_kinds"), kinds);
        let version = format!("local WIRE_VERSION = {}\n", netvm_abi::wire::WIRE_VERSION);
        assert!(text.contains(&version), "{version}");
        let said: Vec<_> = text
            .lines()
            .filter(|line| line.contains("\"netvm.flags."))
            .filter_map(|line| {
                let name = line.split("\"netvm.flags.").nth(1)?.split('"').next()?;
                Some((
                    name.to_owned(),
                    line.rsplit(' ').next()?.trim_end_matches(')').to_owned(),
                ))
            })
            .collect();
        let flags: Vec<_> = MessageFlags::all()
            .iter_names()
            .map(|(name, flag)| (name.to_lowercase(), format!("0x{:02x}", flag.bits())))
            .collect();
        assert_eq!(said, flags);
    }

    /// What the dissector takes out of an `Ack` stands where the crate puts it.
    #[test]
    fn the_dissector_finds_what_an_ack_says() {
        let path = crate::cargo::root().join("docs/netvm.lua");
        let text = std::fs::read_to_string(path).unwrap();
        let table = text.split("local receipt = {").nth(1).unwrap();
        let table = table.split("\n}").next().unwrap();
        type Set = fn(&mut Receipt);
        let fields: [(&str, Set); 10] = [
            ("requests_next", |r| r.requests.next.0 = u32::MAX),
            ("requests_beyond", |r| r.requests.beyond = u64::MAX),
            ("answers_next", |r| r.answers.next.0 = u32::MAX),
            ("echo", |r| r.echo.0 = u32::MAX),
            ("held", |r| r.held = u32::MAX),
            ("repeats", |r| r.repeats = u32::MAX),
            ("answers_beyond", |r| r.answers.beyond = u64::MAX),
            ("requests_from", |r| r.requests.from.0 = u32::MAX),
            ("answers_from", |r| r.answers.from.0 = u32::MAX),
            ("requests_ended", |r| r.ended = u16::MAX),
        ];
        let bytes = |receipt: &Receipt| {
            let mut ack = Header::new(Kind::Ack, NodeId(0), NodeId(0));
            ack.set_receipt(receipt);
            ack.encode()
        };
        let none = bytes(&Receipt::default());
        let entries: Vec<_> = table.split('{').skip(1).collect();
        assert_eq!(entries.len(), fields.len());
        for (entry, (name, set)) in entries.iter().zip(fields) {
            let mut receipt = Receipt::default();
            set(&mut receipt);
            let bytes = bytes(&receipt);
            let changed: Vec<_> = (0..none.len()).filter(|&at| bytes[at] != none[at]).collect();
            let expected = format!("{}, {}, \"{name}\"", changed[0], changed.len());
            assert!(entry.trim_start().starts_with(&expected), "{entry}: {expected}");
        }
    }
}
