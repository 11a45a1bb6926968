//! What of a mapping is in memory, and what that has cost the process.

use serde::{Deserialize, Serialize};

use crate::process;

/// What a server holds of a mapping. Bytes, and counts of the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::processes) struct Held {
    /// Bytes of it that the process has in memory.
    pub(in crate::processes) resident: u64,
    /// Bytes that its file takes.
    pub(in crate::processes) disk: u64,
    /// Page faults that found their page in memory.
    pub(in crate::processes) minor_faults: u64,
    /// Those that did not: of pages on disk, and of pages of the file that were never touched.
    pub(in crate::processes) major_faults: u64,
    /// Bytes that are locked (`VmLck`) or pinned (`VmPin`).
    pub(in crate::processes) pinned: u64,
}

impl Held {
    /// Of the mapping at these addresses, whose file takes `disk` bytes.
    ///
    /// # Errors
    /// `/proc` does not say, in words.
    pub(super) fn of(start: u64, len: u64, disk: u64) -> Result<Self, String> {
        let read = |name: &str| {
            let path = format!("/proc/self/{name}");
            std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
        };
        let (minor_faults, major_faults) =
            faults_in(&read("stat")?).ok_or("/proc/self/stat has no page faults")?;
        Ok(Self {
            resident: resident_in(&read("smaps")?, start, start.saturating_add(len)),
            disk,
            minor_faults,
            major_faults,
            pinned: process::pinned_bytes().ok_or("/proc/self/status has no VmLck and VmPin")?,
        })
    }

    /// The same, with the page faults since then.
    pub(super) fn since(self, before: &Self) -> Self {
        Self {
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            ..self
        }
    }
}

/// Minor and major page faults: fields 10 and 12 of `/proc/self/stat`. The name of the program may contain anything.
fn faults_in(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some((minor, major))
}

/// Resident bytes of the mappings that lie between these addresses. Unlike `mincore` this takes no time for pages that were never
/// touched.
fn resident_in(smaps: &str, start: u64, end: u64) -> u64 {
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = range(line) {
            inside = start <= from && to <= end;
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| inside) {
            let number = rest.trim().trim_end_matches("kB").trim().parse();
            kib += number.unwrap_or(0);
        }
    }
    kib * 1024
}

/// The addresses in the first line of a mapping.
fn range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(from)?, address(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_follow_a_name_that_contains_anything() {
        let stat = "12 (a) b (c) S 1 2 3 0 -1 4194304 731 5 17 6 9 9\n";
        assert_eq!(faults_in(stat), Some((731, 17)));
        assert_eq!(faults_in("12 (a) S 1"), None);
    }

    #[test]
    fn mappings_beside_it_do_not_count() {
        let smaps = "1000-3000 rw-s 00000000 00:01 7 /tmp/#7 (deleted)\nSize: 8 kB\nRss:  4 kB\nPss: 4 kB\n\
                     3000-4000 rw-p 00000000 00:00 0\nRss:  100 kB\n\
                     5000-6000 rw-s 00002000 00:01 7 /tmp/#7 (deleted)\nRss:  8 kB\n";
        assert_eq!(resident_in(smaps, 0x1000, 0x3000), 4096);
        assert_eq!(resident_in(smaps, 0x1000, 0x6000), 112 * 1024);
        assert_eq!(resident_in(smaps, 0x4000, 0x5000), 0);
    }
}
