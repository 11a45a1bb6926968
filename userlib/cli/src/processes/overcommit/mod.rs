//! A file mapping that is larger than the memory that there is, for another node to work on.

mod held;
mod room;

pub(super) use held::Held;
pub(super) use room::memory_bytes;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;

use netvm::{Access, Export, Modes, NodeId, Port, PortId, Region};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::failure::Failure;
use crate::unnamed;

/// The name by which a client imports it.
pub(super) const OVERCOMMIT: &str = "netvm-overcommit";

/// Why there is none.
#[derive(Debug)]
pub(super) struct Lack {
    what: String,
    /// What changes that.
    fix: &'static str,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

impl From<Lack> for Failure {
    fn from(Lack { what, fix }: Lack) -> Self {
        Self::Unavailable {
            what,
            fix: fix.into(),
        }
    }
}

/// Bytes for a person.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// A mapping of a sparse file without a name. Both go with this value.
pub(super) struct SparseFile {
    file: OwnedFd,
    start: NonNull<u8>,
    len: usize,
}

impl SparseFile {
    /// Maps one of `len` bytes, none of them written, that lies in `folder`.
    ///
    /// # Errors
    /// What this process, the file system or the machine has not.
    pub(super) fn map(folder: &Path, len: u64) -> Result<Self, Lack> {
        let lacks = |what: String, fix| Lack { what, fix };
        if let Some(most) = unnamed::limit_below(len) {
            let what = format!("files of this process may have {}, not {}", size(most), size(len));
            return Err(lacks(what, "ulimit -f unlimited"));
        }
        let file = unnamed::open(folder).map_err(|errno| {
            let what = format!("no file in {} (TMPDIR): {errno}", folder.display());
            lacks(what, "set TMPDIR to a folder where files can be made")
        })?;
        rustix::fs::ftruncate(&file, len).map_err(|errno| {
            let what = format!(
                "the file system of {} (TMPDIR) holds no file of {}: {errno}",
                folder.display(),
                size(len)
            );
            lacks(
                what,
                "give a smaller --overcommit, or set TMPDIR to a folder of another file system",
            )
        })?;
        let unmapped = |errno: Errno| {
            let what = format!("no mapping of {}: {errno}", size(len));
            lacks(what, "give a smaller --overcommit, or `ulimit -v unlimited`")
        };
        let bytes = usize::try_from(len).map_err(|_| unmapped(Errno::NOMEM))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), bytes, prot, MapFlags::SHARED, &file, 0) };
        let start = NonNull::new(start.map_err(unmapped)?.cast()).ok_or_else(|| unmapped(Errno::NOMEM))?;
        let mapped = Self {
            file,
            start,
            len: bytes,
        };
        // A fault at a random page brings that page and no more: what is touched is what was asked for.
        // SAFETY: the whole of the mapping; the advice changes no byte of it.
        let advised = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::Random) };
        advised.map_err(unmapped)?;
        Ok(mapped)
    }

    /// What of it is in memory and in its file.
    ///
    /// # Errors
    /// `/proc` does not say, in words.
    pub(super) fn held(&self) -> Result<Held, String> {
        let disk = rustix::fs::fstat(&self.file).map_err(|errno| format!("the file: {errno}"))?;
        Held::of(
            self.start.as_ptr().addr() as u64,
            self.len as u64,
            disk.st_blocks as u64 * 512,
        )
    }
}

impl Drop for SparseFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the regions that used it have gone. Failing would leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Such a mapping, exported. In this order the parts go.
pub(super) struct Offered {
    _export: Export,
    _region: Region,
    file: SparseFile,
    /// What there was before the client began.
    before: Held,
}

impl Offered {
    /// Offers one to a port of another node, and to no other.
    ///
    /// # Errors
    /// Why it cannot, in words.
    pub(super) fn new(
        port: &Port,
        (node, peer): (NodeId, PortId),
        len: u64,
        touch: u64,
    ) -> Result<Self, String> {
        let folder = std::env::temp_dir();
        room::check(&folder, touch)?;
        let file = SparseFile::map(&folder, len).map_err(|lack| lack.to_string())?;
        // SAFETY: the mapping goes after the region, is written by nothing else, and no reference into it exists.
        let region = unsafe { port.adopt(file.start, len) }.map_err(|error| error.to_string())?;
        let access = Access::nobody().and_port(node, peer, Modes::READ | Modes::WRITE | Modes::ATOMIC);
        let export = port.export(OVERCOMMIT, &region, .., access);
        Ok(Self {
            _export: export.map_err(|error| error.to_string())?,
            _region: region,
            before: file.held()?,
            file,
        })
    }

    /// What is held now, with the page faults since the beginning.
    ///
    /// # Errors
    /// `/proc` does not say, in words.
    pub(super) fn held(&self) -> Result<Held, String> {
        Ok(self.file.held()?.since(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_what_is_held() {
        let len = 8 << 30;
        let sparse = SparseFile::map(&std::env::temp_dir(), len).unwrap();
        let before = sparse.held().unwrap();
        assert_eq!((before.resident, before.disk), (0, 0));
        for page in 0..100_u64 {
            let offset = page * (len / 100) / 4096 * 4096;
            // SAFETY: inside of the mapping, which this test alone uses.
            unsafe {
                sparse
                    .start
                    .as_ptr()
                    .wrapping_add(offset as usize)
                    .write_volatile(7)
            };
        }
        let held = sparse.held().unwrap().since(&before);
        assert_eq!(held.resident, 100 * 4096, "no page beside them");
        assert!(held.minor_faults + held.major_faults >= 100, "{held:?}");
        // Blocks that a file system keeps for itself come on top.
        assert!((100 * 4096..2 << 20).contains(&held.disk), "{held:?}");
    }

    #[test]
    fn what_a_file_system_does_not_hold_is_told() {
        let Err(lack) = SparseFile::map(&std::env::temp_dir(), 1 << 63) else {
            panic!("no file is that large");
        };
        assert!(lack.to_string().contains("TMPDIR"), "{lack}");
        let Err(lack) = SparseFile::map(Path::new("/proc"), 4096) else {
            panic!("no file there");
        };
        assert!(lack.to_string().contains("no file in /proc"), "{lack}");
    }

    #[test]
    fn sizes_are_short() {
        let text = [0, 4096, 3 << 19, 36 << 30].map(size);
        assert_eq!(text, ["0 B", "4.0 KiB", "1.5 MiB", "36.0 GiB"]);
    }
}
