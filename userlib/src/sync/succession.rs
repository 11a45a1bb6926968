//! What a woken waiter owes to the one behind it, after its caller's deadline.
//!
//! A waiter that has got a signal brings in its successor: it learns that one's name, makes it the first of the queue by
//! an operation at the home, and hands on a signal that has come meanwhile. Its caller may have no time left for that.
//! The signal is the caller's all the same, and the successor must not wait until the caller comes again. So a thread of
//! the library goes on from where the call has stopped.

use super::protocol::Await;
use super::seats::{Patience, Progress, Seat, Trips};
use super::suspicion::Suspicion;
use crate::import::RemoteSegment;
use netvm_abi::Nanos;
use parking_lot::Mutex;
use std::sync::Arc;

/// Steps of a queue that are left to do. The seat is not free for another turn while this is there.
pub(super) struct Succession {
    pub(super) seat: Arc<Seat>,
    pub(super) centre: RemoteSegment,
    pub(super) machine: Await,
    pub(super) trips: Trips,
}

impl Succession {
    /// Does them beside the caller. Without a thread it does them here, however long that takes.
    pub(super) fn leave_to_a_thread(self) {
        let backend = Arc::clone(&self.seat.port.backend);
        let left = Arc::new(Mutex::new(Some(self)));
        let theirs = Arc::clone(&left);
        let body = move || {
            let work = theirs.lock().take();
            if let Some(work) = work {
                let backend = Arc::clone(&work.seat.port.backend);
                work.go_on();
                // A caller may wait for the seat.
                backend.wake();
            }
        };
        if backend.spawn("netvm-queue", Box::new(body)).is_err() {
            let work = left.lock().take();
            if let Some(work) = work {
                work.go_on();
            }
        }
    }

    /// If they fail, the home or the successor's node is out of reach. The waiters behind find the queue broken then.
    fn go_on(mut self) {
        let (mut patience, mut suspicion) = (Patience::new(), Suspicion::default());
        let mut trips = self.trips.go_on(Nanos::MAX);
        loop {
            let until = patience.until(self.seat.port.backend.now());
            let end = self
                .seat
                .drive_by(&mut self.machine, &self.centre, false, until, &mut trips);
            match end {
                Ok(Progress::Ended(_)) | Err(_) => return,
                Ok(Progress::Waits) => {
                    match suspicion.linger(&self.centre, self.machine.epoch(), Nanos::MAX) {
                        Ok(true) => self.machine.give_up(),
                        Ok(false) => {}
                        Err(_) => return,
                    }
                }
            }
        }
    }
}
