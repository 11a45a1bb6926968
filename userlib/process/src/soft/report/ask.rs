//! Asking a running node, and checking what it says: it may be of another release, or hostile.

use std::time::Instant;

use netvm_soft::link_error::LinkError;
use netvm_soft::shm::question::{self, Question};

use super::{Entry, FORMAT, MOST_ENTRIES, Page, Section};

/// Bytes of a name or a label at most.
const MOST_TEXT: usize = 256;
/// Labels, and counters, of an entry at most.
const MOST_NAMES: usize = 512;
/// Entries of a section at most: more than the tables of a driver have places.
const MOST_IN_ALL: usize = 1 << 17;

/// Why a node's answer is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// It cannot be asked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It is of another release.
    #[error(
        "the node tells of itself in format {0}, this program knows format {FORMAT}: use one release for both"
    )]
    Format(u16),
    /// What it says makes no sense.
    #[error("the node's answer makes no sense: {0}")]
    Malformed(&'static str),
}

/// A page of what the node with this name, or `#` and number, says of a section.
///
/// # Errors
/// [`ReportError`].
pub fn page(name: &str, section: Section, from: u32, deadline: Instant) -> Result<Page, ReportError> {
    let number = Section::ALL.iter().position(|known| *known == section);
    let question = Question {
        section: number.unwrap_or_default() as u16,
        from,
    };
    check(&question::ask(name, question, deadline)?, from)
}

/// All that the node says of a section.
///
/// # Errors
/// [`ReportError`].
pub fn all(name: &str, section: Section, deadline: Instant) -> Result<Vec<Entry>, ReportError> {
    let mut entries = Vec::new();
    let mut from = Some(0);
    while let Some(place) = from {
        let page = page(name, section, place, deadline)?;
        entries.extend(page.entries);
        from = page.next;
        if entries.len() > MOST_IN_ALL {
            return Err(ReportError::Malformed("its list has no end"));
        }
    }
    Ok(entries)
}

fn check(body: &[u8], from: u32) -> Result<Page, ReportError> {
    /// All that every release says.
    #[derive(serde::Deserialize)]
    struct Begin {
        format: u16,
    }
    let none = |_| ReportError::Malformed("it is not JSON of that shape");
    let begin: Begin = serde_json::from_slice(body).map_err(none)?;
    if begin.format != FORMAT {
        return Err(ReportError::Format(begin.format));
    }
    let page: Page = serde_json::from_slice(body).map_err(none)?;
    if page.next.is_some_and(|next| next <= from) {
        return Err(ReportError::Malformed("its list goes backwards"));
    }
    if page.entries.len() > MOST_ENTRIES {
        return Err(ReportError::Malformed("it has too many entries"));
    }
    let sound = |entry: &Entry| {
        entry.labels.len() <= MOST_NAMES
            && entry.counted.len() <= MOST_NAMES
            && entry
                .labels
                .iter()
                .all(|(name, value)| is_name(name) && value.len() <= MOST_TEXT)
            && entry.counted.iter().all(|(name, _)| is_name(name))
    };
    if !page.entries.iter().all(sound) {
        return Err(ReportError::Malformed("a name in it is none"));
    }
    Ok(page)
}

/// What counters and labels are called: it goes into the names of others' metrics.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=MOST_TEXT).contains(&name.len())
        && name.bytes().all(fits)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Result<Page, ReportError> {
        check(text.as_bytes(), 3)
    }

    #[test]
    fn a_page_that_makes_sense_is_taken() {
        let text = r#"{"format":1,"entries":[{"number":4,"labels":[["name","a"]],"counted":[["bytes",7]]}],"next":5}"#;
        let page = body(text).unwrap();
        assert_eq!(page.entries[0].count("bytes"), Some(7));
        assert_eq!(page.entries[0].label("name"), Some("a"));
        // Every part of it is something else.
        for len in 0..text.len() {
            assert!(body(&text[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_page_of_another_release_says_so() {
        assert_eq!(body(r#"{"format":2,"pages":[]}"#), Err(ReportError::Format(2)));
    }

    #[test]
    fn a_page_that_makes_no_sense_is_refused() {
        let many = r#"{"number":1,"labels":[],"counted":[]},"#.repeat(MOST_ENTRIES + 1);
        let deep = "[".repeat(50_000);
        for text in [
            r#"{"format":1,"entries":[],"next":3}"#.to_owned(),
            r#"{"format":1,"entries":[{"number":1,"labels":[],"counted":[["a\n",1]]}],"next":null}"#
                .to_owned(),
            r#"{"format":1,"entries":[{"number":1,"labels":[],"counted":[["0a",1]]}],"next":null}"#
                .to_owned(),
            r#"{"format":1,"entries":[{"number":1,"labels":[],"counted":[["a",-1]]}],"next":null}"#
                .to_owned(),
            format!(
                r#"{{"format":1,"entries":[{{"number":1,"labels":[["a","{}"]],"counted":[]}}],"next":null}}"#,
                "x".repeat(MOST_TEXT + 1)
            ),
            format!(
                r#"{{"format":1,"entries":[{}],"next":null}}"#,
                many.trim_end_matches(',')
            ),
            format!(r#"{{"format":1,"entries":{deep}"#),
        ] {
            assert!(
                matches!(body(&text), Err(ReportError::Malformed(_))),
                "{text:.100}"
            );
        }
    }
}
