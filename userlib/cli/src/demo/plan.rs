//! What was asked for, checked before anything starts.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::source::{MIB, Source};
use crate::args::Demo;
use crate::failure::Failure;
use crate::output::grouped;
use crate::process;

/// All that is sent crosses the wire twice: there, and read back.
pub(crate) const CAPTURED: u64 = 2;

/// A demo that makes sense.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The file.
    pub(crate) source: Source,
    /// How much of it to send, a multiple of a MiB.
    pub(crate) bytes: u64,
    /// How much of it node 1 may keep in memory.
    pub(crate) resident_bytes: u64,
    /// Where to write what the wires carried.
    pub(crate) pcap: Option<PathBuf>,
}

impl Plan {
    /// Checks the command line: the file first, then the sizes, then where to write.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub(crate) fn new(options: &Demo) -> Result<Self, Failure> {
        let bytes = options.mib * MIB;
        let source = Source::open(options.file.as_deref(), bytes)?;
        let resident_bytes = resident_bytes(options)?;
        // The file, its copy at node 0 and what node 1 keeps stand in memory; the rest of node 1's is in a swap file.
        check_room(
            bytes,
            bytes.saturating_mul(5) / 2,
            process::available_bytes(),
            "memory",
        )?;
        let folder = std::env::temp_dir();
        check_room(
            bytes,
            bytes,
            process::free_bytes(&folder),
            &format!("room for temporary files in {} (TMPDIR)", folder.display()),
        )?;
        if let Some(path) = &options.pcap {
            check_output(path, &source.path)?;
            check_room(
                bytes,
                CAPTURED * bytes,
                process::free_bytes(path),
                &format!("room for {}", path.display()),
            )?;
        }
        Ok(Self {
            source,
            bytes,
            resident_bytes,
            pcap: options.pcap.clone(),
        })
    }

    /// What is about to happen, for a person.
    pub(crate) fn headline(&self) -> String {
        format!(
            "NetVM demo: {} MiB of {} from node 0 to node 1, which may keep {} KiB of it in memory\n",
            self.bytes / MIB,
            self.source.path.display(),
            grouped(self.resident_bytes / 1024)
        )
    }
}

/// How much of it node 1 may keep in memory.
///
/// # Errors
/// [`Failure::Usage`]: that is all of it.
pub(crate) fn resident_bytes(options: &Demo) -> Result<u64, Failure> {
    let bytes = options.mib * MIB;
    match options.resident_mib {
        Some(mib) if mib * MIB >= bytes => Err(Failure::Usage(format!(
            "--resident-mib {mib}: with all of the {} MiB in memory nothing would be paged; give less",
            options.mib
        ))),
        Some(mib) => Ok(mib * MIB),
        None => Ok(bytes / 4),
    }
}

fn check_room(bytes: u64, needed: u64, there: Option<u64>, what: &str) -> Result<(), Failure> {
    match there {
        Some(there) if there < needed => Err(Failure::Usage(format!(
            "--mib {}: that needs {} MiB, and there are {} MiB of {what}",
            bytes / MIB,
            needed / MIB,
            there / MIB
        ))),
        _ => Ok(()),
    }
}

/// The capture must be writable, and must not be the file that is sent.
fn check_output(path: &Path, source: &Path) -> Result<(), Failure> {
    let usage = |what: String| Failure::Usage(format!("--pcap {}: {what}", path.display()));
    let real = |path: &Path| path.canonicalize().ok();
    // A pipe would wait for a reader, a terminal would show bytes.
    if path
        .metadata()
        .is_ok_and(|there| !there.is_file() && !there.is_dir())
    {
        return Err(usage("is not a regular file".to_owned()));
    }
    if real(path).is_some_and(|path| Some(path) == real(source)) {
        return Err(usage("is the file that is sent".to_owned()));
    }
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| usage(error.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo(mib: u64, resident_mib: Option<u64>) -> Demo {
        Demo {
            file: None,
            mib,
            resident_mib,
            pcap: None,
            processes: false,
            receiver_for: None,
            json: false,
        }
    }

    #[test]
    fn a_quarter_stays_unless_asked_otherwise() {
        assert_eq!(
            Plan::new(&demo(4, None)).map(|plan| plan.resident_bytes).ok(),
            Some(MIB)
        );
        assert_eq!(
            Plan::new(&demo(4, Some(3))).map(|plan| plan.resident_bytes).ok(),
            Some(3 * MIB)
        );
        assert_eq!(
            Plan::new(&demo(4, Some(4))).map_err(|error| error.status()).err(),
            Some(2)
        );
    }

    #[test]
    fn too_little_room_is_said_with_numbers() {
        let error = check_room(100 * MIB, 250 * MIB, Some(249 * MIB), "memory").expect_err("too little");
        assert!(
            error.to_string().contains("250 MiB") && error.status() == 2,
            "{error}"
        );
        assert!(check_room(100 * MIB, 250 * MIB, Some(250 * MIB), "memory").is_ok());
        assert!(check_room(100 * MIB, 250 * MIB, None, "memory").is_ok());
    }

    #[test]
    fn a_capture_does_not_overwrite_the_source() {
        let this = std::env::current_exe().expect("the test program");
        let error = check_output(&this, &this).expect_err("the same file");
        assert!(error.to_string().contains("is the file that is sent"), "{error}");
        let error = check_output(Path::new("/dev/full"), &this).expect_err("a device");
        assert!(error.to_string().contains("not a regular file"), "{error}");
        let error = check_output(Path::new("/nowhere/x.pcap"), &this).expect_err("no such folder");
        assert!(error.to_string().contains("/nowhere/x.pcap"), "{error}");
    }
}
