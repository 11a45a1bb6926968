//! A process that shares a ring with a node and writes what it likes into it: its link ends, and its neighbours notice nothing.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netvm::{Access, Port, PortConfig, PortId};
use netvm_kit::length::is_long;
use netvm_process::SoftNode;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

const PATIENCE: Duration = Duration::from_secs(20);
/// A ring's file, as `netvm-soft` lays it out: words, then a MiB of messages.
const FILE_BYTES: usize = 4096 + (1 << 20);
const HOSTILE: u16 = 61;

/// Introduces itself as node [`HOSTILE`] to a node, with what it is told to, and gives the ring that the node reads.
fn introduce(victim: u16, version: u16, seals: SealFlags, len: usize) -> Option<(OwnedFd, OwnedFd, OwnedFd)> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let name = format!("netvm/{}/#{victim}", rustix::process::getuid().as_raw());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let mut bytes = *b"NVs3\0\0\0\0\0\0\0\0\0\0\0\0";
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    bytes[6..8].copy_from_slice(&HOSTILE.to_le_bytes());
    bytes[8..12].copy_from_slice(&(FILE_BYTES as u32).to_le_bytes());
    let mine = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&mine, len as u64).unwrap();
    rustix::fs::fcntl_add_seals(&mine, seals).unwrap();
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [mine.as_fd(), bell.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let io = [std::io::IoSlice::new(&bytes)];
    rustix::net::sendmsg(&socket, &io, &mut control, SendFlags::NOSIGNAL).unwrap();
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "no answer");
    let mut answer = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let io = &mut [std::io::IoSliceMut::new(&mut answer)];
    let got = rustix::net::recvmsg(&socket, io, &mut control, RecvFlags::empty()).unwrap();
    assert_eq!(got.bytes, 16, "an answer, also where there is no link");
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut fds = fds.next()?;
    Some((socket, fds.next()?, fds.next()?))
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Writes into a node's ring: noise anywhere, and messages that look sound and say senseless things.
fn scribble(ring: &OwnedFd, call: &OwnedFd, random: &mut SmallRng) {
    let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new mapping of the other node's ring, reached through atomics only.
    let words: &[AtomicU64] = unsafe {
        let flags = rustix::mm::MapFlags::SHARED;
        let at = rustix::mm::mmap(std::ptr::null_mut(), FILE_BYTES, prot, flags, ring, 0).unwrap();
        std::slice::from_raw_parts(at.cast(), FILE_BYTES / 8)
    };
    let noisy = random.random_bool(0.5);
    let mut tail = 0u64;
    for _ in 0..random.random_range(1..400) {
        if noisy && random.random_bool(0.1) {
            words[random.random_range(0..words.len())].store(random.random(), Ordering::Release);
        }
        let payload = random.random_range(0..300u64);
        let at = 512 + (tail / 8 % (1 << 17)) as usize;
        if at + 60 >= words.len() {
            break;
        }
        words[at].store(80 + payload, Ordering::Relaxed);
        for word in 1..60 {
            words[at + word].store(random.random::<u64>() & random.random::<u64>(), Ordering::Relaxed);
        }
        // A header's first word: magic, version, a kind.
        let first = u64::from(u16::from_le_bytes(*b"NV")) | 1 << 16 | random.random_range(0..24u64) << 24;
        let flags = random.random_range(0..=255u64) | payload << 16;
        words[at + 1].store(first | flags << 32, Ordering::Relaxed);
        tail += 8 + (80 + payload).next_multiple_of(8);
        words[0].store(tail, Ordering::Release);
        rustix::io::write(call, &1u64.to_ne_bytes()).unwrap();
    }
    // SAFETY: the mapping was made above, and the slice is not used any more.
    unsafe { rustix::mm::munmap(words.as_ptr().cast_mut().cast(), FILE_BYTES).unwrap() };
}

#[test]
fn what_a_peer_scribbles_ends_its_link_alone() {
    let victim = SoftNode::builder().start().unwrap();
    let honest = SoftNode::builder().start().unwrap();
    let number = victim.number();
    let target = Port::open(&victim.node(), PortConfig::number(7)).unwrap();
    let memory = target.alloc(1 << 16).unwrap();
    // The hostile node has no grant: nothing that it says may change a byte.
    let _export = target
        .export("memory", &memory, .., Access::only(honest.number()))
        .unwrap();
    let quiet = target.alloc(1 << 16).unwrap();
    honest.connect(&format!("#{number}"), PATIENCE).unwrap();
    let sender = Port::open(&honest.node(), PortConfig::default()).unwrap();
    let remote = sender.import(number, PortId(7), "memory", PATIENCE).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut rounds = 0u32;
            while !stop.load(Ordering::Acquire) {
                let bytes = rounds.to_le_bytes().repeat(700);
                remote.write(0, &bytes[..]).post().unwrap();
                let mut back = vec![0; bytes.len()];
                remote.read(0, &mut back[..]).ordered().call().unwrap();
                assert_eq!(bytes, back);
                rounds += 1;
            }
            rounds
        });
        let mut random = SmallRng::seed_from_u64(7);
        let end = Instant::now() + Duration::from_secs(if is_long() { 60 } else { 3 });
        let mut links = 0;
        while Instant::now() < end && !traffic.is_finished() {
            let Some((socket, ring, call)) = introduce(number.0, netvm::abi::ABI_VERSION, SEALS, FILE_BYTES)
            else {
                // Its last link has not ended yet.
                continue;
            };
            scribble(&ring, &call, &mut random);
            drop(socket);
            links += 1;
        }
        stop.store(true, Ordering::Release);
        let rounds = traffic.join().unwrap();
        println!("{links} hostile links beside {rounds} rounds of honest traffic");
        assert!(links > 20 && rounds > 20);
    });
    let mut bytes = vec![1; 1 << 16];
    quiet.read_into(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn introductions_that_make_no_sense_get_no_link() {
    let victim = SoftNode::builder().start().unwrap();
    let number = victim.number().0;
    let version = netvm::abi::ABI_VERSION;
    for (what, link) in [
        (
            "another version",
            introduce(number, version + 1, SEALS, FILE_BYTES),
        ),
        (
            "a file that may shrink",
            introduce(number, version, SealFlags::GROW, FILE_BYTES),
        ),
        ("a short file", introduce(number, version, SEALS, 4096)),
    ] {
        assert!(link.is_none(), "{what}");
    }
    assert!(introduce(number, version, SEALS, FILE_BYTES).is_some());
}
