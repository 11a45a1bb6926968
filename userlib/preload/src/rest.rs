//! Bytes that came by a stream and were not read when their connection went back to TCP: read first, by whichever process reads first.
//!
//! They lie in a file without a name. Processes that share its description have one place in it, which the kernel moves for each read: as
//! with the bytes of a socket, each is read once.

use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, fstat, memfd_create, tell};
use rustix::io::{Errno, pread, pwrite, read};

/// The file.
pub(crate) struct Rest(OwnedFd);

impl Rest {
    /// # Errors
    /// There are no descriptors left, or no memory.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(memfd_create(c"netvm-rest", MemfdFlags::CLOEXEC)?))
    }

    /// What another process has given this one.
    pub(crate) const fn given(file: OwnedFd) -> Self {
        Self(file)
    }

    /// # Errors
    /// There is no memory.
    pub(crate) fn append(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match pwrite(&self.0, bytes, self.end()?) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<u64> {
        Ok(u64::try_from(fstat(&self.0)?.st_size).unwrap_or(0))
    }

    /// Reads what is there; nothing: all was read.
    pub(crate) fn read(&self, into: &mut [u8]) -> usize {
        read(&self.0, into).unwrap_or(0)
    }

    /// Copies what is there, and leaves it.
    pub(crate) fn peek(&self, into: &mut [u8]) -> usize {
        tell(&self.0).and_then(|at| pread(&self.0, into, at)).unwrap_or(0)
    }

    /// How many bytes are there.
    pub(crate) fn len(&self) -> usize {
        let at = tell(&self.0).unwrap_or(0);
        let left = self.end().unwrap_or(0).saturating_sub(at);
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}

impl AsFd for Rest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_read_once_by_one_of_those_that_share_it() {
        let rest = Rest::new().unwrap();
        rest.append(b"one and ").unwrap();
        // As a process has it that was given a descriptor.
        let other = Rest::given(rest.0.try_clone().unwrap());
        let mut bytes = [0; 4];
        assert_eq!((rest.peek(&mut bytes), &bytes), (4, b"one "));
        assert_eq!((other.read(&mut bytes), &bytes), (4, b"one "));
        rest.append(b"two").unwrap();
        assert_eq!((rest.len(), other.len()), (7, 7));
        assert_eq!((rest.read(&mut bytes), &bytes), (4, b"and "));
        assert_eq!((other.read(&mut bytes), &bytes[..3]), (3, &b"two"[..]));
        assert_eq!(
            (rest.read(&mut bytes), rest.peek(&mut bytes), rest.len()),
            (0, 0, 0)
        );
    }
}
