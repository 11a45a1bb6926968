//! The pager under real threads, against models of what memory must hold.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netvm_emulator::copy;
use netvm_emulator::vm::{FaultError, Intent, PAGE_SIZE, PageIndex, PageKey, Pager, PagerConfig, RegionId};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use support::FakeCard;

/// Ends other threads' loops with its own thread, however that ends: a failed assertion must not leave them running.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Machine {
    pager: Pager,
    card: Arc<FakeCard>,
    region: RegionId,
    base: *mut u8,
}

// SAFETY: the tests reach the region through atomics and the copy module only.
unsafe impl Sync for Machine {}

impl Machine {
    /// `map_on_fault`: the card learns of a page as soon as the application faults it in.
    fn new(frames: u32, pages: u64, map_on_fault: bool) -> Self {
        let card = Arc::new(FakeCard::new(map_on_fault));
        let config = PagerConfig {
            frames,
            swap_directory: std::env::temp_dir(),
        };
        let pager = Pager::new(&config, card.clone()).expect("userfaultfd");
        card.attach(pager.frames());
        let (region, base) = pager.add_region(pages).expect("region");
        Self {
            pager,
            card,
            region,
            base,
        }
    }

    fn key(&self, page: u64) -> PageKey {
        PageKey {
            region: self.region,
            page: PageIndex(page),
        }
    }

    /// A word of the application's mapping.
    fn word(&self, page: u64, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_SIZE / 8);
        // SAFETY: inside the region, aligned, and only ever reached as an atomic or by the copy module.
        unsafe { AtomicU64::from_ptr(self.base.add(page as usize * PAGE_SIZE + index * 8).cast()) }
    }

    /// A write by the card: to the mapped page, or, like a bounced message, by the host through a pinned page.
    fn card_write(&self, page: u64, index: usize, value: u64) {
        let key = self.key(page);
        if self.card.write(self.pager.frames(), key, index * 8, value) {
            return;
        }
        let pinned = self.pager.fault_in(key, Intent::Write).expect("page in");
        assert!(pinned.writable());
        // SAFETY: the page is pinned; the word lies in it.
        unsafe { copy::copy_in(&value.to_ne_bytes(), pinned.alias().add(index * 8)) };
        pinned.mark_dirty();
        self.card.map(self.pager.frames(), key, pinned.frame(), true);
    }

    /// Writes of the card to word 1 of pages below this one, in an order that follows from the seed.
    fn card_writes_until(&self, stop: &AtomicBool, seed: u64, pages: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        while !stop.load(Ordering::Relaxed) {
            self.card_write(random.random_range(0..pages), 1, 3);
        }
    }

    fn card_read(&self, page: u64, index: usize) -> u64 {
        let key = self.key(page);
        if let Some(value) = self.card.read(self.pager.frames(), key, index * 8) {
            return value;
        }
        let pinned = self.pager.fault_in(key, Intent::Read).expect("page in");
        let mut bytes = [0; 8];
        // SAFETY: as above.
        unsafe { copy::copy_out(pinned.alias().add(index * 8), &mut bytes) };
        self.card
            .map(self.pager.frames(), key, pinned.frame(), pinned.writable());
        u64::from_ne_bytes(bytes)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.pager.remove_region(self.region);
    }
}

#[test]
fn memory_survives_eviction_and_stays_within_its_limit() {
    const PAGES: u64 = 96;
    let machine = Machine::new(16, PAGES, false);
    // Each thread owns one word of every page, so pages are written by several threads while they are evicted.
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let machine = &machine;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread as u64);
                let mut model = vec![0u64; PAGES as usize];
                for step in 1..=4000u64 {
                    let page = random.random_range(0..PAGES);
                    let word = machine.word(page, thread * 7);
                    assert_eq!(
                        word.load(Ordering::Relaxed),
                        model[page as usize],
                        "page {page}, step {step}"
                    );
                    if random.random_bool(0.5) {
                        word.store(step, Ordering::Relaxed);
                        model[page as usize] = step;
                    }
                }
            });
        }
    });
    let stats = machine.pager.stats();
    assert!(stats.max_resident <= 16, "{stats:?}");
    assert!(
        stats.evictions > 1000 && stats.swap_reads > 1000 && stats.protect_faults > 0,
        "{stats:?}"
    );
}

/// A walk takes a fault for a run of pages, not for each, also where room must be made; others that use the same pages
/// at random meanwhile, card included, find what they left.
#[test]
fn a_walk_is_brought_in_ahead_and_nothing_is_lost() {
    const FRAMES: u64 = 1024;
    const PAGES: u64 = 4 * FRAMES;
    let machine = Machine::new(FRAMES as u32, PAGES, true);
    let alone = |walk: &dyn Fn(u64)| {
        let before = machine.pager.stats();
        (0..PAGES).for_each(walk);
        let after = machine.pager.stats();
        let faults = after.app_faults - before.app_faults;
        assert!(faults < PAGES / 8, "{faults} faults for {PAGES} pages");
        assert!(after.max_resident <= FRAMES, "{after:?}");
        assert_eq!(
            after.protect_faults, before.protect_faults,
            "brought in for the wrong use"
        );
    };
    alone(&|page| machine.word(page, 0).store(page + 1, Ordering::Relaxed));
    alone(&|page| assert_eq!(machine.word(page, 0).load(Ordering::Relaxed), page + 1));

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (seed, by_card) in [(7, false), (8, true)] {
            let (machine, stop) = (&machine, &stop);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed);
                let mut model = vec![0u64; PAGES as usize];
                let index = seed as usize;
                for step in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let page = random.random_range(0..PAGES);
                    let found = match by_card {
                        true => machine.card_read(page, index),
                        false => machine.word(page, index).load(Ordering::Relaxed),
                    };
                    assert_eq!(found, model[page as usize], "page {page}, step {step}");
                    match by_card {
                        true => machine.card_write(page, index, step),
                        false => machine.word(page, index).store(step, Ordering::Relaxed),
                    }
                    model[page as usize] = step;
                }
            });
        }
        let _ends = Ends(&stop);
        for round in 2..5 {
            for page in 0..PAGES {
                let word = machine.word(page, 0);
                assert_eq!(word.swap(page + round, Ordering::Relaxed), page + round - 1);
            }
        }
    });
}

/// The card that walks misses a run of pages once, not each of them, and finds what it wrote where the pager made room meanwhile.
#[test]
fn a_walk_of_the_card_is_brought_in_ahead() {
    const FRAMES: u64 = 1024;
    const PAGES: u64 = 4 * FRAMES;
    let machine = Machine::new(FRAMES as u32, PAGES, true);
    // Pages that are there already do not end a walk.
    (0..PAGES)
        .step_by(100)
        .for_each(|page| machine.word(page, 1).store(page, Ordering::Relaxed));
    let mut misses = 0;
    for page in 0..PAGES {
        if !machine
            .card
            .write(machine.pager.frames(), machine.key(page), 0, page + 1)
        {
            misses += 1;
            machine.card_write(page, 0, page + 1);
        }
    }
    for page in 0..PAGES {
        misses += u64::from(!machine.card.is_mapped(machine.key(page)));
        assert_eq!(machine.card_read(page, 0), page + 1);
    }
    let stats = machine.pager.stats();
    assert!(misses < PAGES / 2, "{misses} misses for {PAGES} pages, twice");
    assert!(
        stats.max_resident <= FRAMES && stats.nic_page_ins > PAGES,
        "{stats:?}"
    );
}

/// Pages that leave together are all protected before the first is copied out: a write in between would be lost.
#[test]
fn pages_that_leave_together_lose_no_write() {
    const PAGES: u64 = 1100;
    let machine = Machine::new(1024, PAGES, false);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let machine = &machine;
            scope.spawn(move || {
                let mut model = vec![0u64; PAGES as usize];
                let mut random = SmallRng::seed_from_u64(60 + thread as u64);
                for _ in 0..30_000 {
                    let page = random.random_range(0..PAGES);
                    for _ in 0..10 {
                        let before = machine.word(page, thread).fetch_add(1, Ordering::Relaxed);
                        assert_eq!(before, model[page as usize], "page {page} lost a write");
                        model[page as usize] += 1;
                    }
                }
            });
        }
    });
    let stats = machine.pager.stats();
    assert!(stats.evictions > PAGES && stats.max_resident <= 1024, "{stats:?}");
}

#[test]
fn a_page_is_protected_before_it_is_copied_out() {
    // Few pages over the limit and writers that never stop: a write between copy and removal would be lost.
    let machine = Machine::new(8, 12, false);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let machine = &machine;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(40 + thread as u64);
                let mut model = [0u64; 12];
                for _ in 0..600 {
                    let page = random.random_range(0..12u64);
                    for _ in 0..50 {
                        let before = machine.word(page, thread).fetch_add(1, Ordering::Relaxed);
                        assert_eq!(before, model[page as usize], "page {page} lost a write");
                        model[page as usize] += 1;
                    }
                }
            });
        }
    });
    assert!(machine.pager.stats().evictions > 100);
}

#[test]
fn application_and_card_share_pages_through_swap() {
    const PAGES: u64 = 64;
    for map_on_fault in [false, true] {
        let machine = Machine::new(16, PAGES, map_on_fault);
        std::thread::scope(|scope| {
            for thread in 0..2usize {
                let machine = &machine;
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread as u64);
                    let mut model = vec![0u64; PAGES as usize];
                    for step in 1..=3000 {
                        let page = random.random_range(0..PAGES);
                        assert_eq!(
                            machine.word(page, thread).load(Ordering::Relaxed),
                            model[page as usize]
                        );
                        if random.random_bool(0.3) {
                            machine.word(page, thread).store(step, Ordering::Relaxed);
                            model[page as usize] = step;
                        }
                    }
                });
                scope.spawn(move || {
                    let word = 100 + thread;
                    let mut random = SmallRng::seed_from_u64(900 + thread as u64);
                    let mut model = vec![0u64; PAGES as usize];
                    for step in 1..=3000 {
                        let page = random.random_range(0..PAGES);
                        if random.random_bool(0.5) {
                            machine.card_write(page, word, step);
                            model[page as usize] = step;
                        } else {
                            assert_eq!(machine.card_read(page, word), model[page as usize], "page {page}");
                        }
                    }
                });
            }
        });
        let stats = machine.pager.stats();
        assert!(stats.max_resident <= 16, "{stats:?}");
        assert!(
            stats.evictions > 500 && stats.nic_page_ins > 100 && stats.nic_dirty_evictions > 0,
            "{stats:?}"
        );
    }
}

#[test]
fn what_only_the_card_wrote_is_dirty() {
    let machine = Machine::new(8, 64, false);
    // Brought in for writing, then written by DMA alone: only the card's dirty bit tells.
    let pinned = machine
        .pager
        .fault_in(machine.key(0), Intent::Write)
        .expect("page in");
    machine
        .card
        .map(machine.pager.frames(), machine.key(0), pinned.frame(), true);
    drop(pinned);
    assert!(
        machine
            .card
            .write(machine.pager.frames(), machine.key(0), 0, 4711)
    );
    for page in 1..64 {
        assert_eq!(machine.word(page, 0).load(Ordering::Relaxed), 0);
    }
    assert!(
        !machine.card.is_mapped(machine.key(0)),
        "page 0 should have been evicted"
    );
    assert_eq!(machine.word(0, 0).load(Ordering::Relaxed), 4711);
    let stats = machine.pager.stats();
    assert_eq!(
        (stats.nic_dirty_evictions, stats.swap_writes),
        (1, 1),
        "{stats:?}"
    );
}

#[test]
fn pages_never_written_cost_no_swap_and_are_read_only_for_the_card() {
    let machine = Machine::new(8, 64, true);
    for page in 0..64 {
        assert_eq!(machine.word(page, 3).load(Ordering::Relaxed), 0);
    }
    let mut seen = 0;
    machine
        .pager
        .for_each_resident(machine.region, 0..64, |resident| {
            seen += 1;
            assert!(
                !resident.writable,
                "page {:?} is as good as the zero page",
                resident.page
            );
        });
    assert_eq!(seen, 8);
    // An application write makes the page the card's as well.
    machine.word(63, 0).store(5, Ordering::Relaxed);
    assert!(machine.card.write(machine.pager.frames(), machine.key(63), 8, 6));
    assert_eq!(machine.word(63, 1).load(Ordering::Relaxed), 6);
    let stats = machine.pager.stats();
    assert_eq!((stats.swap_writes, stats.swap_reads), (0, 0), "{stats:?}");
}

#[test]
fn a_page_that_the_card_uses_stays() {
    let machine = Machine::new(16, 400, false);
    machine.card_write(0, 0, 1);
    let page_ins = machine.pager.stats().nic_page_ins;
    for page in 1..400 {
        // The application streams through memory while the card keeps using one page.
        machine.word(page, 0).store(page, Ordering::Relaxed);
        machine.card_write(0, 0, page);
    }
    let stats = machine.pager.stats();
    assert!(
        stats.nic_page_ins - page_ins <= 2,
        "the card's page was evicted again and again: {stats:?}"
    );
    assert!(stats.second_chances > 10, "{stats:?}");
}

#[test]
fn munmap_takes_pages_from_the_card_and_refuses_new_ones() {
    let machine = Machine::new(16, 12, false);
    for page in 0..12 {
        machine.card_write(page, 0, page + 1);
    }
    // SAFETY: pages 4 to 7 are not used by this test afterwards.
    unsafe { rustix::mm::munmap(machine.base.add(4 * PAGE_SIZE).cast(), 4 * PAGE_SIZE).unwrap() };
    let refused = wait_for(|| machine.pager.fault_in(machine.key(5), Intent::Write).err());
    assert_eq!(refused, FaultError::Gone);
    wait_for(|| (machine.pager.stats().unmapped == 4).then_some(()));
    assert!(!machine.card.is_mapped(machine.key(4)));
    assert_eq!(
        machine.pager.stats().resident,
        8,
        "frames of unmapped pages are free again"
    );
    assert_eq!(machine.word(3, 0).load(Ordering::Relaxed), 4);
    assert_eq!(machine.word(8, 0).load(Ordering::Relaxed), 9);
}

#[test]
fn mremap_moves_the_data_but_the_card_does_not_follow() {
    let machine = Machine::new(8, 24, false);
    for page in 0..24 {
        machine.card_write(page, 0, page + 1);
    }
    let bytes = 24 * PAGE_SIZE;
    // SAFETY: the whole region moves; the old address is not used afterwards.
    let moved: *mut u8 = unsafe {
        let room = rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            bytes,
            rustix::mm::ProtFlags::empty(),
            rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
        );
        let room = room.unwrap();
        rustix::mm::mremap_fixed(
            machine.base.cast(),
            bytes,
            bytes,
            rustix::mm::MremapFlags::MAYMOVE,
            room,
        )
        .unwrap()
        .cast()
    };
    wait_for(|| (machine.pager.stats().moved == 24).then_some(()));
    for page in 0..24 {
        assert!(!machine.card.is_mapped(machine.key(page)));
        assert_eq!(
            machine.pager.fault_in(machine.key(page), Intent::Read).err(),
            Some(FaultError::Gone)
        );
        // SAFETY: inside the moved mapping.
        let word = unsafe { AtomicU64::from_ptr(moved.add(page as usize * PAGE_SIZE).cast()) };
        assert_eq!(
            word.load(Ordering::Relaxed),
            page + 1,
            "page {page} after the move"
        );
    }
}

#[test]
fn madvise_under_dma_is_no_broken_promise() {
    const PAGES: u64 = 32;
    let machine = Machine::new(16, PAGES, false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (machine, stop) = (&machine, &stop);
        for seed in 0..2 {
            scope.spawn(move || machine.card_writes_until(stop, seed, PAGES));
        }
        scope.spawn(move || {
            let _ends = Ends(stop);
            let mut random = SmallRng::seed_from_u64(77);
            for round in 0..1500u64 {
                let page = random.random_range(0..PAGES - 4);
                let advice = match round % 2 {
                    0 => rustix::mm::Advice::LinuxRemove,
                    _ => rustix::mm::Advice::LinuxDontNeed,
                };
                // SAFETY: the memory holds atomics whose values this test does not rely on across the call.
                unsafe {
                    rustix::mm::madvise(
                        machine.base.add(page as usize * PAGE_SIZE).cast(),
                        4 * PAGE_SIZE,
                        advice,
                    )
                    .unwrap();
                }
                // What is written after madvise has returned stays, whatever the pager does meanwhile.
                machine.word(page, 2).store(round, Ordering::Relaxed);
                for other in 0..PAGES {
                    std::hint::black_box(machine.word(other, 0).load(Ordering::Relaxed));
                }
                assert_eq!(machine.word(page, 2).load(Ordering::Relaxed), round);
            }
        });
    });
    let stats = machine.pager.stats();
    assert!(stats.removed > 1000 && stats.max_resident <= 16, "{stats:?}");
}

/// The pager hears of an `madvise` as it lets it go on. It may forget the pages later than the application writes to them anew, and
/// the card brings them back, or has them taken away, at any moment between.
#[test]
fn what_is_written_after_madvise_stays() {
    const PAGES: u64 = 12;
    let machine = Machine::new(8, PAGES, false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (machine, stop) = (&machine, &stop);
        for seed in 0..2 {
            scope.spawn(move || machine.card_writes_until(stop, seed, PAGES));
        }
        let _ends = Ends(stop);
        for round in 1..=2000u64 {
            let advice = match round % 4 {
                0 => rustix::mm::Advice::LinuxDontNeed,
                _ => rustix::mm::Advice::LinuxRemove,
            };
            let first = round % (PAGES - 1);
            // SAFETY: the memory holds atomics whose values this test does not rely on across the call.
            unsafe {
                let at = machine.base.add(first as usize * PAGE_SIZE);
                rustix::mm::madvise(at.cast(), 2 * PAGE_SIZE, advice).unwrap();
            }
            for page in [first, first + 1] {
                machine.word(page, 2).store(round, Ordering::Relaxed);
            }
            for page in [first, first + 1, first] {
                std::thread::yield_now();
                assert_eq!(machine.word(page, 2).load(Ordering::Relaxed), round);
            }
        }
    });
    let stats = machine.pager.stats();
    assert!(stats.removed > 1000 && stats.refilled > 0, "{stats:?}");
}

#[test]
fn removed_pages_read_zero() {
    let machine = Machine::new(8, 32, false);
    for page in 0..32 {
        machine.word(page, 0).store(9, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe {
        rustix::mm::madvise(
            machine.base.cast(),
            32 * PAGE_SIZE,
            rustix::mm::Advice::LinuxRemove,
        )
        .unwrap()
    };
    for page in 0..32 {
        assert_eq!(machine.word(page, 0).load(Ordering::Relaxed), 0, "page {page}");
    }
}

#[test]
fn regions_come_and_go_under_load() {
    let machine = Machine::new(16, 32, false);
    std::thread::scope(|scope| {
        let machine = &machine;
        for thread in 0..3u64 {
            scope.spawn(move || {
                for round in 0..60u64 {
                    let (region, base) = machine.pager.add_region(16).unwrap();
                    assert!(
                        machine.card.note(region),
                        "the last region of this number is forgotten"
                    );
                    for page in 0..16usize {
                        // SAFETY: this thread's own region.
                        let word = unsafe { AtomicU64::from_ptr(base.add(page * PAGE_SIZE).cast()) };
                        assert_eq!(
                            word.swap(round * 16 + thread, Ordering::Relaxed),
                            0,
                            "a new region is zero"
                        );
                    }
                    for page in 0..16usize {
                        // SAFETY: this thread's own region.
                        let word = unsafe { AtomicU64::from_ptr(base.add(page * PAGE_SIZE).cast()) };
                        assert_eq!(word.load(Ordering::Relaxed), round * 16 + thread);
                    }
                    assert!(
                        machine.card.has_note(region),
                        "no other region's end takes it away"
                    );
                    machine.pager.remove_region(region);
                }
            });
        }
    });
    let stats = machine.pager.stats();
    assert!(stats.resident <= 16 && stats.evictions > 0, "{stats:?}");
}

fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..5000 {
        if let Some(value) = condition() {
            return value;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("waited five seconds in vain");
}
