//! The boundary: what every function of the header does around its work.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fault::{Fault, Result, note};

/// Does the work of a call. Gives 0, or what C is told of the fault. No panic passes.
#[inline]
pub(crate) fn call(work: impl FnOnce() -> Result<()>) -> c_int {
    // Safe to go on after a panic: the library's objects are made for it, and a table's entry is only read.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(fault)) => note(fault),
        Err(payload) => {
            // Its destructor may panic as well.
            std::mem::forget(payload);
            note(Fault::argument(
                libc::EIO,
                "an error inside of the library: its panic message, on standard error, says where",
            ))
        }
    }
}
