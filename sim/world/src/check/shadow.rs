//! A shadow of the memory of all processes, byte by byte: what it holds by what apps have stored and what has landed.
//! A page costs nothing before something other than zeros lies in it.

use crate::vm::{PAGE, ProcessId};
use netvm_abi::NodeId;
use std::collections::BTreeMap;
use std::ops::Range;

/// Node, process, page number.
type Page = (NodeId, ProcessId, u64);

/// The pages that hold something.
#[derive(Default)]
pub(super) struct Shadow(BTreeMap<Page, Box<[u8; PAGE]>>);

/// The parts of `len` bytes at an address, one for each page: page number, bytes of the page, bytes of the whole.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let start = ((at + done as u64) % PAGE as u64) as usize;
        let count = (PAGE - start).min(len - done);
        let part = (
            (at + done as u64) / PAGE as u64,
            start..start + count,
            done..done + count,
        );
        done += count;
        (count > 0).then_some(part)
    })
}

impl Shadow {
    /// These bytes are stored there.
    pub(super) fn store(&mut self, (node, process): (NodeId, ProcessId), at: u64, bytes: &[u8]) {
        for (page, there, part) in parts(at, bytes.len()) {
            let page = self.0.entry((node, process, page));
            page.or_insert_with(|| Box::new([0; PAGE]))[there].copy_from_slice(&bytes[part]);
        }
    }

    /// The first of these bytes that is not what lies there: its address, and what should lie there.
    pub(super) fn differs(
        &self,
        (node, process): (NodeId, ProcessId),
        at: u64,
        bytes: &[u8],
    ) -> Option<(u64, u8)> {
        let wrong = |(page, there, part): (u64, Range<usize>, Range<usize>)| {
            let (got, first) = (&bytes[part.clone()], at + part.start as u64);
            let Some(page) = self.0.get(&(node, process, page)) else {
                let wrong = got.iter().position(|&byte| byte != 0)?;
                return Some((first + wrong as u64, 0));
            };
            let held = &page[there];
            if held == got {
                return None;
            }
            let wrong = got.iter().zip(held).position(|(got, held)| got != held)?;
            Some((first + wrong as u64, held[wrong]))
        };
        parts(at, bytes.len()).find_map(wrong)
    }

    /// A range of pages is thrown away.
    pub(super) fn discard(&mut self, (node, process): (NodeId, ProcessId), first: u64, pages: u64) {
        let range = (node, process, first)..(node, process, first.saturating_add(pages));
        let gone: Vec<Page> = self.0.range(range).map(|(&page, _)| page).collect();
        for page in gone {
            self.0.remove(&page);
        }
    }

    /// A process has ended.
    pub(super) fn end(&mut self, owner: (NodeId, ProcessId)) {
        self.discard(owner, 0, u64::MAX);
    }

    /// A node went down.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.0.retain(|page, _| page.0 != node);
    }

    /// Bytes of the pages.
    pub(super) fn bytes(&self) -> usize {
        self.0.len() * (PAGE + size_of::<Page>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_was_stored_last_and_zero_before() {
        let (mut shadow, owner) = (Shadow::default(), (NodeId(1), ProcessId(2)));
        assert_eq!(shadow.differs(owner, 0x1FFC, &[0; 8]), None);
        assert_eq!(shadow.differs(owner, 0x1FFC, &[0, 0, 7]), Some((0x1FFE, 0)));
        shadow.store(owner, 0x1FFC, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(shadow.differs(owner, 0x1FFD, &[2, 3, 4, 5, 6]), None);
        assert_eq!(shadow.differs(owner, 0x1FFD, &[2, 3, 4, 5, 9]), Some((0x2001, 6)));
        assert_eq!(
            shadow.differs((NodeId(1), ProcessId(3)), 0x1FFD, &[2]),
            Some((0x1FFD, 0))
        );
        shadow.discard(owner, 2, 1);
        assert_eq!(shadow.differs(owner, 0x1FFC, &[1, 2, 3, 4, 0, 0, 0, 0]), None);
        shadow.end(owner);
        assert_eq!(
            (shadow.differs(owner, 0x1FFC, &[0; 8]), shadow.bytes()),
            (None, 0)
        );
    }
}
