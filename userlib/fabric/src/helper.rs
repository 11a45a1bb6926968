//! A domain's helper thread: it does what may wait for other nodes, one thing after the other.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::fi::{Answer, Errno};

type Job = Box<dyn FnOnce() + Send>;

/// The thread.
pub(crate) struct Helper {
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Helper {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start() -> Answer<Self> {
        let (jobs, todo) = channel::<Job>();
        let thread = std::thread::Builder::new()
            .name("netvm-fi-helper".into())
            .spawn(move || {
                for job in todo {
                    // One that fails badly takes no other with it.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                }
            })
            .map_err(|_| Errno::NOMEM)?;
        Ok(Self {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Gives it something to do.
    pub(crate) fn give(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(jobs) = &*self.jobs.lock() {
            // The thread lives as long as this value.
            let _ = jobs.send(Box::new(job));
        }
    }

    /// Ends it: what was given before is done first.
    pub(crate) fn stop(&self) {
        drop(self.jobs.lock().take());
        let thread = self.thread.lock().take();
        // The last user of a domain may be a job.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}
