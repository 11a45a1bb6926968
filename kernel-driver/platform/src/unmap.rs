//! Taking a range of pages from the card (thesis 4.4, promise P1).
//!
//! A platform begins with [`Host::unmap_begin`], under the lock and in the critical section in which it decides that the
//! pages go. It repeats [`step`] until the unmap is done, changes its own page tables, and calls [`Host::unmap_end`].
//!
//! **Why no access of the card is left when a step says [`Progress::Done`].** One critical section of the platform's lock
//! zaps the entries, makes a full barrier and reads the page-lock words. The card locks a page first, makes its own
//! barrier, and then looks at the entry once more. So either the card sees the zap and lets go without a DMA, or the host
//! sees the lock; then the step says [`Progress::Wait`], and a later step looks again. Until `unmap_end` the core
//! refuses to map a page of the range, so nothing comes back in between. The lock may be released between two steps for
//! that reason, and must be: the thread that holds it could keep the card's answer, or the stop of a dead card, from being
//! taken.
//!
//! **Why the marks are in time.** `page_gone` runs in the same critical section that takes an entry out of the table, so a
//! page's dirty and referenced marks are in the platform's records before `unmap_end`, and so before the platform's
//! caller may free the page (promise P3).
//!
//! **Why it ends.** A page lock lasts for one DMA. The core judges a lock that lasts longer against its deadline and then
//! declares the card dead. The step that hears of it stops the card, and the next one finds it stopped and abandons the
//! rest of the range.
//!
//! [`Host::unmap_begin`]: netvm_host::Host::unmap_begin
//! [`Host::unmap_end`]: netvm_host::Host::unmap_end

use crate::System;
use netvm_host::Progress;
use netvm_host::unmap::{Unmap, UnmapStep};

/// Goes on with an unmap. [`Progress::Wait`]: the card holds a page; pause for a few microseconds, without the lock. A
/// page event must not be cut up, so a step has no budget of pages.
pub fn step<T: System + ?Sized>(system: &T, unmap: &mut Unmap) -> Progress {
    let step = system.call(|host, platform, now| {
        host.unmap_step(platform, unmap, now, u32::MAX, &mut |gone| {
            system.page_gone(gone);
        })
    });
    match step {
        None | Some(UnmapStep::Done) => Progress::Done,
        Some(UnmapStep::Again) => Progress::Again,
        Some(UnmapStep::InUse) => Progress::Wait,
        Some(UnmapStep::CardDead) => {
            system.stop_card();
            Progress::Again
        }
    }
}

/// Steps an unmap to its end, and ends it. `pause` is called without the lock while the card holds a page.
pub fn finish<T: System + ?Sized>(system: &T, mut unmap: Unmap, mut pause: impl FnMut()) {
    loop {
        match step(system, &mut unmap) {
            Progress::Done => break,
            Progress::Again => {}
            Progress::Wait => pause(),
        }
    }
    system.call(|host, _, _| host.unmap_end(unmap));
}
