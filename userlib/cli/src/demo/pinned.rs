//! Memory that cannot be paged, as the kernel says it: the demo promises that there is none.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::failure::Failure;
use crate::process;

/// The most memory that was seen pinned.
#[derive(Default)]
pub(super) struct Pinned {
    most: AtomicU64,
    unknown: AtomicBool,
}

impl Pinned {
    /// Looks at this process now.
    pub(super) fn look(&self) {
        match process::pinned_bytes() {
            Some(bytes) => {
                self.most.fetch_max(bytes, Ordering::Relaxed);
            }
            None => self.unknown.store(true, Ordering::Relaxed),
        }
    }

    /// The most that any look has seen.
    ///
    /// # Errors
    /// `/proc` does not say.
    pub(super) fn most(&self) -> Result<u64, Failure> {
        if self.unknown.load(Ordering::Relaxed) {
            return Err(Failure::Wrong(
                "/proc/self/status does not say what is pinned".to_owned(),
            ));
        }
        Ok(self.most.load(Ordering::Relaxed))
    }
}
