//! The file that the demo sends: checked before anything else happens, then read once into ordinary memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Bytes in a MiB.
pub(crate) const MIB: u64 = 1024 * 1024;

/// A file that can be read, and how much of it is sent.
#[derive(Debug)]
pub(crate) struct Source {
    /// Where it is.
    pub(crate) path: PathBuf,
    data: Vec<u8>,
}

impl Source {
    /// Opens and reads `path` (by default the running program), up to `bytes` bytes.
    ///
    /// # Errors
    /// [`Failure::Usage`] if it is missing, unreadable, no regular file, or empty.
    pub(crate) fn open(path: Option<&Path>, bytes: u64) -> Result<Self, Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => std::env::current_exe().map_err(|error| {
                Failure::Usage(format!(
                    "cannot find the running program ({error}); name a --file"
                ))
            })?,
        };
        let usage = |what: String| Failure::Usage(format!("--file {}: {what}", path.display()));
        // Asked before it is opened: opening a named pipe would wait for a writer.
        let metadata = std::fs::metadata(&path).map_err(|error| usage(error.to_string()))?;
        if metadata.is_dir() {
            return Err(usage("is a directory; name a file".to_owned()));
        }
        if !metadata.is_file() {
            return Err(usage("is not a regular file".to_owned()));
        }
        let file = File::open(&path).map_err(|error| usage(error.to_string()))?;
        let mut data = Vec::new();
        file.take(bytes)
            .read_to_end(&mut data)
            .map_err(|error| usage(error.to_string()))?;
        if data.is_empty() {
            return Err(usage("is empty; there is nothing to send".to_owned()));
        }
        Ok(Self { path, data })
    }

    /// Fills `buffer` with what stands at `offset` of the file repeated for ever.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let length = self.data.len() as u64;
        let mut at = (offset % length) as usize;
        let mut done = 0;
        while done < buffer.len() {
            let part = (self.data.len() - at).min(buffer.len() - done);
            buffer[done..done + part].copy_from_slice(&self.data[at..at + part]);
            done += part;
            at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_file_is_repeated() {
        let source = Source {
            path: PathBuf::new(),
            data: b"abc".to_vec(),
        };
        let mut buffer = [0; 8];
        source.fill(2, &mut buffer);
        assert_eq!(&buffer, b"cabcabca");
        source.fill(300, &mut buffer);
        assert_eq!(&buffer, b"abcabcab");
    }

    #[test]
    fn a_long_file_is_cut() {
        let source = Source::open(None, 10).expect("the test program is a file");
        assert_eq!(source.data.len(), 10);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for path in ["/", "/dev/null", "/nowhere/at/all"] {
            let error = Source::open(Some(Path::new(path)), MIB).expect_err(path);
            assert_eq!(error.status(), 2, "{path}");
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
