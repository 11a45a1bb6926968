//! A program's buffer: up to [`IOV`] pieces of its memory. The program promises that they are there until the operation has ended.

use libc::iovec;

use crate::fi::{Answer, Errno};
use crate::info::IOV;

/// A scattered buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buffer {
    parts: [(usize, usize); IOV],
    count: usize,
    len: usize,
}

impl Buffer {
    /// One piece.
    ///
    /// # Errors
    /// It has bytes and is nowhere.
    pub(crate) fn one(start: *const core::ffi::c_void, len: usize) -> Answer<Self> {
        if start.is_null() && len > 0 {
            return Err(Errno::INVAL);
        }
        let mut parts = [(0, 0); IOV];
        parts[0] = (start.expose_provenance(), len);
        Ok(Self { parts, count: 1, len })
    }

    /// Bytes of the provider's own.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut parts = [(0, 0); IOV];
        parts[0] = (bytes.as_ptr().expose_provenance(), bytes.len());
        Self {
            parts,
            count: 1,
            len: bytes.len(),
        }
    }

    /// Several.
    ///
    /// # Errors
    /// There are too many, or one has bytes and is nowhere.
    pub(crate) fn of(iov: &[iovec]) -> Answer<Self> {
        let mut buffer = Self::default();
        if iov.len() > IOV {
            return Err(Errno::INVAL);
        }
        for (place, piece) in buffer.parts.iter_mut().zip(iov) {
            let one = Self::one(piece.iov_base, piece.iov_len)?;
            *place = one.parts[0];
            buffer.len = buffer.len.checked_add(one.len).ok_or(Errno::INVAL)?;
        }
        buffer.count = iov.len();
        Ok(buffer)
    }

    /// Its bytes in all.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Where it begins, for a completion.
    pub(crate) const fn start(&self) -> usize {
        self.parts[0].0
    }

    /// Its pieces.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.parts.iter().take(self.count).copied()
    }

    /// The part of it from `skip` on, `len` bytes at most.
    pub(crate) fn part(&self, mut skip: usize, mut len: usize) -> Self {
        let mut part = Self::default();
        for (start, size) in self.parts() {
            let begin = skip.min(size);
            skip -= begin;
            let take = (size - begin).min(len);
            if take == 0 {
                continue;
            }
            if let Some(place) = part.parts.get_mut(part.count) {
                *place = (start + begin, take);
                part.count += 1;
            }
            len -= take;
            part.len += take;
        }
        part
    }

    /// Copies what fits of it into `into`, from `skip` on.
    pub(crate) fn gather(&self, skip: usize, into: &mut [u8]) {
        let mut at = 0;
        for (start, len) in self.part(skip, into.len()).parts() {
            let Some(room) = into.get_mut(at..at + len) else {
                return;
            };
            // SAFETY: the program promised that its memory is there; `room` is the provider's own.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    core::ptr::with_exposed_provenance::<u8>(start),
                    room.as_mut_ptr(),
                    len,
                );
            }
            at += len;
        }
    }

    /// Lets `fill` write to `len` bytes of it from `skip` on, piece by piece; it is told how far each piece is from the first one.
    pub(crate) fn scatter<E>(
        &self,
        skip: usize,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        for (start, len) in self.part(skip, len).parts() {
            // SAFETY: the program promised that its memory is there, and uses it for nothing else until the operation has ended.
            let room = unsafe {
                core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut::<u8>(start), len)
            };
            fill(at, room)?;
            at += len;
        }
        Ok(())
    }

    /// As the kernel has it.
    pub(crate) fn iov(&self) -> ([iovec; IOV], usize) {
        let mut iov = [iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        }; IOV];
        for (place, (start, len)) in iov.iter_mut().zip(self.parts()) {
            *place = iovec {
                iov_base: core::ptr::with_exposed_provenance_mut(start),
                iov_len: len,
            };
        }
        (iov, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_cut_at_any_byte() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let start = bytes.as_mut_ptr();
        let piece = |from: usize, len| iovec {
            iov_base: start.wrapping_add(from).cast(),
            iov_len: len,
        };
        let buffer = Buffer::of(&[piece(0, 10), piece(20, 0), piece(30, 5), piece(90, 10)]).unwrap();
        assert_eq!(buffer.len(), 25);
        let flat: Vec<u8> = (0..10).chain(30..35).chain(90..100).collect();
        for skip in 0..=25 {
            for len in 0..=25 - skip {
                let mut into = vec![0; len];
                buffer.gather(skip, &mut into);
                assert_eq!(into, flat[skip..skip + len], "{skip} {len}");
            }
        }
        buffer
            .scatter(12, 5, |_, room| {
                room.fill(255);
                Ok::<(), ()>(())
            })
            .unwrap();
        assert_eq!(bytes[30..35], [30, 31, 255, 255, 255]);
        assert_eq!(bytes[90..93], [255, 255, 92]);
        assert_eq!(Buffer::one(core::ptr::null(), 1).err(), Some(Errno::INVAL));
    }
}
