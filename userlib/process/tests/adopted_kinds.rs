//! Kinds of memory that a program may hand over, and what the kernel keeps of each: copies on write, files, huge pages, mappings
//! that go and move while another node uses them.

mod support;

use std::cell::UnsafeCell;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm::Status;

use support::adopt::{BOTH, PAGE, PRIVATE, Pair, failed, map, memfd, read};

/// A file that goes with its value.
fn file(bytes: &[u8]) -> std::fs::File {
    let file = std::fs::File::from(memfd(bytes.len()));
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// A mapping at an address where the kernel puts nothing by itself, so that what a test unmaps stays unmapped.
fn map_far(at: usize, len: usize) -> *mut u8 {
    let at = place(at);
    let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let mapped = unsafe { libc::mmap(at.cast(), len, BOTH, flags, -1, 0) };
    assert_eq!(mapped, at.cast(), "{}", std::io::Error::last_os_error());
    at
}

fn place(at: usize) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(at)
}

fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the mapping is the test's own, and no reference to it exists.
    assert_eq!(unsafe { libc::munmap(at.cast(), len) }, 0);
}

#[test]
fn a_private_mapping_of_a_file_is_copied_on_write_and_the_file_stays() {
    let pair = Pair::new();
    let before: Vec<u8> = (0..4 * PAGE).map(|at| (at / 11) as u8).collect();
    let file = file(&before);
    let fd = OwnedFd::from(file.try_clone().unwrap());
    let at = map(4 * PAGE, BOTH, libc::MAP_PRIVATE, Some(&fd));
    let lent = pair.lend("private", at, 4 * PAGE as u64).unwrap();
    assert_eq!(read::<100>(&lent.remote, 5000).unwrap(), before[5000..5100]);
    pair.try_all(&lent.remote, 2 * PAGE as u64).unwrap();
    let mut after = vec![0; 4 * PAGE];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(
        after == before,
        "the file has what was written into a private mapping"
    );
    // A page that was not written still shows the file; one that was does not.
    file.write_all_at(&[0xEE; 8], 0).unwrap();
    file.write_all_at(&[0xEE; 8], 3 * PAGE as u64).unwrap();
    assert_eq!(read::<8>(&lent.remote, 3 * PAGE as u64).unwrap(), [0xEE; 8]);
    assert_eq!(read::<3>(&lent.remote, 0).unwrap(), [3, 10, 17]);
}

#[test]
fn shared_anonymous_memory_is_written_for_the_children_that_have_it_too() {
    let pair = Pair::new();
    let at = map(2 * PAGE, BOTH, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None);
    let lent = pair.lend("shared", at, 2 * PAGE as u64).unwrap();
    let child = Child::fork(at, 2 * PAGE);
    pair.try_all(&lent.remote, 2 * PAGE as u64).unwrap();
    assert_eq!(child.sees()[..3], [3, 10, 17]);
}

#[test]
fn memory_that_a_child_copied_stays_the_childs_own() {
    let pair = Pair::new();
    let at = map(2 * PAGE, BOTH, PRIVATE, None);
    let lent = pair.lend("forked", at, 2 * PAGE as u64).unwrap();
    pair.write(&lent.remote, 0, &[1; 2 * PAGE]).unwrap();
    let child = Child::fork(at, 2 * PAGE);
    pair.write(&lent.remote, 0, &[2; 2 * PAGE]).unwrap();
    assert_eq!(read::<{ 2 * PAGE }>(&lent.remote, 0).unwrap(), [2; 2 * PAGE]);
    assert!(
        child.sees().iter().all(|byte| *byte == 1),
        "the child has its copy"
    );
    // The child has ended, and its pages are the parent's alone again.
    pair.try_all(&lent.remote, 2 * PAGE as u64).unwrap();
}

/// A child of `fork` that says what it sees in memory when it is asked.
struct Child {
    id: i32,
    ask: std::io::PipeWriter,
    hear: std::io::PipeReader,
}

impl Child {
    fn fork(at: *mut u8, len: usize) -> Self {
        let (asked, ask) = std::io::pipe().unwrap();
        let (hear, say) = std::io::pipe().unwrap();
        // SAFETY: the child makes system calls only.
        let id = unsafe { libc::fork() };
        if id == 0 {
            // SAFETY: the descriptors are open, and the memory is as long as this.
            unsafe {
                let mut byte = 0u8;
                libc::read(asked.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::write(say.as_raw_fd(), at.cast(), len);
                libc::_exit(0);
            }
        }
        assert!(id > 0);
        Self { id, ask, hear }
    }

    fn sees(mut self) -> Vec<u8> {
        self.ask.write_all(&[1]).unwrap();
        let mut bytes = Vec::new();
        self.hear.read_to_end(&mut bytes).unwrap();
        let mut status = 0;
        // SAFETY: waits for this value's own child.
        assert_eq!(unsafe { libc::waitpid(self.id, &raw mut status, 0) }, self.id);
        assert_eq!(status, 0);
        bytes
    }
}

/// Static data that anything may write.
#[repr(C, align(64))]
struct Cells(UnsafeCell<[u8; 10_000]>);

// SAFETY: reached through raw pointers alone.
unsafe impl Sync for Cells {}

static WRITABLE: Cells = Cells(UnsafeCell::new([9; 10_000]));
static ZEROED: Cells = Cells(UnsafeCell::new([0; 10_000]));
/// Aligned for the word that the test adds to: where the linker puts plain bytes is its own affair.
#[repr(align(64))]
struct Constant([u8; 8192]);
static CONSTANT: Constant = Constant([7; 8192]);

#[test]
fn static_data_is_written_and_constants_are_only_read() {
    let pair = Pair::new();
    pair.with("writable", WRITABLE.0.get().cast(), 10_000).unwrap();
    pair.with("zeroed", ZEROED.0.get().cast(), 10_000).unwrap();
    let lent = pair
        .lend("constant", CONSTANT.0.as_ptr().cast_mut(), 8192)
        .unwrap();
    assert_eq!(read::<100>(&lent.remote, 4000).unwrap(), [7; 100]);
    let status = failed(pair.write(&lent.remote, 0, &[1; 100]));
    assert_eq!(status, Status::ReadOnly);
    let added = lent.remote.word64(64).unwrap().fetch_add(1);
    assert_eq!(failed(added), Status::ReadOnly);
    assert!(CONSTANT.0.iter().all(|byte| *byte == 7));
}

/// Huge pages that the kernel makes when they are asked for, and takes back with the mapping. The limit is put back at the end; a
/// test that a signal ends leaves it four pages higher.
struct HugePages(String);

const HUGE: usize = 2 << 20;
const OVERCOMMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";

impl HugePages {
    fn allow() -> Option<Self> {
        let before = std::fs::read_to_string(OVERCOMMIT).ok()?;
        let more = before.trim().parse::<u64>().ok()? + 4;
        std::fs::write(OVERCOMMIT, more.to_string()).ok()?;
        Some(Self(before))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(OVERCOMMIT, &self.0);
    }
}

#[test]
fn huge_pages_are_written_and_read() {
    let _allowed = HugePages::allow();
    for kind in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
        let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * HUGE, BOTH, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            println!(
                "skipped: this machine has no huge pages ({}), and this user cannot allow any: {OVERCOMMIT}",
                std::io::Error::last_os_error()
            );
            return;
        }
        let pair = Pair::new();
        pair.with("huge", at.cast(), 2 * HUGE as u64).unwrap();
        // SAFETY: the mapping is this test's own.
        assert_eq!(unsafe { at.cast::<u8>().add(HUGE).read_volatile() }, 3);
        unmap(at.cast(), 2 * HUGE);
    }
}

#[test]
fn a_page_in_the_middle_that_is_not_there_fails_what_touches_it_alone() {
    let pair = Pair::new();
    let at = map(3 * PAGE, BOTH, PRIVATE, None);
    let lent = pair.lend("hole", at, 3 * PAGE as u64).unwrap();
    // SAFETY: the pages are this test's own.
    let protect = |prot| unsafe { libc::mprotect(at.add(PAGE).cast(), PAGE, prot) };
    assert_eq!(protect(libc::PROT_NONE), 0);
    assert_eq!(
        failed(pair.write(&lent.remote, 0, &[1; 3 * PAGE])),
        Status::Unmapped
    );
    assert_eq!(failed(read::<{ 3 * PAGE }>(&lent.remote, 0)), Status::Unmapped);
    let word = lent.remote.word64(PAGE as u64 + 8).unwrap();
    assert_eq!(failed(word.fetch_add(1)), Status::Unmapped);
    for page in [0, 2 * PAGE as u64] {
        pair.write(&lent.remote, page, &[5; PAGE]).unwrap();
        assert_eq!(read::<PAGE>(&lent.remote, page).unwrap(), [5; PAGE]);
    }
    assert_eq!(protect(libc::PROT_READ), 0);
    assert_eq!(
        failed(pair.write(&lent.remote, 0, &[6; 3 * PAGE])),
        Status::ReadOnly
    );
    assert_eq!(read::<8>(&lent.remote, PAGE as u64 + 8).unwrap(), [0; 8]);
    assert_eq!(protect(BOTH), 0);
    pair.try_all(&lent.remote, 3 * PAGE as u64).unwrap();
}

/// What a port hands over as the *source* of its writes, or the destination of its reads, and then takes away.
#[test]
fn local_memory_that_is_gone_is_an_error_and_no_signal() {
    let pair = Pair::new();
    let mut good = vec![0u8; 2 * PAGE];
    let lent = pair.lend("good", good.as_mut_ptr(), 2 * PAGE as u64).unwrap();
    let Gone { cut, gone, read_only } = Gone::new();
    for (at, says) in [(cut, Status::BusError), (gone, Status::Unmapped)] {
        let region = adopt(&pair, at);
        for len in [200, 3000, 2 * PAGE as u64] {
            let posted = lent.remote.write(0, region.slice(..len).unwrap()).post();
            let wrote = posted.and_then(|_| pair.sender.flush_remote(pair.target_id));
            assert_eq!(failed(wrote), says, "{len} bytes written from there");
            let begun = lent.remote.read(0, region.slice(..len).unwrap()).post();
            let back = begun.and_then(|_| pair.sender.flush());
            assert_eq!(failed(back), says, "{len} bytes read to there");
        }
    }
    let region = adopt(&pair, read_only);
    lent.remote.write(0, region.whole()).post().unwrap();
    pair.sender.flush_remote(pair.target_id).unwrap();
    lent.remote.read(0, region.whole()).post().unwrap();
    let back = pair.sender.flush();
    assert_eq!(failed(back), Status::ReadOnly);
    pair.try_all(&lent.remote, 2 * PAGE as u64).unwrap();
}

/// Two pages each that a program has taken away in one of three ways.
struct Gone {
    cut: *mut u8,
    gone: *mut u8,
    read_only: *mut u8,
}

impl Gone {
    fn new() -> Self {
        let file = memfd(2 * PAGE);
        let cut = map(2 * PAGE, BOTH, libc::MAP_SHARED, Some(&file));
        rustix::fs::ftruncate(&file, 0).unwrap();
        Self {
            cut,
            gone: map(2 * PAGE, libc::PROT_NONE, PRIVATE, None),
            read_only: map(2 * PAGE, libc::PROT_READ, PRIVATE, None),
        }
    }
}

/// Two pages, handed over to the sender's port.
fn adopt(pair: &Pair, at: *mut u8) -> netvm::Region {
    let at = std::ptr::NonNull::new(at).unwrap();
    // SAFETY: the mapping is the test's own, and no reference to it exists.
    unsafe { pair.sender.adopt(at, 2 * PAGE as u64) }.unwrap()
}

/// Which page could not be had, and why.
fn unreachable<T: std::fmt::Debug>(result: netvm::Result<T>) -> (u64, Status) {
    match result {
        Err(netvm::Error::Memory { offset, status }) => (offset, status),
        other => panic!("{other:?} is no failure of memory"),
    }
}

/// What the calling thread copies itself: writes that fit into their descriptor, the region's bytes, its words.
#[test]
fn local_memory_that_is_gone_gives_the_calling_thread_an_error_and_no_signal() {
    let pair = Pair::new();
    let mut good = vec![0u8; 2 * PAGE];
    let lent = pair.lend("good", good.as_mut_ptr(), 2 * PAGE as u64).unwrap();
    let Gone { cut, gone, read_only } = Gone::new();
    let edge = PAGE as u64 - 8;
    for (at, says) in [(cut, Status::BusError), (gone, Status::Unmapped)] {
        let region = adopt(&pair, at);
        for len in [1, 2, 4, 7, 8, 64, 128] {
            for from in [0, 1, edge] {
                let slice = region.slice(from..from + len).unwrap();
                assert_eq!(unreachable(lent.remote.write(0, &slice).post()), (from, says));
                let mut bytes = vec![0; len as usize];
                assert_eq!(unreachable(region.read_into(from, &mut bytes)), (from, says));
                assert_eq!(unreachable(region.write_from(from, &bytes)), (from, says));
            }
        }
        assert_eq!(unreachable(region.read_into(0, &mut [0; 2 * PAGE])), (0, says));
        assert_eq!(unreachable(region.write_from(0, &[1; 2 * PAGE])), (0, says));
        let (word, long) = (region.word32(4).unwrap(), region.word64(edge).unwrap());
        assert_eq!(unreachable(word.load()), (4, says));
        assert_eq!(unreachable(word.store(1)), (4, says));
        assert_eq!(unreachable(word.compare_swap(0, 1)), (4, says));
        assert_eq!(unreachable(long.load()), (edge, says));
        assert_eq!(unreachable(long.store(1)), (edge, says));
        assert_eq!(unreachable(long.compare_swap(0, 1)), (edge, says));
        pair.try_all(&lent.remote, 2 * PAGE as u64).unwrap();
    }
    let region = adopt(&pair, read_only);
    lent.remote.write(0, region.slice(..8).unwrap()).post().unwrap();
    let mut bytes = [1; 100];
    region.read_into(edge, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 100]);
    let word = region.word64(0).unwrap();
    assert_eq!(word.load().unwrap(), 0);
    let refused = Status::ReadOnly;
    assert_eq!(unreachable(region.write_from(1, &bytes)), (1, refused));
    assert_eq!(unreachable(word.store(1)), (0, refused));
    assert_eq!(unreachable(word.compare_swap(1, 2)), (0, refused));
    pair.try_all(&lent.remote, 2 * PAGE as u64).unwrap();
}

/// The first page is there, the second is not: what lies in the first alone works, and the error is that of the second.
#[test]
fn the_calling_thread_is_told_of_the_page_that_is_not_there() {
    let pair = Pair::new();
    let at = map(2 * PAGE, BOTH, PRIVATE, None);
    // SAFETY: the page is this test's own.
    let protected = unsafe { libc::mprotect(at.add(PAGE).cast(), PAGE, libc::PROT_NONE) };
    assert_eq!(protected, 0);
    let region = adopt(&pair, at);
    let edge = PAGE as u64 - 4;
    region.write_from(edge, &[7; 4]).unwrap();
    for len in [5, 8, 100] {
        assert_eq!(
            unreachable(region.write_from(edge, &vec![9; len])),
            (edge, Status::Unmapped)
        );
        assert_eq!(
            unreachable(region.read_into(edge, &mut vec![9; len])),
            (edge, Status::Unmapped)
        );
    }
    let word = region.word32(edge).unwrap();
    assert_eq!(word.compare_swap(0x0909_0909, 3).unwrap(), 0x0909_0909);
    assert_eq!(word.compare_swap(4, 5).unwrap(), 3);
    word.store(6).unwrap();
    assert_eq!(word.load().unwrap(), 6);
}

/// Uses memory from the other node while `change` takes it away and brings it back, until both ends of it were met, and
/// uses a neighbour's memory beside it, which never fails.
fn change_during_traffic(pair: &Pair, at: *mut u8, len: usize, says: &[Status], change: impl Fn() + Sync) {
    let lent = pair.lend("changes", at, len as u64).unwrap();
    let mut calm = vec![0u8; PAGE];
    let neighbour = pair.lend("calm", calm.as_mut_ptr(), PAGE as u64).unwrap();
    let stop = AtomicBool::new(false);
    let (mut good, mut bad) = (0u32, 0u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                change();
            }
        });
        let begin = std::time::Instant::now();
        let mut round = 0u8;
        while (good < 50 || bad < 50) && begin.elapsed() < support::PATIENCE {
            round = round.wrapping_add(1);
            let ends = [
                pair.write(&lent.remote, 0, &vec![round; len]),
                read::<100>(&lent.remote, len as u64 - 100).map(drop),
                lent.remote.word64(8).and_then(|word| word.fetch_add(1)).map(drop),
            ];
            for end in ends {
                match end {
                    Ok(()) => good += 1,
                    end => {
                        let status = failed(end);
                        assert!(says.contains(&status), "{status:?}");
                        bad += 1;
                    }
                }
            }
            pair.write(&neighbour.remote, 0, &[round; PAGE]).unwrap();
            assert_eq!(read::<PAGE>(&neighbour.remote, 0).unwrap(), [round; PAGE]);
        }
        stop.store(true, Ordering::Release);
    });
    println!("{good} operations ended well, {bad} with an error");
    assert!(good >= 50 && bad >= 50, "{good} good, {bad} bad");
    pair.try_all(&lent.remote, len as u64).unwrap();
}

#[test]
fn a_file_cut_during_traffic_is_an_error_for_the_sender_alone() {
    let pair = Pair::new();
    let file = memfd(2 * PAGE);
    let at = map(2 * PAGE, BOTH, libc::MAP_SHARED, Some(&file));
    change_during_traffic(&pair, at, 2 * PAGE, &[Status::BusError], || {
        rustix::fs::ftruncate(&file, 100).unwrap();
        std::thread::yield_now();
        rustix::fs::ftruncate(&file, 2 * PAGE as u64).unwrap();
        std::thread::yield_now();
    });
}

#[test]
fn memory_unmapped_during_traffic_is_an_error_for_the_sender_alone() {
    let pair = Pair::new();
    let far = 0x2000_0000_0000;
    let at = map_far(far, 2 * PAGE);
    // A page that comes back between a fault and the look at what it was is there, and the copy is not done.
    change_during_traffic(&pair, at, 2 * PAGE, &[Status::Unmapped, Status::ReadOnly], || {
        unmap(place(far), 2 * PAGE);
        std::thread::yield_now();
        map_far(far, 2 * PAGE);
        std::thread::yield_now();
    });
}

#[test]
fn memory_moved_during_traffic_is_an_error_for_the_sender_alone() {
    let pair = Pair::new();
    let (here, there) = (0x2100_0000_0000, 0x2100_0100_0000);
    let at = map_far(here, 2 * PAGE);
    let go = |from: usize, to: usize| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (place(from).cast(), place(to).cast::<libc::c_void>());
        // SAFETY: both places are this test's own.
        let moved = unsafe { libc::mremap(from, 2 * PAGE, 2 * PAGE, flags, to) };
        assert_eq!(moved, to);
    };
    change_during_traffic(&pair, at, 2 * PAGE, &[Status::Unmapped, Status::ReadOnly], || {
        go(here, there);
        std::thread::yield_now();
        go(there, here);
        std::thread::yield_now();
    });
    // What was written goes along; the old address is meant, and there is nothing.
    let lent = pair.lend("moved", at, 2 * PAGE as u64).unwrap();
    pair.write(&lent.remote, 0, &[0x5A; 16]).unwrap();
    go(here, there);
    // SAFETY: mapped there now.
    assert_eq!(unsafe { place(there).read_volatile() }, 0x5A);
    assert_eq!(failed(pair.write(&lent.remote, 0, &[1; 16])), Status::Unmapped);
    // SAFETY: as above.
    assert_eq!(unsafe { place(there).read_volatile() }, 0x5A);
}
