//! Delivers a notification (thesis 6.1): called in sequence order, when everything earlier of the
//! sender has landed.
//!
//! **Event counts.** The signal count is raised, its shadow stored, then a full barrier, then the
//! NIC looks how far the application has read its queue. If the number's entry is still there, it
//! stands for this signal too. The application, on taking an entry, stores its read word, then a
//! full barrier, then compares counts. So (Dekker again) either the NIC sees the entry taken and
//! makes a new one, or the application sees the new count: no signal is lost, and each number has
//! at most one entry.
//!
//! **Wake-ups.** After the stores and the barrier the NIC loads the interrupt enable bit (or
//! `WAKE_ON_QUEUE`). An application that wants to sleep sets it, then a barrier, then looks at
//! the counts (or the queue) once more. Either it sees the signal and stays awake, or the NIC sees
//! the bit and interrupts.
//!
//! **Over a bus** the NIC's stores to the area and the application's to the block are posted, so both sides
//! may load old values behind their barriers. The application makes up for it and the NIC does nothing more: a read
//! across the bus when the application runs dry or wants to sleep, before it compares or looks once more.
//! `docs/decisions/0015-posted-stores.md` has the argument.

use super::{NOTIFICATION_ENTRIES, Port};
use crate::env::Env;
use crate::platform::Platform;
use netvm_abi::bar::port::{NOTIFICATION_READ, SIGNALLED, WAKE_ON_QUEUE};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::notification::{interrupt_bit, one_shot_room};
use netvm_abi::port_area::{NOTIFICATION_WRITE, NOTIFICATIONS, SHADOW_SIGNALS};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{NotificationId, WordIndex};

/// Where a port's notification words are. The steps on shared words are here, apart from the state
/// machine, so that a model checker runs the very code that ships.
#[derive(Clone, Copy, Debug)]
pub struct NotificationPlace {
    /// The port's block in NIC memory.
    pub block: WordIndex,
    /// The port's area in host memory.
    pub area: WordIndex,
}

impl NotificationPlace {
    /// Raises a signal count and its shadow; gives, from after the barrier, how many queue entries
    /// the application has taken.
    pub fn raise<B, H>(&self, bar: &B, shared: &H, number: NotificationId) -> u32
    where
        B: SharedWords + ?Sized,
        H: SharedWords + ?Sized,
    {
        let signalled = self.block.plus(SIGNALLED.0 + number.0);
        let count = bar.load_acquire(signalled).wrapping_add(1);
        bar.store_release(signalled, count);
        if !mutant::is(Mutant::ShadowKept) || !count.is_multiple_of(8) {
            shared.store_release(self.area.plus(SHADOW_SIGNALS.0 + number.0), count);
        }
        shared.full_barrier();
        self.read(bar)
    }

    /// How many queue entries the application has taken.
    pub fn read<B: SharedWords + ?Sized>(&self, bar: &B) -> u32 {
        bar.load_acquire(self.block.plus(NOTIFICATION_READ.0))
    }

    /// Writes the entry at `position` and announces it. Returns whether the application wants to be
    /// woken for any entry.
    pub fn put<B, H>(&self, bar: &B, shared: &H, position: u32, number: NotificationId) -> bool
    where
        B: SharedWords + ?Sized,
        H: SharedWords + ?Sized,
    {
        let slot = position % NOTIFICATION_ENTRIES;
        shared.store_release(self.area.plus(NOTIFICATIONS.0 + slot), number.0);
        shared.store_release(self.area.plus(NOTIFICATION_WRITE.0), position.wrapping_add(1));
        shared.full_barrier();
        bar.load_acquire(self.block.plus(WAKE_ON_QUEUE.0)) == 1
    }

    /// Whether the application wants to be woken for this number; after [`raise`](Self::raise).
    pub fn wakes<B: SharedWords + ?Sized>(&self, bar: &B, number: NotificationId) -> bool {
        interrupt_bit(number).is_some_and(|(word, bit)| bar.load_acquire(self.block.plus(word.0)) & bit != 0)
    }
}

impl Port {
    /// Delivers the signal of an event count. `copies` are the NIC's copies of the notification queues of all ports.
    #[inline(always)]
    pub(crate) fn notify_event<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        copies: &mut [u16],
        number: NotificationId,
    ) {
        let place = self.notification_place(env);
        env.counters.notifications_delivered += 1;
        let read = place.raise(p.bar(), p.shared(), number);
        if read != self.notification_read || !self.is_queued(number.0) {
            return self.announce(p, env, copies, number, read);
        }
        env.counters.notifications_coalesced += 1;
        if place.wakes(p.bar(), number) {
            env.interrupt_port(p, self.id);
        }
    }

    /// The queue has moved, or has no entry of an event count whose signal has been raised.
    #[inline(never)]
    fn announce<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        copies: &mut [u16],
        number: NotificationId,
        read: u32,
    ) {
        self.note_read(read, copies);
        if self.is_queued(number.0) {
            env.counters.notifications_coalesced += 1;
        } else {
            self.set_queued(number.0, true);
            self.enqueue(p, env, copies, number);
        }
        if self.notification_place(env).wakes(p.bar(), number) {
            env.interrupt_port(p, self.id);
        }
    }

    /// Delivers a one-shot notification.
    ///
    /// # Errors
    /// [`Status::QueueFull`] when the one-shot part of the queue is full.
    pub(crate) fn notify_one_shot<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        copies: &mut [u16],
        number: NotificationId,
    ) -> Result<(), Status> {
        let read = self.notification_place(env).read(p.bar());
        self.note_read(read, copies);
        if self.one_shots >= one_shot_room(NOTIFICATION_ENTRIES) {
            env.counters.one_shot_refused += 1;
            return Err(Status::QueueFull);
        }
        if mutant::is(Mutant::OneShotLost) {
            return Ok(());
        }
        self.one_shots += 1;
        env.counters.one_shot_delivered += 1;
        self.enqueue(p, env, copies, number);
        Ok(())
    }

    /// Adds an entry to the queue, and wakes an application that waits for any.
    #[inline(never)]
    fn enqueue<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        copies: &mut [u16],
        number: NotificationId,
    ) {
        let position = self.notification_write;
        self.notification_write = position.wrapping_add(1);
        if let Some(copy) = copies.get_mut(self.copy_of(position % NOTIFICATION_ENTRIES)) {
            *copy = if number.is_one_shot() {
                ONE_SHOT
            } else {
                number.0 as u16
            };
        }
        if self
            .notification_place(env)
            .put(p.bar(), p.shared(), position, number)
        {
            env.interrupt_port(p, self.id);
        }
    }

    fn notification_place<S: Storage>(&self, env: &Env<S>) -> NotificationPlace {
        NotificationPlace {
            block: env.bar.port(self.id),
            area: env.shared.port_area(self.id),
        }
    }
}

/// Stands in the copy of a queue for any one-shot number.
const ONE_SHOT: u16 = u16::MAX;

impl Port {
    /// The application has taken entries up to `read`.
    ///
    /// The NIC knows what the entries were from its own copy: what the application may write is not
    /// believed. A number that cannot be is ignored: it harms only its own queue. One step for each
    /// entry ever made, so O(1) a notification; at most a whole queue at once.
    fn note_read(&mut self, read: u32, copies: &[u16]) {
        let waiting = self.notification_write.wrapping_sub(self.notification_read);
        let taken = read.wrapping_sub(self.notification_read);
        if taken > waiting {
            return;
        }
        for _ in 0..taken {
            let slot = self.notification_read % NOTIFICATION_ENTRIES;
            match copies.get(self.copy_of(slot)) {
                Some(&ONE_SHOT) | None => self.one_shots = self.one_shots.saturating_sub(1),
                Some(&number) => {
                    self.set_queued(u32::from(number), false);
                }
            }
            self.notification_read = self.notification_read.wrapping_add(1);
        }
    }

    /// Where the copy of a slot of its queue is.
    const fn copy_of(&self, slot: u32) -> usize {
        self.id.index() * NOTIFICATION_ENTRIES as usize + slot as usize
    }

    /// Whether an event count has an entry in the queue.
    #[inline]
    fn is_queued(&self, number: u32) -> bool {
        let word = self.queued.get(number as usize / 32).copied().unwrap_or(0);
        word & (1 << (number % 32)) != 0
    }

    /// Notes whether it has.
    fn set_queued(&mut self, number: u32, queued: bool) {
        if let Some(word) = self.queued.get_mut(number as usize / 32) {
            let bit = 1 << (number % 32);
            *word = if queued { *word | bit } else { *word & !bit };
        }
    }
}
