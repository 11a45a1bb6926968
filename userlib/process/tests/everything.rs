//! All memory of the process as one region, for local operands.

mod support;

use std::ptr::NonNull;

use netvm::{Access, Error, Port, PortConfig, Region, RegionSlice, RemoteSegment, Status};

use support::adopt::{BOTH, PAGE, PATIENCE, PRIVATE, Pair, failed, map, memfd};

/// A place for what has no name of its own.
static STATIC: [u8; 1000] = [0x5A; 1000];

/// The range of these bytes in the region of all memory.
fn at(all: &Region, bytes: *const u8, len: usize) -> RegionSlice {
    let start = bytes.expose_provenance() as u64;
    all.slice(start..start + len as u64).unwrap()
}

/// A port of the sender's node that has adopted all, and 64 KiB of the target.
fn adopted(pair: &Pair) -> (Port, Region, RemoteSegment, netvm::Export) {
    let memory = pair.target.alloc(16 * PAGE as u64).unwrap();
    let export = pair
        .target
        .export("inbox", &memory, .., Access::everyone())
        .unwrap();
    let port = Port::open(&pair.nodes[1].node(), PortConfig::default()).unwrap();
    // SAFETY: what the tests name is theirs, and left alone while it is used.
    let all = unsafe { port.adopt_all() }.unwrap();
    let remote = port
        .import(pair.target_id, pair.target.id(), "inbox", PATIENCE)
        .unwrap();
    (port, all, remote, export)
}

/// Writes from there, and gives what has arrived.
fn sent(port: &Port, remote: &RemoteSegment, from: RegionSlice) -> netvm::Result<Vec<u8>> {
    let mut came = vec![0; from.len() as usize];
    remote.write(8, from).post()?;
    port.flush_remote(remote.node())?;
    remote.read(8, &mut came).call()?;
    Ok(came)
}

#[test]
fn heap_stack_statics_and_files_are_written_from_and_read_into() {
    let pair = Pair::new();
    let (port, all, remote, _export) = adopted(&pair);
    let heap: Vec<u8> = (0..3 * PAGE).map(|byte| byte as u8).collect();
    assert_eq!(
        sent(&port, &remote, at(&all, heap.as_ptr(), heap.len())).unwrap(),
        heap
    );
    let stack = [7u8; 200];
    assert_eq!(
        sent(&port, &remote, at(&all, stack.as_ptr(), 200)).unwrap(),
        stack
    );
    assert_eq!(sent(&port, &remote, at(&all, stack.as_ptr(), 9)).unwrap(), [7; 9]);
    let read_only = at(&all, STATIC.as_ptr(), 1000);
    assert_eq!(sent(&port, &remote, read_only.clone()).unwrap(), STATIC);
    let file = memfd(PAGE);
    rustix::io::pwrite(&file, &[9; 500], 0).unwrap();
    let mapped = map(PAGE, BOTH, libc::MAP_SHARED, Some(&file));
    assert_eq!(sent(&port, &remote, at(&all, mapped, 500)).unwrap(), [9; 500]);

    // What is staged is so in memory of the library's own.
    remote.write(100, &heap[1..]).post().unwrap();
    let mut back = vec![0; heap.len() - 1];
    remote.read(100, &mut back).ordered().call().unwrap();
    assert!(back == heap[1..]);

    // Several at once, and back.
    let mut into = vec![0u8; 2 * PAGE];
    let first = at(&all, heap.as_ptr(), 300);
    port.write_vector()
        .piece(&remote, 0, &first)
        .piece(&remote, 4000, at(&all, stack.as_ptr(), 200))
        .post()
        .unwrap();
    port.read_vector()
        .piece(&remote, 0, at(&all, into.as_mut_ptr(), 300))
        .piece(&remote, 4000, at(&all, into.as_mut_ptr().wrapping_add(PAGE), 200))
        .ordered()
        .fenced()
        .post()
        .unwrap();
    assert!(into[..300] == heap[..300] && into[PAGE..PAGE + 200] == stack);
    let refused = remote.read(0, read_only).fenced().post();
    assert_eq!(failed(refused), Status::ReadOnly);
}

#[test]
fn what_is_not_mapped_fails_alone() {
    let pair = Pair::new();
    let (port, all, remote, _export) = adopted(&pair);
    for (start, says) in [(0, Status::LocalAddress), (0x10_000, Status::Unmapped)] {
        let nothing = all.slice(start..start + 500).unwrap();
        let read = remote.read(0, nothing).fenced().post();
        assert_eq!(failed(read), says, "at {start:#x}");
    }
    let gone = map(PAGE, BOTH, PRIVATE, None);
    assert_eq!(sent(&port, &remote, at(&all, gone, 500)).unwrap(), [0; 500]);
    // SAFETY: the mapping is this test's own.
    unsafe { libc::munmap(gone.cast(), PAGE) };
    remote.write(0, at(&all, gone, 500)).post().unwrap();
    assert_eq!(failed(port.flush_remote(remote.node())), Status::Unmapped);

    // Memory of another port's, which its card has in place, goes with its region; this port notices.
    let others = pair.sender.alloc(4 * PAGE as u64).unwrap();
    others.write_from(0, &[3; 500]).unwrap();
    let theirs = all
        .slice(others.address().get()..others.address().get() + 500)
        .unwrap();
    for _ in 0..3 {
        assert_eq!(sent(&port, &remote, theirs.clone()).unwrap(), [3; 500]);
    }
    drop(others);
    remote.write(0, theirs).post().unwrap();
    assert_eq!(failed(port.flush_remote(remote.node())), Status::Unmapped);
    assert_eq!(
        sent(&port, &remote, at(&all, STATIC.as_ptr(), 9)).unwrap(),
        [0x5A; 9]
    );
}

#[test]
fn it_is_the_ports_only_region_and_no_export() {
    let pair = Pair::new();
    let (port, all, _remote, _export) = adopted(&pair);
    let is_refused = |error: Option<Error>, says: &str| {
        let error = error.expect("it is not refused").to_string();
        assert!(error.contains(says), "{error}");
    };
    is_refused(port.alloc(4096).err(), "has adopted all memory");
    let bytes = NonNull::from(&STATIC).cast();
    // SAFETY: refused.
    is_refused(unsafe { port.adopt(bytes, 100) }.err(), "has adopted all memory");
    is_refused(
        port.export("all", &all, 0..4096, Access::everyone()).err(),
        "is for local operands",
    );
    // SAFETY: the same region again.
    let again = unsafe { port.adopt_all() }.unwrap();
    assert_eq!((again.address(), again.len()), (all.address(), all.len()));
    // SAFETY: refused.
    is_refused(unsafe { pair.target.adopt_all() }.err(), "first and only region");
    // Closed, and adopted by the next of its number, as often as it likes.
    let number = port.id();
    drop(port);
    for _ in 0..20 {
        let config = PortConfig::number(number.get());
        let port = Port::open(&pair.nodes[1].node(), config).unwrap();
        // SAFETY: nothing of it is used.
        unsafe { port.adopt_all() }.unwrap();
    }
}
