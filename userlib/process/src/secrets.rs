//! Secrets of capabilities, from the kernel's generator.
//!
//! Leases are given by the hundred thousand, and each would be a system call. So there are some in stock. They are as secret as
//! the table of those that were given, which lies in the same memory.

use std::fmt;

/// Secrets taken from the kernel at once: 256 bytes, which it gives whole, whatever signals come (`getrandom(2)`).
const STOCK: usize = 32;

/// A stock of them.
#[derive(Default)]
pub(crate) struct Secrets {
    stock: [u64; STOCK],
    left: usize,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// The next one. It is in no stock any more.
    pub(crate) fn take(&mut self) -> u64 {
        if self.left == 0 {
            self.fill();
        }
        self.left -= 1;
        self.stock.get_mut(self.left).map_or(0, std::mem::take)
    }

    fn fill(&mut self) {
        let mut bytes = [0; STOCK * size_of::<u64>()];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            // It fails only while the machine boots.
            if let Ok(count) = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
                filled += count;
            }
        }
        let (secrets, _) = bytes.as_chunks();
        for (place, secret) in self.stock.iter_mut().zip(secrets) {
            *place = u64::from_ne_bytes(*secret);
        }
        self.left = STOCK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_given_twice() {
        let mut secrets = Secrets::default();
        let mut given: Vec<u64> = (0..3 * STOCK + 1).map(|_| secrets.take()).collect();
        assert!(secrets.stock.iter().filter(|secret| **secret != 0).count() == STOCK - 1);
        assert_eq!(format!("{secrets:?}"), "Secrets(..)");
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 3 * STOCK + 1);
        assert!(!given.contains(&0));
    }
}
