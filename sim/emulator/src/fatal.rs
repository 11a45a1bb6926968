//! The emulator's last words.
//!
//! The thread that ends here may be the pager, or hold a lock that the pager needs, so nothing may allocate, take the lock of standard
//! error, or touch application memory: the text is put together on the stack and handed to the kernel.

use core::fmt::{self, Write};

/// What broke, in the terms of the promises (docs/ARCHITECTURE.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// P1: the NIC reached, or was about to reach, memory that the host has taken away from it.
    StaleDma,
    /// The pager can neither answer a fault nor refuse it.
    Pager,
}

struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if let Some(slot) = self.bytes.get_mut(self.used) {
                *slot = byte;
                self.used += 1;
            }
        }
        Ok(())
    }
}

/// Writes one line to standard error and aborts the process.
#[cold]
pub fn abort(what: Fatal, detail: fmt::Arguments<'_>) -> ! {
    let mut line = Line {
        bytes: [0; 512],
        used: 0,
    };
    let title = match what {
        Fatal::StaleDma => "promise P1 broken (no stale DMA)",
        Fatal::Pager => "emulated pager cannot go on",
    };
    let _ = writeln!(line, "netvm-emulator: {title}: {detail}");
    // SAFETY: descriptor 2 is only borrowed for the call; if the program closed it, the write fails and is ignored.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line.bytes.get(..line.used).unwrap_or_default());
    std::process::abort()
}
