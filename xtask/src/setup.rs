//! `cargo xtask setup`: the Debian packages that the tests need.
//!
//! Nothing here is needed to build or to run the demo: those take Rust and a C linker. It changes nothing when
//! all is there, so CI calls it every time.

use anyhow::Result;
use netvm_harness::packages::{install, missing, names};

use crate::tools::SETUP;

/// `cargo xtask setup`. `Ok(false)`: something is missing.
pub(crate) fn setup() -> Result<bool> {
    if missing(&SETUP).is_empty() {
        println!(
            "setup: {} are there; nothing to do",
            names(&SETUP.iter().collect::<Vec<_>>(), ", ")
        );
        return Ok(true);
    }
    let done = install(&SETUP)?;
    if done {
        println!("setup: done");
    }
    Ok(done)
}
