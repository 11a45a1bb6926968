//! NetVM's firmware image: bare-metal aarch64.
//!
//! This is the ground it stands on: boot, exception vectors, address translation and caches, log, clock,
//! interrupts, sleep, watchdog, panic. The NIC core and its loop are not in it yet.
#![no_std]
#![no_main]

mod arena;
mod board;
mod boot;
mod clock;
mod cpu;
mod exceptions;
mod halt;
mod interrupts;
mod log;
mod mmu;

use netvm_abi::Nanos;

/// Boot words: what a test asks for; see [`board::boot_word`].
mod wanted {
    /// Start, sleep, switch off.
    pub(crate) const SELF_TEST: u32 = 1;
    /// Read an address that is not mapped.
    pub(crate) const EXCEPTION: u32 = 2;
    /// Panic.
    pub(crate) const PANIC: u32 = 3;
    /// Hang in a loop.
    pub(crate) const HANG: u32 = 4;
    /// Use more stack than there is.
    pub(crate) const OVERFLOW: u32 = 5;
}

#[unsafe(no_mangle)]
extern "C" fn firmware_main() -> ! {
    let Some(mut arena) = arena::Arena::take() else {
        panic!("started twice");
    };
    mmu::start(&mut arena);
    let word = board::boot_word();
    if word != 0 {
        halt::power_off_on_halt();
    }
    log::info!(
        "NetVM firmware {} on qemu-virt, ABI version {}",
        env!("CARGO_PKG_VERSION"),
        netvm_abi::ABI_VERSION
    );
    log::info!(
        "translation and caches are on; {} bytes of the arena used",
        arena.used()
    );
    interrupts::start();
    match word {
        wanted::SELF_TEST => self_test(),
        wanted::EXCEPTION => {
            // SAFETY: none; that this is reported is what the test wants to see.
            let value = unsafe { core::ptr::read_volatile(0x1000_0000_usize as *const u32) };
            log::error!("read {value:#x} where nothing is mapped");
        }
        wanted::PANIC => panic!("as the boot word asks"),
        wanted::HANG => {
            interrupts::passed();
            loop {
                core::hint::spin_loop();
            }
        }
        wanted::OVERFLOW => log::error!("overflow ended with {}", overflow(1)),
        _ => {}
    }
    loop {
        interrupts::passed();
        interrupts::sleep(None, || true);
    }
}

#[inline(never)]
fn overflow(depth: u64) -> u64 {
    if core::hint::black_box(depth) == u64::MAX {
        return 0;
    }
    let filled = core::hint::black_box([depth; 256]);
    overflow(depth + 1).wrapping_add(filled.iter().sum::<u64>())
}

/// Sleeps 50 ms ten times; a wake-up that is lost leaves it to the watchdog's one second, which is too late.
fn self_test() -> ! {
    let began = clock::now();
    for _ in 0..10 {
        let until = clock::now().after(Nanos::from_millis(50));
        while clock::now() < until {
            interrupts::passed();
            interrupts::sleep(Some(until), || clock::now() < until);
        }
    }
    let took = clock::now().0 - began.0;
    assert!(
        (500_000_000..900_000_000).contains(&took),
        "ten sleeps of 50 ms took {took} ns"
    );
    log::info!("SELF TEST PASSED: ten sleeps of 50 ms took {} us", took / 1000);
    halt::halt()
}
