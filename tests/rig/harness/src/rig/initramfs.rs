//! The hosts' root file system: an archive that the kernel unpacks into memory (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst, "newc").

use anyhow::{Context as _, Result};

/// Kinds of stat(2).
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const DEVICE: u32 = 0o020_000;

/// An archive that grows.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// A folder; the ones above it first.
    pub(super) fn folder(&mut self, path: &str) -> Result<()> {
        self.entry(path, FOLDER | 0o755, (0, 0), &[])
    }

    /// A file that may be run.
    pub(super) fn program(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.entry(path, FILE | 0o755, (0, 0), bytes)
    }

    /// A file to be read.
    pub(super) fn file(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.entry(path, FILE | 0o644, (0, 0), bytes)
    }

    /// A symbolic link to `target`.
    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// A character device by its numbers.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.entry(path, DEVICE | 0o600, (major, minor), &[])
    }

    /// All of it.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), body: &[u8]) -> Result<()> {
        self.entries += 1;
        let size = u32::try_from(body.len()).context("a file of 4 GiB or more")?;
        let name = u32::try_from(path.len() + 1)?;
        // Number, mode, user, group, links, time, size, its device, the device it is, name's length, no checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(body);
        self.align();
        Ok(())
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_as_the_kernel_documents_it() {
        let mut archive = Archive::default();
        archive.folder("dev").unwrap();
        archive.device("dev/console", 5, 1).unwrap();
        archive.file("a", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        // 110 bytes of header, the name with its zero, to the next multiple of four.
        let first = 110 + 4 + 2;
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000041ed");
        assert_eq!(&bytes[110..114], b"dev\0");
        assert_eq!(&bytes[first..first + 6], b"070701");
        let second = first + 110 + 12 + 2;
        let body = second + 112;
        assert_eq!(&bytes[second + 54..second + 62], b"00000005");
        assert_eq!(&bytes[body..body + 8], b"hello\0\0\0");
        assert_eq!(&bytes[body + 8 + 110..body + 8 + 120], b"TRAILER!!!");
    }
}
