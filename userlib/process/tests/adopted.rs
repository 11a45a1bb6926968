//! Memory that a program already has: every kind that works, and every kind that ends in an error for the sender alone.

mod support;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::NonNull;

use netvm::{Access, PortId, Timeout};

use support::adopt::{BOTH, PAGE, PATIENCE, PRIVATE, Pair, map, memfd, read};
use support::status;

#[test]
fn heap_stack_file_and_memfd_are_written_read_and_counted_in() {
    let pair = Pair::new();
    // An odd beginning and an odd length.
    let mut heap = vec![0u8; 3 * PAGE + 123];
    pair.with("heap", heap[16..].as_mut_ptr(), 2 * PAGE as u64 + 101)
        .unwrap();
    assert_eq!(heap[16..19], [3, 10, 17]);
    assert!(
        heap[..16].iter().all(|byte| *byte == 0),
        "what lies before it is untouched"
    );
    let mut stack = [0u64; 100];
    pair.with("stack", stack.as_mut_ptr().cast(), 800).unwrap();
    assert_eq!(stack[0].to_le_bytes()[..3], [3, 10, 17]);
    let file = memfd(4 * PAGE);
    let shared = map(4 * PAGE, BOTH, libc::MAP_SHARED, Some(&file));
    pair.with("memfd", shared, 4 * PAGE as u64).unwrap();
    let mut begin = [0; 3];
    rustix::io::pread(file.as_fd(), &mut begin, 0).unwrap();
    assert_eq!(begin, [3, 10, 17], "the file has it");
    let path = std::env::temp_dir().join(format!("netvm-adopted-{}", std::process::id()));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.set_len(4 * PAGE as u64).unwrap();
    let fd = OwnedFd::from(file);
    pair.with(
        "file",
        map(4 * PAGE, BOTH, libc::MAP_SHARED, Some(&fd)),
        4 * PAGE as u64,
    )
    .unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..3], [3, 10, 17]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_is_not_there_is_an_error_for_the_sender_and_the_next_write_elsewhere_works() {
    let pair = Pair::new();
    let read_only = map(PAGE, libc::PROT_READ, PRIVATE, None);
    let gone = map(PAGE, 0, PRIVATE, None);
    let file = memfd(2 * PAGE);
    let cut = map(2 * PAGE, BOTH, libc::MAP_SHARED, Some(&file));
    rustix::fs::ftruncate(&file, 0).unwrap();
    let mut good = vec![0u8; PAGE];
    for (name, start, says) in [
        ("read-only", read_only, "ReadOnly"),
        ("gone", gone, "Unmapped"),
        ("truncated", cut, "BusError"),
    ] {
        let error = pair.with(name, start, PAGE as u64).unwrap_err();
        assert!(error.contains(says), "{name}: {error}");
        pair.with("good", good.as_mut_ptr(), PAGE as u64).unwrap();
    }
}

#[test]
fn adopted_are_addresses_not_what_lies_there() {
    let pair = Pair::new();
    let at = map(2 * PAGE, BOTH, PRIVATE, None);
    // SAFETY: the mapping is this test's own, and reached through raw pointers.
    let region = unsafe { pair.target.adopt(NonNull::new(at).unwrap(), 2 * PAGE as u64) }.unwrap();
    let _export = pair
        .target
        .export("there", &region, .., Access::everyone())
        .unwrap();
    let remote = pair
        .sender
        .import(pair.target_id, PortId(7), "there", PATIENCE)
        .unwrap();
    pair.try_all(&remote, 2 * PAGE as u64).unwrap();
    let file = memfd(2 * PAGE);
    // SAFETY: replaces this test's own mapping.
    let again = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        libc::mmap(at.cast(), 2 * PAGE, BOTH, flags, file.as_raw_fd(), 0)
    };
    assert_eq!(again.cast(), at);
    pair.try_all(&remote, 2 * PAGE as u64).unwrap();
    let mut begin = [0; 3];
    rustix::io::pread(file.as_fd(), &mut begin, 0).unwrap();
    assert_eq!(begin, [3, 10, 17], "the new mapping is meant");
}

/// As `ulimit -l 0`: no page of this process may be locked.
fn lock_nothing() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: lowers this process' own limit.
    let lowered = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) };
    assert_eq!(lowered, 0);
}

#[test]
fn nothing_is_pinned() {
    lock_nothing();
    let pair = Pair::new();
    let memory = pair.target.alloc(64 << 20).unwrap();
    let _export = pair
        .target
        .export("much", &memory, .., Access::everyone())
        .unwrap();
    let remote = pair
        .sender
        .import(pair.target_id, PortId(7), "much", PATIENCE)
        .unwrap();
    let source = pair.sender.alloc(1 << 20).unwrap();
    for mib in 0..64 {
        source.write_from(0, &[mib as u8 + 1]).unwrap();
        remote.write(mib << 20, source.whole()).post().unwrap();
        pair.sender.flush_remote(pair.target_id).unwrap();
        let mut byte = [0];
        memory.read_into(mib << 20, &mut byte).unwrap();
        assert_eq!(byte[0], mib as u8 + 1);
    }
    assert_eq!((status("VmLck"), status("VmPin")), (0, 0));
}

#[test]
fn a_child_of_fork_is_told_that_it_has_no_card() {
    let pair = Pair::new();
    let memory = pair.target.alloc(4096).unwrap();
    let _export = pair
        .target
        .export("parent", &memory, .., Access::everyone().notify(1..=1))
        .unwrap();
    let remote = pair
        .sender
        .import(pair.target_id, PortId(7), "parent", PATIENCE)
        .unwrap();
    // SAFETY: the child calls nothing but the library, which takes no lock there, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |ok: bool| if ok { 0 } else { 1 };
        let alloc = refused(format!("{:?}", pair.target.alloc(4096).err()).contains("fork"));
        let post = remote
            .write(0, &[1u8; 8][..])
            .post()
            .and_then(|_| pair.sender.flush_remote(pair.target_id));
        let wait = pair
            .target
            .notification(1)
            .and_then(|arrived| arrived.wait(Timeout::Never));
        let code = alloc | refused(post.is_err()) << 1 | refused(wait.is_err()) << 2;
        // SAFETY: ends the child without anything that its parent's threads would have to do.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for this test's own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "exit code {}", status >> 8);
    // The parent's node works as before.
    pair.try_all(&remote, 4096).unwrap();
}

/// Bytes of this machine's memory.
fn machine_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|line| line.split_whitespace().next());
    kib.unwrap().parse::<u64>().unwrap() * 1024
}

/// A file of this many bytes, none of them written, that goes with its value; or why there is none.
fn sparse_file(bytes: u64) -> std::io::Result<std::fs::File> {
    let path = std::env::temp_dir().join(format!("netvm-sparse-{}", std::process::id()));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(bytes)?;
    Ok(file)
}

#[test]
fn a_file_larger_than_the_machines_memory_is_served_without_a_locked_page() {
    lock_nothing();
    let machine = machine_bytes();
    let len = machine + (1 << 30) + 123;
    let file = match sparse_file(len) {
        Ok(file) => file,
        Err(error) => {
            println!("skipped: the file system of temporary files holds no file of {len} bytes: {error}");
            return;
        }
    };
    let pair = Pair::new();
    let fd = OwnedFd::from(file.try_clone().unwrap());
    let at = map(len as usize, BOTH, libc::MAP_SHARED, Some(&fd));
    let lent = pair.lend("sparse", at, len).unwrap();
    let far = [
        0,
        (4 << 30) - 100,
        machine / 2 + 77,
        machine - 50,
        machine + (1 << 29),
        len - 9000,
    ];
    let far = || far.into_iter().filter(|offset| offset + 9000 <= len);
    let written =
        |offset: u64| -> Vec<u8> { (0..9000).map(|byte| (offset / 11 + byte * 7) as u8 | 1).collect() };
    for offset in far() {
        pair.write(&lent.remote, offset, &written(offset)).unwrap();
        let mut held = vec![0; 9000];
        file.read_exact_at(&mut held, offset).unwrap();
        assert!(held == written(offset), "the file has other bytes at {offset}");
        // What the program writes into its file, another node reads.
        file.write_all_at(&[0xEE; 8], offset + 16).unwrap();
        assert_eq!(read::<8>(&lent.remote, offset + 16).unwrap(), [0xEE; 8]);
    }
    for offset in far() {
        let mut expected = written(offset);
        expected[16..24].fill(0xEE);
        assert!(
            read::<9000>(&lent.remote, offset).unwrap()[..] == expected,
            "{offset}"
        );
    }
    let word = lent
        .remote
        .word64((machine + (1 << 28)).next_multiple_of(8))
        .unwrap();
    assert_eq!((word.fetch_add(5).unwrap(), word.fetch_add(1).unwrap()), (0, 5));
    assert_eq!((status("VmLck"), status("VmPin")), (0, 0));
    let kept = file.metadata().unwrap().blocks() * 512;
    assert!(kept < 16 << 20, "{kept} bytes of the file were touched");
    drop(lent);
    // SAFETY: nothing uses the mapping any more.
    assert_eq!(unsafe { libc::munmap(at.cast(), len as usize) }, 0);
}
