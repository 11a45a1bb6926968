// SPDX-License-Identifier: GPL-2.0

//! How a card is withdrawn from this host: for good, when it or the module goes, and for a while, when the machine sleeps
//! or the bus has failed.
//!
//! Either way the card lets go of all memory of this host, or its bus mastering goes off, and its ports have lost their
//! card. For good, everything that concerns the device ends as well (`docs/decisions/0019-judging-and-losing-a-card.md`).
//! For a while, files and mappings stay, and the card's thread rests (`docs/decisions/0021-sleep-and-bus-errors.md`).

use crate::event::Thread;
use crate::host_card::{Glue, HostCard};
use crate::shim;
use crate::words::{Bar, CardRef};
use core::sync::atomic::Ordering;
use kernel::prelude::*;
use netvm_abi::attach::DriverPlace;
use netvm_abi::bar::header;
use netvm_abi::words::SharedWords;
use netvm_host::host::CardFailure;
use netvm_host_platform::notice;

impl HostCard {
    /// Withdraws the card and rests. The ports that are open have lost their card, as by a reset of it; when they are closed
    /// the card is attached again, by the code that waits for any dead card.
    pub(crate) fn rest(&self) {
        let silent = self.silence();
        self.let_die();
        pr_info!(
            "netvm{}: the card is withdrawn{}\n",
            self.number(),
            if silent {
                ""
            } else {
                ", but may still use memory of this host"
            }
        );
        // SAFETY: the card lives.
        unsafe { shim::nv_card_rests(self.shim.as_ptr(), silent) };
        Thread::rest();
        pr_info!("netvm{}: the card is looked for again\n", self.number());
    }

    /// Asks the card to let go of all memory of this host; false: it has not, in time. Sleeps.
    fn ask_to_let_go(&self) -> bool {
        let wait = self.with(|host, glue, _| {
            DriverPlace::withdraw(&glue.bar);
            glue.bar.ring();
            host.wait_for_card()
        });
        loop {
            let (gone, used, overdue) = self.with(|host, glue, now| {
                let overdue = host.is_overdue(glue, wait, CardFailure::AnswerDeadline, now);
                let gone = glue.bar.load_acquire(header::MAGIC) == u32::MAX;
                (gone, DriverPlace::is_in_use(&glue.bar), overdue)
            });
            // Of a card that was pulled out all words read as ones: not as 0.
            if !used {
                return true;
            }
            if gone || overdue.is_some() {
                return false;
            }
            // SAFETY: this thread holds no lock.
            unsafe { shim::nv_pause(true) };
        }
    }

    /// The card or the module goes. When this returns no port is open, nothing is mapped for the card, and processes that
    /// keep their files open wait for nothing.
    pub(crate) fn leave(&self) {
        // SAFETY: added by this thread. It cannot be opened from here on.
        unsafe { shim::nv_device_close(self.shim.as_ptr()) };
        self.get_memory_back();
        self.with(|host, glue, _| {
            glue.bar.take_away();
            host.card_gone();
        });
        self.let_die();
        // SAFETY: the card lives. Processes see the driver's memory as it is now, and a page of nothing for the BAR; then
        // their ports end, and with them the last mappings of their pages for the card.
        unsafe {
            shim::nv_device_revoke(self.shim.as_ptr());
            shim::nv_device_end_files(self.shim.as_ptr());
        }
        self.detach();
    }

    /// The card is dead from now on, and all that waits for it ends.
    fn let_die(&self) {
        self.with(|host, _, _| host.card_gone());
        // The core tells of a death once, and not where another thread has stopped the card by now. So the card is stopped
        // in any case: only that ends what waits for it.
        notice::hear(self);
        self.stop();
        // Imports that have failed are told after that.
        notice::hear(self);
    }

    /// The card reaches nothing of this host's any more.
    pub(crate) fn detach(&self) {
        let mut core = self.lock();
        core.glue.shared.detach();
        core.glue.bounce.detach();
    }

    /// Has the card let go of this host's memory, and turns its bus mastering off; false: it may still use that memory.
    fn silence(&self) -> bool {
        // A card that answers has let go of everything; one that does not has to be stopped.
        let let_go = self.ask_to_let_go();
        // SAFETY: the card lives.
        let stopped = unsafe { shim::nv_card_stop(self.shim.as_ptr()) };
        self.quiet.store(let_go || stopped, Ordering::Release);
        let_go || stopped
    }

    /// Has the card let go of the driver's memory; where it is not certain that the card no longer writes there, that
    /// memory is kept for ever.
    pub(crate) fn get_memory_back(&self) {
        if !self.silence() {
            let bytes = self.with(|_, glue, _| glue.keep_for_ever());
            pr_warn!(
                "the card's DMA is not proven to have stopped: {} KiB of driver memory are kept for ever\n",
                bytes >> 10
            );
        }
    }
}

impl Glue {
    /// The memory stays allocated for ever. Returns its bytes.
    fn keep_for_ever(&mut self) -> usize {
        self.shared.keep();
        self.bounce.keep();
        self.shared.bytes() + self.bounce.bytes()
    }
}

/// Rests while no card is attached. It may be one that still uses the memory of a driver that was here before.
pub(crate) fn rest_without(shim: &CardRef) {
    let bar = Bar::new(shim.clone());
    let told = bar.load_acquire(header::DRIVER_READY);
    // SAFETY: the card lives.
    let stopped = unsafe { shim::nv_card_stop(shim.as_ptr()) };
    // All words of a card that is not there read as ones.
    let silent = stopped || told == 0 || told == u32::MAX;
    // SAFETY: as above.
    unsafe { shim::nv_card_rests(shim.as_ptr(), silent) };
    Thread::rest();
    // SAFETY: as above.
    unsafe { shim::nv_card_start(shim.as_ptr()) };
}
