//! A size that is given in bytes, or by the memory that there is.

/// The least and the most that a size comes to: a largest transfer finds place in it, and address space is left.
const LEAST: u64 = 2 << 20;
const MOST: u64 = 16 << 40;
const PAGE: u64 = 4096;

/// What `--overcommit` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many times the memory that the process may use.
    OfMemory(f64),
}

impl Size {
    /// `48G`, `512M`, `2T`, or `1.5x`.
    ///
    /// # Errors
    /// What is wanted, in words.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let wanted = || {
            "give a size from 2M to 16T, such as 512M, 48G or 1T, or one such as 1.5x: so many times the memory that may be used"
                .to_owned()
        };
        let mut number = text.chars();
        let unit = number.next_back().ok_or_else(wanted)?;
        let number = number.as_str();
        // No signs, no exponents, no `inf`.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(wanted());
        }
        let number: f64 = number.parse().map_err(|_| wanted())?;
        let scale = match unit {
            'x' | 'X' if number > 0.0 => return Ok(Self::OfMemory(number)),
            'm' | 'M' => 20,
            'g' | 'G' => 30,
            't' | 'T' => 40,
            _ => return Err(wanted()),
        };
        let bytes = (number * (1_u64 << scale) as f64) as u64;
        if (LEAST..=MOST).contains(&bytes) {
            Ok(Self::Bytes(bytes))
        } else {
            Err(wanted())
        }
    }

    /// In bytes, whole pages, where the process may use so much memory.
    ///
    /// # Errors
    /// It is too small or too large, in words.
    pub fn bytes(self, memory: u64) -> Result<u64, String> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::OfMemory(factor) => (memory as f64 * factor) as u64,
        };
        if (LEAST..=MOST).contains(&bytes) {
            Ok(bytes.next_multiple_of(PAGE))
        } else {
            Err(format!(
                "of {} MiB of memory that is {} MiB: give a size from 2M to 16T",
                memory >> 20,
                bytes >> 20
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("2M", Size::Bytes(2 << 20)),
            ("48G", Size::Bytes(48 << 30)),
            ("1.5g", Size::Bytes(3 << 29)),
            ("16T", Size::Bytes(16 << 40)),
            ("1.25x", Size::OfMemory(1.25)),
        ] {
            assert_eq!(Size::read(text), Ok(size), "{text}");
        }
        for text in [
            "", "x", "G", "48", "1M", "17T", "-1x", "0x", "infx", "nanx", "1e9G", "4K", "4GiB", "1.5 x", "5é",
        ] {
            assert!(Size::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_factor_is_of_the_memory_that_there_is() {
        assert_eq!(Size::OfMemory(1.5).bytes(8 << 30), Ok(12 << 30));
        assert_eq!(Size::Bytes((2 << 20) + 1).bytes(8 << 30), Ok((2 << 20) + 4096));
        for factor in [0.00001, 1e9, 1e300] {
            assert!(Size::OfMemory(factor).bytes(8 << 30).is_err(), "{factor}");
        }
    }
}
