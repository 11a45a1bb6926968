//! The log: lines with a time and a level on the UART.

use arm_pl011_uart::{PL011Registers, Uart, UniqueMmioPointer};
use core::fmt::{Arguments, Write as _};
use core::ptr::NonNull;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The card cannot go on, or lost something.
    Error,
    /// Someone should look.
    Warn,
    /// What an operator wants to see once.
    Info,
}

/// Lines above this level are not written.
const LIMIT: Level = Level::Info;

/// Writes a line. Interrupts are masked meanwhile: lines do not mix.
pub(crate) fn write(level: Level, text: Arguments<'_>) {
    if level > LIMIT {
        return;
    }
    let Some(registers) = NonNull::new(crate::board::UART as *mut PL011Registers) else {
        return;
    };
    let enabled = crate::cpu::mask_interrupts();
    // SAFETY: the board's UART, mapped as device memory. Only this function touches it; interrupts are
    // masked and one core runs, so nothing else runs here but an exception of this very code, which
    // never returns to it.
    let mut uart = Uart::new(unsafe { UniqueMmioPointer::new(registers) });
    let name = match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
    };
    let micros = crate::clock::now().0 / 1000;
    // A UART has no errors to give.
    let _ = writeln!(
        uart,
        "[{:>5}.{:06}] {name}: {text}\r",
        micros / 1_000_000,
        micros % 1_000_000
    );
    if enabled {
        crate::cpu::unmask_interrupts();
    }
}

macro_rules! error {
    ($($text:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($text)*)) };
}
macro_rules! warning {
    ($($text:tt)*) => { $crate::log::write($crate::log::Level::Warn, format_args!($($text)*)) };
}
macro_rules! info {
    ($($text:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($text)*)) };
}
pub(crate) use {error, info, warning};
