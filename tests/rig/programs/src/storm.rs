//! Page events of every kind, and memory in which a stray write shows.
//!
//! All of this memory is written to by a card at any time, so it is reached by relaxed atomics only.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Most pages that one event takes.
const MOST: u64 = 3;
/// Pages that most events and transfers meet in: few, or the two never meet.
const HOT: u64 = 6;
/// Pages of a canary.
const CANARY: usize = 32;
/// What a canary's words are.
const SONG: u64 = 0xA5A5_5A5A_C3C3_3C3C;
/// How long what was moved away is watched.
const WATCH: Duration = Duration::from_micros(300);
const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The word that belongs to an address, of the `salt`th write.
#[must_use]
pub const fn tag(address: u64, salt: u64) -> u64 {
    (address << 8) | (salt % 255 + 1)
}

const fn belongs(word: u64, address: u64) -> bool {
    word == 0 || word >> 8 == address & (u64::MAX >> 8)
}

/// Words of a copy of memory at `address`, a multiple of 8, that belong elsewhere.
#[must_use]
pub fn wrong_words(bytes: &[u8], address: u64) -> u64 {
    let words = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    (0..)
        .zip(words)
        .filter(|&(index, word)| !belongs(word, address + index * 8))
        .count() as u64
}

/// Pseudo-random decisions (xorshift).
pub struct Mix(u64);

impl Mix {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `limit`, which is not 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }

    /// A page event; those that take the whole range, and long, not so often.
    pub fn event(&mut self) -> Event {
        let event = Event::ALL[self.below(Event::ALL.len() as u64) as usize];
        if matches!(event, Event::Collapse | Event::Split) && self.below(4) > 0 {
            return self.event();
        }
        event
    }

    /// How many of `of` pages are meant: mostly the first few, so that both sides meet there.
    pub const fn part(&mut self, of: u64) -> u64 {
        if of > HOT && self.below(8) > 0 { HOT } else { of }
    }

    /// A few of `of` pages: the first, and how many.
    pub const fn pages(&mut self, of: usize) -> (usize, usize) {
        let of = self.part(of as u64) as usize;
        let pages = 1 + self.below(if (of as u64) < MOST { of as u64 } else { MOST }) as usize;
        (self.below((of - pages + 1) as u64) as usize, pages)
    }
}

/// A range of memory whose pages come and go.
pub struct Arena {
    start: NonNull<c_void>,
    pages: usize,
    /// As long as the range: each of its pages is only ever mapped in one place, so its words belong there.
    file: OwnedFd,
}

// SAFETY: its words are reached by atomics.
unsafe impl Sync for Arena {}

impl Arena {
    /// So many pages of ordinary memory, aligned as a huge page is.
    ///
    /// # Errors
    /// The system's.
    pub fn new(pages: usize) -> io::Result<Self> {
        const HUGE: usize = 512 * PAGE;
        let len = pages * PAGE;
        let file = memfd_create("arena", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        // SAFETY: at an address of the kernel's choice; then only parts of it are given back.
        unsafe {
            let whole = mmap_anonymous(null_mut(), len + HUGE, BOTH, MapFlags::PRIVATE)?;
            let before = whole.addr().next_multiple_of(HUGE) - whole.addr();
            let start = whole.byte_add(before);
            if before > 0 {
                munmap(whole, before)?;
            }
            if before < HUGE {
                munmap(start.byte_add(len), HUGE - before)?;
            }
            let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { start, pages, file })
        }
    }

    /// Its first byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.pages * PAGE
    }

    fn page(&self, page: usize) -> *mut c_void {
        debug_assert!(page < self.pages);
        // SAFETY: callers name pages of the arena.
        unsafe { self.start.as_ptr().byte_add(page * PAGE) }
    }

    /// Words of one of its pages that belong elsewhere.
    #[must_use]
    pub fn wrong_in(&self, page: usize) -> u64 {
        let start = self.page(page);
        wrong_at(start, start.addr() as u64)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: its own.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes()) };
    }
}

/// The words of a page.
///
/// # Safety
/// It is mapped, for reading at least, and reached by atomics only while the result is used.
unsafe fn words<'a>(page: *mut c_void) -> &'a [AtomicU64] {
    // SAFETY: as promised.
    unsafe { std::slice::from_raw_parts(page.cast(), PAGE / 8) }
}

/// Words of the page at `page` that do not belong to `address`.
fn wrong_at(page: *mut c_void, address: u64) -> u64 {
    // SAFETY: callers name mapped pages.
    let words = unsafe { words(page) };
    let wrong =
        |(index, word): (u64, &AtomicU64)| !belongs(word.load(Ordering::Relaxed), address + index * 8);
    (0..).zip(words).filter(|&word| wrong(word)).count() as u64
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Something that takes pages away, or brings them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event { $($(#[$doc])* $name,)* }

        impl Event {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

events! {
    /// The process writes.
    Touch,
    /// `munmap`, then new memory in the place.
    Unmap,
    /// The pages move elsewhere; new memory in the place.
    Move,
    /// `MADV_DONTNEED`.
    Drop,
    /// `MADV_PAGEOUT`: to swap.
    PageOut,
    /// `MADV_FREE`.
    Free,
    /// `mprotect`, for a moment.
    Protect,
    /// `fork`: pages are shared until one side writes.
    Fork,
    /// `MADV_COLLAPSE`: all becomes one huge page.
    Collapse,
    /// A part of a huge page is paged out: it becomes small ones again.
    Split,
    /// Equal pages, `MADV_MERGEABLE`: the kernel (KSM) makes them one, read-only.
    Merge,
    /// `MADV_UNMERGEABLE`: they are made different ones again.
    Unmerge,
    /// Pages of a file, shared with it.
    Share,
    /// Pages of a file, and copies of them once they are written.
    Private,
    /// Pages of the file are cut out of it.
    Punch,
    /// Pages that were only read: the shared zero page.
    Zero,
}

impl Event {
    /// Makes it happen to pages of an arena. The number of words that changed in what was moved away.
    ///
    /// # Errors
    /// The system's; that it has no memory or no huge page is none.
    pub fn happen(self, arena: &Arena, first: usize, pages: usize) -> io::Result<u64> {
        let (at, len) = (arena.page(first), pages * PAGE);
        let offset = (first * PAGE) as u64;
        let of_file = |kind: MapFlags| {
            // SAFETY: in the place of what was there; reached by atomics only.
            unsafe { mmap(at, len, BOTH, kind | MapFlags::FIXED, &arena.file, offset) }
        };
        let advise = |advice| {
            // SAFETY: contents may go, the memory stays.
            match unsafe { madvise(at, len, advice) } {
                Err(
                    rustix::io::Errno::INVAL
                    | rustix::io::Errno::AGAIN
                    | rustix::io::Errno::NOMEM
                    | rustix::io::Errno::BUSY,
                ) => Ok(()),
                other => other,
            }
        };
        // SAFETY: in the place of what was there.
        let renew = || unsafe { mmap_anonymous(at, len, BOTH, MapFlags::PRIVATE | MapFlags::FIXED) };
        match self {
            Self::Touch => touch(arena, first, pages),
            Self::Unmap => {
                // SAFETY: new memory follows at once. No other thread of this program maps any meanwhile.
                unsafe { munmap(at, len) }?;
                renew()?;
            }
            Self::Move => {
                // SAFETY: the pages get another place, which is known to this function only.
                let moved = unsafe { away(at, len) }?;
                renew()?;
                let changed = changes(moved, pages);
                // SAFETY: no reference to it exists.
                unsafe { munmap(moved, len) }?;
                return Ok(changed);
            }
            Self::Drop => advise(Advice::LinuxDontNeed)?,
            Self::PageOut => advise(Advice::LinuxPageOut)?,
            Self::Free => advise(Advice::LinuxFree)?,
            Self::Protect => {
                // SAFETY: only cards write here, and they are refused meanwhile.
                unsafe {
                    mprotect(at, len, MprotectFlags::READ)?;
                    mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE)?;
                }
            }
            Self::Fork => fork(|| touch(arena, first, pages))?,
            Self::Collapse => collapse(arena)?,
            Self::Split => {
                collapse(arena)?;
                advise(Advice::LinuxPageOut)?;
            }
            Self::Merge => {
                renew()?;
                write(arena, first, pages, |_| 0);
                advise(Advice::LinuxMergeable)?;
            }
            Self::Unmerge => advise(Advice::LinuxUnmergeable)?,
            Self::Share => {
                of_file(MapFlags::SHARED)?;
                touch(arena, first, pages);
            }
            Self::Private => {
                of_file(MapFlags::PRIVATE)?;
            }
            Self::Punch => {
                of_file(MapFlags::SHARED)?;
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&arena.file, hole, offset, len as u64)?;
            }
            Self::Zero => {
                renew()?;
                return Ok((first..first + pages).map(|page| arena.wrong_in(page)).sum());
            }
        }
        Ok(0)
    }
}

/// Writes a word of its own into each page.
fn touch(arena: &Arena, first: usize, pages: usize) {
    write(arena, first, pages, |address| tag(address, 0));
}

/// Writes a word into each page.
fn write(arena: &Arena, first: usize, pages: usize, word: impl Fn(u64) -> u64) {
    for page in first..first + pages {
        let start = arena.page(page);
        // SAFETY: a page of the arena, which is mapped for writing but inside of an event.
        let words = unsafe { words(start) };
        words[0].store(word(start.addr() as u64), Ordering::Relaxed);
    }
}

/// Moves pages to another place, one by one: they may belong to several mappings.
///
/// # Safety
/// As for `munmap`.
unsafe fn away(at: *mut c_void, len: usize) -> rustix::io::Result<*mut c_void> {
    // SAFETY: a place is reserved, then the pages take it.
    unsafe {
        let to = mmap_anonymous(null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)?;
        for page in (0..len).step_by(PAGE) {
            rustix::mm::mremap_fixed(
                at.byte_add(page),
                PAGE,
                PAGE,
                MremapFlags::MAYMOVE,
                to.byte_add(page),
            )?;
        }
        Ok(to)
    }
}

/// How many words of pages change while they are watched.
fn changes(at: *mut c_void, pages: usize) -> u64 {
    let load = |page: usize| {
        // SAFETY: the caller's pages, mapped.
        let words = unsafe { words(at.byte_add(page * PAGE)) };
        words.iter().map(|word| word.load(Ordering::Relaxed))
    };
    let before: Vec<u64> = (0..pages).flat_map(load).collect();
    std::thread::sleep(WATCH);
    before
        .iter()
        .zip((0..pages).flat_map(load))
        .filter(|&(&before, after)| before != after)
        .count() as u64
}

/// Does something while a child shares all pages.
fn fork(meanwhile: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the child does nothing but wait for its end, which any thread's child may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => loop {
            // SAFETY: runs nothing of this program.
            unsafe { libc::pause() };
        },
        child => {
            meanwhile();
            let child = rustix::process::Pid::from_raw(child).ok_or(io::ErrorKind::NotFound)?;
            rustix::process::kill_process(child, rustix::process::Signal::KILL)?;
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())?;
            Ok(())
        }
    }
}

/// Makes an arena one mapping of small pages, then asks for a huge one; that there is no memory for it is no error.
fn collapse(arena: &Arena) -> io::Result<()> {
    const MADV_COLLAPSE: i32 = 25;
    let (at, len) = (arena.start.as_ptr(), arena.bytes());
    // SAFETY: in the place of what was there.
    unsafe { mmap_anonymous(at, len, BOTH, MapFlags::PRIVATE | MapFlags::FIXED) }?;
    touch(arena, 0, arena.pages);
    // SAFETY: contents stay.
    let _ = unsafe { libc::madvise(at, len, MADV_COLLAPSE) };
    Ok(())
}

/// Fresh pages that no card was ever told of, always in one place: [`Event::Unmap`] leaves holes for a moment.
pub struct Canary(Arena);

impl Canary {
    /// A place for them.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        Arena::new(CANARY).map(Self)
    }

    /// Its pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        CANARY
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        // SAFETY: its own pages.
        (0..CANARY).flat_map(|page| unsafe { words(self.0.page(page)) })
    }

    /// Takes new pages, as likely as not frames that something else has just given back, and writes them. The number of
    /// words that are others after a while.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self, long: Duration) -> io::Result<u64> {
        // SAFETY: in the place of what was there.
        unsafe {
            mmap_anonymous(
                self.0.start.as_ptr(),
                self.0.bytes(),
                BOTH,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        }?;
        for word in self.words() {
            word.store(SONG, Ordering::Relaxed);
        }
        std::thread::sleep(long);
        let strays = self.words().filter(|word| word.load(Ordering::Relaxed) != SONG);
        Ok(strays.count() as u64)
    }
}
