//! Sleeps that end on time.

use crate::{clock, interrupts};
use netvm_abi::Nanos;

/// Sleeps 50 ms ten times; a wake-up that is lost leaves it to the watchdog's one second, which is too late.
pub(crate) fn run() {
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
    crate::log::info!("ten sleeps of 50 ms took {} us", took / 1000);
}
