//! Whether this machine can run the emulator, and what to change if not.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::vm::uffd::{Purpose, Uffd};
use crate::vm::{PAGE_SIZE, RegionMapping, swap::Swap};

/// One thing that the emulator needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is there.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// The command or setting that helps; empty where nothing is missing.
    pub fix: String,
}

impl Check {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            ok: true,
            found: found.into(),
            fix: String::new(),
        }
    }

    fn bad(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name,
            ok: false,
            found: found.into(),
            fix: fix.into(),
        }
    }
}

/// Tries everything that the emulator needs, and changes nothing.
#[must_use]
pub fn probe(swap_directory: &Path) -> Vec<Check> {
    vec![
        page_size(),
        userfaultfd(),
        memfd(),
        swap_file(swap_directory),
        open_files(),
    ]
}

fn page_size() -> Check {
    let size = rustix::param::page_size();
    match size {
        PAGE_SIZE => Check::good("page size", "4096 bytes"),
        _ => Check::bad(
            "page size",
            format!("{size} bytes"),
            "boot a kernel with pages of 4 KiB",
        ),
    }
}

fn userfaultfd() -> Check {
    const NAME: &str = "userfaultfd";
    let opened = Uffd::open(Purpose::App).and_then(|app| Uffd::open(Purpose::Alias).map(|_| app));
    match opened {
        Ok(uffd) if uffd.serves_kernel_faults() => Check::good(NAME, "all faults"),
        Ok(_) => Check::good(
            NAME,
            "faults of user code only: a system call that reads or writes exported memory fails with EFAULT \
             (`sysctl vm.unprivileged_userfaultfd=1`, or root, lifts that)",
        ),
        Err(error) => Check::bad(NAME, error.to_string(), "sysctl vm.unprivileged_userfaultfd=1"),
    }
}

fn memfd() -> Check {
    const NAME: &str = "shared memory (memfd), 64 GiB of address space";
    match RegionMapping::new((64 << 30) / PAGE_SIZE as u64) {
        Ok((region, app)) => {
            let _ =
                // SAFETY: the application mapping was just made and is not in use.
                unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(app), region.alias().1) };
            Check::good(NAME, "can be mapped")
        }
        Err(errno) => Check::bad(
            NAME,
            errno.to_string(),
            "ulimit -v unlimited; sysctl vm.overcommit_memory=0",
        ),
    }
}

fn swap_file(directory: &Path) -> Check {
    const NAME: &str = "directory for swap files";
    let tried = Swap::new(directory).and_then(|mut swap| swap.write(&[None], &[[0; PAGE_SIZE]]));
    match tried {
        Ok(_) => Check::good(NAME, directory.display().to_string()),
        Err(errno) => Check::bad(
            NAME,
            format!("{}: {errno}", directory.display()),
            "set TMPDIR to a directory that can be written and has room",
        ),
    }
}

fn open_files() -> Check {
    const NAME: &str = "open files";
    const NEEDED: u64 = 256;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < NEEDED => {
            Check::bad(NAME, format!("at most {limit}"), format!("ulimit -n {NEEDED}"))
        }
        Some(limit) => Check::good(NAME, format!("at most {limit}")),
        None => Check::good(NAME, "no limit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_passes_and_a_missing_directory_is_named() {
        let checks = probe(&std::env::temp_dir());
        assert!(checks.iter().all(|check| check.ok), "{checks:#?}");
        let checks = probe(Path::new("/does/not/exist"));
        let swap = checks.iter().find(|check| !check.ok).expect("a failed check");
        assert!(swap.found.contains("/does/not/exist") && !swap.fix.is_empty());
    }
}
