//! The bytes of a message that is borrowed where it arrived.

use crate::error::{Error, Result};
use crate::region::{Region, check_range};

/// Where they lie.
pub(super) struct Body<'a> {
    pub(super) memory: &'a Region,
    pub(super) at: u64,
    pub(super) len: u64,
}

impl Body<'_> {
    pub(super) fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(offset, into.len() as u64, self.len)?;
        self.memory.read_into(self.at + offset, into)
    }

    pub(super) fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn copy_to(&self, into: &mut [u8]) -> Result<usize> {
        let (len, limit) = (self.len, into.len() as u64);
        match into.get_mut(..len as usize) {
            Some(into) => self.read_into(0, into).map(|()| into.len()),
            None => Err(Error::MessageTooLong { len, limit }),
        }
    }

    pub(super) fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len as usize];
        self.read_into(0, &mut bytes)?;
        Ok(bytes)
    }
}
