//! NetVM's firmware image: bare-metal aarch64.
//!
//! The ground it stands on (boot, exception vectors, address translation and caches, log, clock, interrupts,
//! sleep, watchdog, panic), and on it the NIC core and the loop over it, the same that run elsewhere ([`card`]). It
//! serves a host outside ([`serve`]), or, where a test asks for it, hosts inside of the image ([`self_test`]).
#![no_std]
#![no_main]

mod arena;
mod board;
mod boot;
mod card;
mod clock;
mod count;
mod cpu;
mod entropy;
mod exceptions;
mod halt;
mod host;
mod interrupts;
mod log;
mod memcpy;
mod mmu;
mod pci;
mod self_test;
mod serve;
mod wire;

/// Boot words: what a test asks for; see [`board::boot_word`].
mod wanted {
    /// Start, sleep, copy, switch off.
    pub(crate) const SELF_TEST: u32 = 1;
    /// Read an address that is not mapped.
    pub(crate) const EXCEPTION: u32 = 2;
    /// Panic.
    pub(crate) const PANIC: u32 = 3;
    /// Hang in a loop.
    pub(crate) const HANG: u32 = 4;
    /// Use more stack than there is.
    pub(crate) const OVERFLOW: u32 = 5;
    /// Write from card to card inside of this image.
    pub(crate) const LOOPBACK: u32 = 6;
    /// Count the instructions of a write.
    pub(crate) const COUNT: u32 = 7;
    /// Talk to the other node.
    pub(crate) const NETWORK: u32 = 8;
    /// Send over a wire that is stuck.
    pub(crate) const STUCK: u32 = 9;
}

#[unsafe(no_mangle)]
extern "C" fn firmware_main() -> ! {
    let Some(mut arena) = arena::Arena::take() else {
        panic!("started twice");
    };
    let mut map = mmu::start(&mut arena);
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
        wanted::SELF_TEST => {
            self_test::sleep::run();
            ended(self_test::copies::run());
        }
        wanted::LOOPBACK => ended(self_test::loopback::run(&mut arena)),
        wanted::NETWORK => ended(self_test::network::run(&mut arena, &mut map)),
        wanted::STUCK => ended(self_test::stuck::run(&mut arena, &mut map)),
        wanted::COUNT => ended(self_test::instructions::run(&mut arena)),
        wanted::EXCEPTION => {
            // SAFETY: none; that this is reported is what the test wants to see.
            let value = unsafe { core::ptr::read_volatile(0x6000_0000_usize as *const u32) };
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
        _ => log::warning!("idle: {}", serve::run(&mut arena, &mut map)),
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

fn ended(result: Result<(), &str>) -> ! {
    match result {
        Ok(()) => log::info!("SELF TEST PASSED"),
        Err(complaint) => log::error!("SELF TEST FAILED: {complaint}"),
    }
    halt::halt()
}
