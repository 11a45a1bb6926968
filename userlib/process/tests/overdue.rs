//! Pages that do not come: behind an address is a handler that does not answer.

mod support;

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use netvm::{Access, Port, PortConfig, PortId, Status};
use netvm_process::SoftNode;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use support::adopt::{BOTH, PAGE, PATIENCE, PRIVATE, Pair, failed, map, read};

/// `linux/userfaultfd.h`.
mod uffd {
    pub(super) const API: u64 = 0xAA;
    pub(super) const USER_MODE_ONLY: i32 = 1;
    pub(super) const REGISTER_MISSING: u64 = 1;
    pub(super) const REGISTER_PROTECTED: u64 = 2;

    #[repr(C)]
    pub(super) struct Api {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct Register {
        pub(super) start: u64,
        pub(super) len: u64,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct ZeroPage {
        pub(super) start: u64,
        pub(super) len: u64,
        pub(super) mode: u64,
        pub(super) zeroed: i64,
    }

    #[repr(C)]
    pub(super) struct Protect {
        pub(super) start: u64,
        pub(super) len: u64,
        /// 1: stores wait for the handler.
        pub(super) mode: u64,
    }
}

/// Memory whose pages come when this says so, and not before.
struct Withheld {
    handler: OwnedFd,
    start: *mut u8,
    len: u64,
}

impl Withheld {
    /// `None`: this machine lets no process handle its own faults.
    fn new(len: usize) -> Option<Self> {
        // SAFETY: takes flags, and returns a new descriptor.
        let handler = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | uffd::USER_MODE_ONLY) };
        if handler < 0 {
            println!("skipped: userfaultfd: {}", io::Error::last_os_error());
            return None;
        }
        // SAFETY: the descriptor is new.
        let handler = unsafe { OwnedFd::from_raw_fd(handler as i32) };
        let withheld = Self {
            handler,
            start: map(len, BOTH, PRIVATE, None),
            len: len as u64,
        };
        let mut api = uffd::Api {
            api: uffd::API,
            features: 0,
            ioctls: 0,
        };
        withheld.call::<{ opcode::read_write::<uffd::Api>(0xAA, 0x3F) }, _>(&mut api);
        let mut register = uffd::Register {
            start: withheld.start.addr() as u64,
            len: withheld.len,
            mode: uffd::REGISTER_MISSING | uffd::REGISTER_PROTECTED,
            ioctls: 0,
        };
        withheld.call::<{ opcode::read_write::<uffd::Register>(0xAA, 0) }, _>(&mut register);
        Some(withheld)
    }

    fn call<const OPCODE: Opcode, T>(&self, argument: &mut T) {
        // SAFETY: each caller names the structure that the call takes.
        unsafe { ioctl(self.handler.as_fd(), Updater::<OPCODE, T>::new(argument)) }.unwrap();
    }

    /// The pages come.
    fn answer(&self) {
        let mut zero = uffd::ZeroPage {
            start: self.start.addr() as u64,
            len: self.len,
            mode: 0,
            zeroed: 0,
        };
        self.call::<{ opcode::read_write::<uffd::ZeroPage>(0xAA, 4) }, _>(&mut zero);
    }
}

impl Withheld {
    /// Stores to the pages that are there wait for the handler, or no longer.
    fn protect(&self, protect: bool) {
        let mut range = uffd::Protect {
            start: self.start.addr() as u64,
            len: self.len,
            mode: protect.into(),
        };
        self.call::<{ opcode::read_write::<uffd::Protect>(0xAA, 6) }, _>(&mut range);
    }
}

/// A page that is there, and whose stores wait for a handler.
#[test]
fn a_store_that_waits_for_a_handler_holds_up_its_port_alone() {
    let pair = Pair::new();
    let Some(withheld) = Withheld::new(PAGE) else {
        return;
    };
    let lent = pair.lend("protected", withheld.start, withheld.len).unwrap();
    withheld.answer();
    pair.write(&lent.remote, 0, &[1; 8]).unwrap();
    pair.write(&lent.remote, 0, &[2; 8]).unwrap();
    withheld.protect(true);
    assert_eq!(read(&lent.remote, 0), Ok([2; 8]));
    lent.remote.write(0, &[3; 8]).post().unwrap();
    // Other ports of the same two nodes.
    let other = Port::open(&pair.nodes[0].node(), PortConfig::number(8)).unwrap();
    let memory = other.alloc(PAGE as u64).unwrap();
    let _export = other.export("there", &memory, .., Access::everyone()).unwrap();
    let beside = Port::open(&pair.nodes[1].node(), PortConfig::default()).unwrap();
    let there = beside
        .import(pair.target_id, PortId(8), "there", PATIENCE)
        .unwrap();
    for round in 0..10u8 {
        there.write(0, &[round; 8]).post().unwrap();
        assert_eq!(read::<8>(&there, 0).unwrap(), [round; 8]);
    }
    // SAFETY: the page is the test's own, and there.
    assert_eq!(unsafe { withheld.start.read_volatile() }, 2, "it has not landed");
    withheld.protect(false);
    pair.sender.flush_remote(pair.target_id).unwrap();
    assert_eq!(read(&lent.remote, 0), Ok([3; 8]));
}

/// Writes, reads and atomics fail in their time, other ports do not notice, and a page that comes late is an ordinary one.
#[test]
fn what_waits_for_a_page_that_does_not_come_fails_in_time() {
    let timeout = Duration::from_millis(400);
    let node = SoftNode::builder().page_timeout(timeout).start().unwrap();
    let pair = Pair::to(node.clone());
    let Some(withheld) = Withheld::new(2 * PAGE) else {
        return;
    };
    let lent = pair.lend("withheld", withheld.start, withheld.len).unwrap();
    // Other ports of the same two nodes.
    let other = Port::open(&node.node(), PortConfig::number(8)).unwrap();
    let memory = other.alloc(PAGE as u64).unwrap();
    let _export = other.export("there", &memory, .., Access::everyone()).unwrap();
    let beside = Port::open(&pair.nodes[1].node(), PortConfig::default()).unwrap();
    let there = beside
        .import(pair.target_id, PortId(8), "there", PATIENCE)
        .unwrap();

    let begun = Instant::now();
    lent.remote.write(0, &[1; 100]).post().unwrap();
    for round in 0..10u8 {
        there.write(0, &[round; 8]).post().unwrap();
        assert_eq!(read::<8>(&there, 0).unwrap(), [round; 8]);
    }
    assert!(
        begun.elapsed() < timeout,
        "{:?}: no other port waits",
        begun.elapsed()
    );
    assert_eq!(failed(pair.sender.flush_remote(pair.target_id)), Status::TimedOut);
    let waited = begun.elapsed();
    assert!(waited >= timeout, "{waited:?}: it has its time");
    assert!(waited < timeout * 20, "{waited:?}");
    assert_eq!(failed(read::<8>(&lent.remote, 0)), Status::TimedOut);
    assert_eq!(
        failed(lent.remote.word64(8).unwrap().fetch_add(1)),
        Status::TimedOut
    );

    withheld.answer();
    // What failed did not land, late or otherwise.
    pair.write(&lent.remote, 8, &[7; 8]).unwrap();
    assert_eq!(read::<24>(&lent.remote, 0).unwrap()[..8], [0; 8]);
    assert_eq!(read::<8>(&lent.remote, 8).unwrap(), [7; 8]);
}

/// A port ends although a page of its memory does not come; its node ends when that has come.
#[test]
fn a_port_ends_while_a_page_does_not_come() {
    let timeout = Duration::from_millis(200);
    let node = SoftNode::builder().page_timeout(timeout).start().unwrap();
    let Some(withheld) = Withheld::new(PAGE) else {
        return;
    };
    let pair = Pair::to(node.clone());
    let lent = pair.lend("withheld", withheld.start, withheld.len).unwrap();
    lent.remote.write(0, &[1; 8]).post().unwrap();
    assert_eq!(failed(pair.sender.flush_remote(pair.target_id)), Status::TimedOut);
    drop(lent);
    let Pair { target, .. } = pair;
    drop(target);
    let again = Port::open(&node.node(), PortConfig::number(7));
    assert!(again.is_ok(), "{again:?}");
    withheld.answer();
}

/// A port is closed, and its imports with it, while the last of what it has posted waits for a page.
#[test]
fn what_was_posted_before_its_port_is_closed_lands_when_its_page_comes() {
    let pair = Pair::new();
    let Some(withheld) = Withheld::new(PAGE) else {
        return;
    };
    let lent = pair.lend("withheld", withheld.start, withheld.len).unwrap();
    lent.remote.write(0, &[5; 8]).post().unwrap();
    let Pair { sender, .. } = pair;
    std::thread::scope(|scope| {
        scope.spawn(|| drop(sender));
        std::thread::sleep(Duration::from_millis(100));
        withheld.answer();
    });
    let begun = Instant::now();
    // SAFETY: the page is the test's own, and there.
    while unsafe { withheld.start.read_volatile() } != 5 {
        assert!(begun.elapsed() < PATIENCE, "it does not land");
        std::thread::yield_now();
    }
}

#[test]
fn a_page_timeout_out_of_range_is_refused() {
    for millis in [0, 99, 3_600_001] {
        let refused = SoftNode::builder()
            .page_timeout(Duration::from_millis(millis))
            .start();
        let error = refused.expect_err("out of range").to_string();
        assert!(error.contains("100 to 3600000"), "{error}");
    }
}
