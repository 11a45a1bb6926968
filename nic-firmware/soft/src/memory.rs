//! Memory of card and driver: word spaces, bounce pages, message buffers. None of it is ever application memory.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use netvm_abi::WordIndex;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::words::SharedWords;

use rustix::io::Errno;

use crate::PAGE_BYTES;

/// Tables of the cores, on the heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        (0..len).map(make).collect()
    }
}

/// Which pages the kernel should give.
#[derive(Clone, Copy, Debug)]
enum Pages {
    /// Huge ones, if there are any: the card looks pages up at random places of its table, and would miss the processor's address
    /// cache at each.
    Huge,
    /// Small ones. The first touch of a huge page clears 2 MiB, which takes milliseconds where a hypervisor has to find the memory
    /// first. That may not happen to a thread that carries a message.
    Small,
}

/// Anonymous memory of this process that starts as zeros.
#[derive(Debug)]
struct Mapping {
    mapped: usize,
    mapped_len: usize,
    /// The first byte that is aligned to a huge page.
    start: usize,
}

impl Mapping {
    const HUGE: usize = 2 << 20;

    fn new(len: usize, pages: Pages) -> Result<Self, Errno> {
        use rustix::mm::{Advice, MapFlags, ProtFlags};
        let advice = match pages {
            Pages::Huge => Advice::LinuxHugepage,
            Pages::Small => Advice::LinuxNoHugepage,
        };
        let mapped_len = len.next_multiple_of(Self::HUGE) + Self::HUGE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice; the advice changes nothing of its contents.
        let at = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let at = rustix::mm::mmap_anonymous(core::ptr::null_mut(), mapped_len, prot, flags);
            at.inspect(|at| {
                // A kernel without huge pages says no to both, and gives small ones.
                let _ = rustix::mm::madvise(*at, mapped_len, advice);
            })
        };
        let mapped = at?.expose_provenance();
        Ok(Self {
            mapped,
            mapped_len,
            start: mapped.next_multiple_of(Self::HUGE),
        })
    }
}

/// Whether the kernel gives this process so many bytes of address space more. They are given back at once.
///
/// # Errors
/// It does not.
pub fn has_room(bytes: usize) -> Result<(), Errno> {
    Mapping::new(bytes, Pages::Small).map(drop)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let at = core::ptr::with_exposed_provenance_mut(self.mapped);
        // SAFETY: the mapping is this value's own, and every user of it held this value.
        let _ = unsafe { rustix::mm::munmap(at, self.mapped_len) };
    }
}

/// A word space that starts as zeros: the card's memory (BAR), or the driver's.
#[derive(Debug)]
pub struct WordSpace {
    memory: Mapping,
    words: usize,
}

impl WordSpace {
    /// A space of this many words.
    ///
    /// # Errors
    /// The kernel gives no memory.
    pub fn new(words: u32) -> Result<Self, Errno> {
        let words = words as usize;
        Ok(Self {
            memory: Mapping::new(words * size_of::<u32>(), Pages::Huge)?,
            words,
        })
    }

    #[inline]
    fn all(&self) -> &[AtomicU32] {
        let start = core::ptr::with_exposed_provenance(self.memory.start);
        // SAFETY: the mapping holds `words` words, aligned, zeroed at first, and reached through atomics only; it lives
        // as long as `self`.
        unsafe { core::slice::from_raw_parts(start, self.words) }
    }

    /// `len` words from `start` on; fewer where the space ends.
    #[must_use]
    pub fn part(&self, start: WordIndex, len: u32) -> &[AtomicU32] {
        let words = self.all().get(start.index()..).unwrap_or_default();
        words.get(..len as usize).unwrap_or(words)
    }
}

impl SharedWords for WordSpace {
    #[inline]
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.all().load_acquire(at)
    }

    #[inline]
    fn store_release(&self, at: WordIndex, value: u32) {
        self.all().store_release(at, value);
    }

    #[inline]
    fn full_barrier(&self) {
        self.all().full_barrier();
    }

    #[inline]
    fn bus_barrier(&self) {
        self.all().bus_barrier();
    }

    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        self.all().store_slice(at, values);
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        self.all().load_slice(at, into);
    }

    #[inline]
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        self.all().atomics(at, len)
    }
}

/// Pages that card and driver share, untouched until first used: the bounce pages.
#[derive(Debug)]
pub struct SharedPages {
    memory: Mapping,
    pages: u32,
}

impl SharedPages {
    /// So many pages.
    ///
    /// # Errors
    /// The kernel gives no memory.
    pub fn new(pages: u32) -> Result<Self, Errno> {
        Ok(Self {
            memory: Mapping::new(pages as usize * PAGE_BYTES, Pages::Small)?,
            pages,
        })
    }

    /// How many bytes they have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }

    /// Address of a page; reached by the copy module only, from several threads.
    #[must_use]
    pub fn page(&self, index: u32) -> Option<*mut u8> {
        let address = self.memory.start + index as usize * PAGE_BYTES;
        (index < self.pages).then(|| core::ptr::with_exposed_provenance_mut(address))
    }
}

/// Things that cards hand to each other and use again. Each card keeps a few ([`Stock`]); this evens them out.
#[derive(Debug, Default)]
pub struct Pool<T>(Mutex<Vec<T>>);

/// One card's things. The last returned is the next given, so that a stream keeps using the same few, which stay in the
/// processor's cache.
#[derive(Debug)]
pub struct Stock<T> {
    things: Vec<T>,
    pool: Arc<Pool<T>>,
    /// How many go to or come from the pool at once; a stock holds at most twice as many.
    batch: usize,
}

impl<T: Default> Stock<T> {
    /// An empty one, which moves `batch` things at a time to and from the pool.
    #[must_use]
    pub fn new(pool: &Arc<Pool<T>>, batch: usize) -> Self {
        Self {
            things: Vec::with_capacity(2 * batch),
            pool: Arc::clone(pool),
            batch,
        }
    }

    /// Gives one; what was in it is of no meaning.
    #[inline]
    pub fn take(&mut self) -> T {
        if let Some(thing) = self.things.pop() {
            return thing;
        }
        let mut pool = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = pool.len().saturating_sub(self.batch);
        self.things.extend(pool.drain(rest..));
        drop(pool);
        self.things.pop().unwrap_or_default()
    }

    /// Takes one back.
    #[inline]
    pub fn give(&mut self, thing: T) {
        if self.things.len() == 2 * self.batch {
            // The oldest go: the others are still in the cache.
            let mut pool = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
            pool.extend(self.things.drain(..self.batch));
        }
        self.things.push(thing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In KiB: memory of the mapping around an address, all of it, and that in huge pages.
    fn resident(address: usize) -> (u64, u64) {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let bound = |text| usize::from_str_radix(text, 16).ok();
            Some((bound(start)?..bound(end)?).contains(&address))
        };
        let mut lines = maps.lines().skip_while(|line| holds(line) != Some(true));
        let mut value = |name: &str| {
            let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
        };
        (value("Rss:"), value("AnonHugePages:"))
    }

    /// The first message that misses touches the first bounce page, while the card's turn is held.
    #[test]
    fn the_first_use_of_a_bounce_page_brings_little_memory() {
        let pages = SharedPages::new(1024).unwrap();
        let page = pages.page(7).unwrap();
        // SAFETY: the page is this test's own.
        unsafe { page.write_volatile(1) };
        let (all, huge) = resident(page.addr());
        assert_eq!(huge, 0, "KiB in huge pages");
        assert!((4..=64).contains(&all), "{all} KiB");
    }

    #[test]
    fn what_one_card_gives_another_takes() {
        let pool = Arc::new(Pool::<Box<u32>>::default());
        const BATCH: usize = 32;
        let (mut from, mut to) = (Stock::new(&pool, BATCH), Stock::new(&pool, BATCH));
        (1..=200).for_each(|number| from.give(Box::new(number)));
        assert_eq!(*from.take(), 200);
        let taken: Vec<u32> = (0..160).map(|_| *to.take()).collect();
        let old = taken.iter().filter(|number| **number != 0).count();
        assert!(old >= 128 && old % BATCH == 0, "{taken:?}");
    }
}
