//! The alias' watcher: card and pager reach only resident pages through the alias, so any fault there is a DMA to memory that was
//! taken away, and ends the process with a P1 report.
//!
//! One fault is innocent. When the application removes pages with `madvise`, the kernel goes on as soon as the pager has *read*
//! the event (that is its acknowledgement), so the pages may vanish before the pager has taken them from the card. A DMA that runs
//! in that moment belongs to a mapping whose unmap has not completed; it gets a page of zeros, which is what the page holds then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::PageKey;
use super::pager::Shared;
use super::uffd::{Event, Refusal};
use crate::fatal::{self, Fatal};

/// Runs until `stop` is readable.
pub(super) fn run(shared: &Shared) {
    loop {
        let mut fds = [
            PollFd::new(&shared.alias_uffd, PollFlags::IN),
            PollFd::new(&shared.stop, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => fatal::abort(Fatal::Pager, format_args!("poll on the alias: {errno}")),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        loop {
            match shared.alias_uffd.read_event() {
                Ok(Some(Event::Fault { addr, write, .. })) => answer(shared, addr, write),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(errno) => fatal::abort(Fatal::Pager, format_args!("reading the alias' faults: {errno}")),
            }
        }
    }
}

/// Whether the application has removed a page with `madvise`. The pager's thread may have read the event, so that the page is gone,
/// and not have noted it yet: then this waits for it.
fn is_removed(shared: &Shared, key: PageKey) -> bool {
    let before = shared.reading.load(Ordering::SeqCst);
    while before % 2 == 1 && shared.reading.load(Ordering::SeqCst) == before {
        std::thread::sleep(Duration::from_micros(10));
    }
    shared.maps().is_removed(key)
}

fn answer(shared: &Shared, addr: usize, write: bool) {
    let Some(key) = shared.maps().alias_page(addr) else {
        fatal::abort(
            Fatal::StaleDma,
            format_args!("access to {addr:#x}, in the alias of a region that is gone"),
        );
    };
    let removed = is_removed(shared, key);
    if !removed {
        let what = if write { "write" } else { "read" };
        fatal::abort(
            Fatal::StaleDma,
            format_args!(
                "{what} of page {} of region {} through the alias, which no frame holds",
                key.page.0, key.region.0
            ),
        );
    }
    shared.counts.refilled.fetch_add(1, Ordering::Relaxed);
    match shared.alias_uffd.zero_page(addr) {
        Ok(()) => {}
        Err(Refusal::Exists | Refusal::Again | Refusal::Gone) => {
            let _ = shared.alias_uffd.wake(addr);
        }
        Err(Refusal::Other(errno)) => {
            fatal::abort(Fatal::Pager, format_args!("zero page in the alias: {errno}"))
        }
    }
}
