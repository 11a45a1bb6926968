//! The chunk protocol: where in the receiver's memory a batch of calls lies, as two machines that touch no memory.
//!
//! The receiver exports room for as many chunks as it allows. The sender begins with two. It fills one after the other, and
//! takes a chunk again when the receiver has consumed all that was in it, and the first batch behind the jump out of it. Where the next chunk is not consumed yet, it adds
//! one that was never used behind the current one, up to the limit. After that it has no place until the receiver is further.
//! Nothing has to be asked for: memory that was never written to takes no room.
//!
//! ```text
//!  chunk ┌──────┬─────────┬──────┬─────────┬───────────────┬─────────┐
//!        │ head │ records │ head │ records │ head: a jump  │ nothing │
//!        └──────┴─────────┴──────┴─────────┴──────┬────────┴─────────┘
//!                                                 └► the first head of the chunk that it names
//! ```
//!
//! A *head* has 8 bytes: 32 bits that say which batch comes here, and 32 bits that are the length of its records, or a
//! chunk's number with the highest bit set. The receiver is told by signals how many batches have landed, so it never
//! looks at a head that has not landed. It follows the jumps, so it need not know in which order the sender uses chunks.

/// Bytes of a head.
pub const HEAD: u64 = 8;
/// Marks a jump.
const JUMP: u32 = 1 << 31;

/// The number in the head of a batch, or of the jump before it. Fresh memory never says it.
const fn number(batch: u64) -> u32 {
    (batch as u32).wrapping_add(1)
}

const fn head(batch: u64, what: u32) -> [u8; HEAD as usize] {
    ((number(batch) as u64) << 32 | what as u64).to_le_bytes()
}

/// The largest ring: fewer than 2^31 calls fit, of 8 bytes each at least, as [`Done`](crate::layout::Done) wants it.
const LARGEST: u64 = 1 << 34;

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Bytes of a chunk: a multiple of 8, at least 64.
    pub chunk_bytes: u32,
    /// How many there may be: at least 2.
    pub chunks: u32,
}

impl Shape {
    /// Whether a ring can be made so.
    #[must_use]
    pub const fn is_possible(self) -> bool {
        self.chunk_bytes >= 64
            && self.chunk_bytes < 1 << 31
            && self.chunk_bytes.is_multiple_of(8)
            && self.chunks >= 2
            && self.chunks <= 1 << 16
            && self.bytes() <= LARGEST
    }

    /// Bytes of all chunks.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.chunk_bytes as u64 * self.chunks as u64
    }

    /// The longest batch, without its head: behind it a jump has room in the same chunk.
    #[must_use]
    pub const fn longest(self) -> u64 {
        (self.chunk_bytes as u64).saturating_sub(2 * HEAD)
    }

    const fn at(self, chunk: u32, offset: u64) -> u64 {
        chunk as u64 * self.chunk_bytes as u64 + offset
    }
}

/// Bytes that a batch with records of this length takes.
const fn room(len: u64) -> u64 {
    (HEAD + len).next_multiple_of(8)
}

/// A chunk that the sender uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Used {
    chunk: u32,
    /// How many batches must have been consumed before it may be filled again.
    needs: u64,
}

/// The sender's side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    shape: Shape,
    /// In the order in which they are filled.
    ring: Vec<Used>,
    /// Which of them is being filled.
    at: usize,
    /// How far.
    filled: u64,
    /// Batches placed.
    sent: u64,
    /// Batches that the receiver has consumed.
    consumed: u64,
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// A jump that must land before the batch is signalled: where, and its bytes.
    pub jump: Option<(u64, [u8; HEAD as usize])>,
    /// Where the batch goes, head first.
    pub offset: u64,
    /// Its head.
    pub head: [u8; HEAD as usize],
}

impl Writer {
    /// A sender that has sent nothing.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let used = |chunk| Used { chunk, needs: 0 };
        Self {
            shape,
            ring: vec![used(0), used(1)],
            at: 0,
            filled: 0,
            sent: 0,
            consumed: 0,
        }
    }

    /// A place for a batch with records of this length (1 to [`Shape::longest`]). Nothing: the receiver is too far behind.
    pub fn place(&mut self, len: u64) -> Option<Place> {
        if len == 0 || len > self.shape.longest() {
            return None;
        }
        let here = self.ring.get(self.at)?.chunk;
        let jump = if self.filled + room(len) + HEAD <= u64::from(self.shape.chunk_bytes) {
            None
        } else {
            let from = self.shape.at(here, self.filled);
            let chunk = self.advance()?;
            Some((from, head(self.sent, JUMP | chunk)))
        };
        let chunk = self.ring.get(self.at)?.chunk;
        let offset = self.shape.at(chunk, self.filled);
        let head = head(self.sent, len as u32);
        self.filled += room(len);
        self.sent += 1;
        Some(Place { jump, offset, head })
    }

    /// Goes to the next chunk, or to a new one before it.
    fn advance(&mut self) -> Option<u32> {
        let next = if self.at + 1 < self.ring.len() {
            self.at + 1
        } else {
            0
        };
        let is_free = self.ring.get(next)?.needs <= self.consumed;
        let fresh = self.ring.len() as u32;
        if !is_free && fresh >= self.shape.chunks {
            return None;
        }
        // The jump that leaves a chunk lies in it, too: it was followed when the batch that it leads to is consumed.
        self.ring.get_mut(self.at)?.needs = self.sent + 1;
        if is_free {
            self.at = next;
        } else {
            self.at += 1;
            self.ring.insert(
                self.at,
                Used {
                    chunk: fresh,
                    needs: 0,
                },
            );
        }
        self.filled = 0;
        self.ring.get(self.at).map(|used| used.chunk)
    }

    /// The receiver has consumed so many batches in all. Whether that can be: a count of an honest receiver never falls, and
    /// never passes what was sent.
    pub fn note_consumed(&mut self, batches: u64) -> bool {
        let possible = batches >= self.consumed && batches <= self.sent;
        if possible {
            self.consumed = batches;
        }
        possible
    }

    /// Batches placed so far.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Batches that the receiver is known to have consumed.
    #[must_use]
    pub const fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Chunks in use.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.ring.len() as u32
    }
}

/// The receiver's side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    shape: Shape,
    chunk: u32,
    /// How far in it.
    read: u64,
    /// Batches found.
    taken: u64,
    /// The last head was a jump.
    jumped: bool,
}

/// What a head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The records of the next batch: where they begin, and their length.
    Batch {
        /// Where they begin.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The next head is elsewhere: look there. Every chunk is left for good by a jump, and what was in it is consumed.
    Jump,
}

impl Reader {
    /// A receiver that has received nothing.
    #[must_use]
    pub const fn new(shape: Shape) -> Self {
        Self {
            shape,
            chunk: 0,
            read: 0,
            taken: 0,
            jumped: false,
        }
    }

    /// Where the next head lies. It has landed if a batch has been signalled that was not taken yet.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.shape.at(self.chunk, self.read)
    }

    /// Takes the head that lies there. Nothing: no honest sender wrote it.
    pub fn take(&mut self, head: [u8; HEAD as usize]) -> Option<Step> {
        let word = u64::from_le_bytes(head);
        let what = word as u32;
        if (word >> 32) as u32 != number(self.taken) {
            return None;
        }
        if what & JUMP != 0 {
            let chunk = what & !JUMP;
            if chunk >= self.shape.chunks || self.jumped {
                return None;
            }
            self.chunk = chunk;
            self.read = 0;
            self.jumped = true;
            return Some(Step::Jump);
        }
        let len = u64::from(what);
        if len == 0 || self.read + room(len) + HEAD > u64::from(self.shape.chunk_bytes) {
            return None;
        }
        let offset = self.shape.at(self.chunk, self.read + HEAD);
        self.read += room(len);
        self.taken += 1;
        self.jumped = false;
        Some(Step::Batch { offset, len })
    }

    /// Batches taken so far.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape {
        chunk_bytes: 64,
        chunks: 4,
    };

    /// Sender, memory and receiver; every write lands at once.
    struct Pair {
        writer: Writer,
        reader: Reader,
        memory: Vec<u8>,
    }

    impl Pair {
        fn new(shape: Shape) -> Self {
            Self {
                writer: Writer::new(shape),
                reader: Reader::new(shape),
                memory: vec![0; shape.bytes() as usize],
            }
        }

        fn put(&mut self, at: u64, bytes: &[u8]) {
            self.memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }

        /// A batch of this length, filled with its number.
        fn send(&mut self, len: u64) -> bool {
            let number = self.writer.sent() as u8;
            let Some(place) = self.writer.place(len) else {
                return false;
            };
            if let Some((at, bytes)) = place.jump {
                self.put(at, &bytes);
            }
            self.put(place.offset, &place.head);
            self.put(place.offset + HEAD, &vec![number; len as usize]);
            true
        }

        fn receive(&mut self) -> Vec<u8> {
            loop {
                let at = self.reader.offset() as usize;
                let head = self.memory[at..at + 8].try_into().unwrap();
                match self.reader.take(head).expect("a head of an honest sender") {
                    Step::Jump => {}
                    Step::Batch { offset, len } => {
                        return self.memory[offset as usize..][..len as usize].to_vec();
                    }
                }
            }
        }
    }

    #[test]
    fn it_grows_while_the_receiver_is_behind_and_then_has_no_place() {
        let mut pair = Pair::new(SHAPE);
        // 48 bytes are the longest: one a chunk.
        let mut sent = 0;
        while pair.send(SHAPE.longest()) {
            sent += 1;
        }
        assert_eq!((sent, pair.writer.chunks()), (4, 4));
        for _ in 0..sent {
            pair.receive();
        }
        assert!(!pair.send(1), "it was not told yet");
        assert!(pair.writer.note_consumed(sent));
        assert!(pair.send(SHAPE.longest()));
    }

    #[test]
    fn it_stays_small_beside_a_receiver_that_keeps_up() {
        let mut pair = Pair::new(SHAPE);
        for sent in 1..1000 {
            assert!(pair.send(20));
            pair.receive();
            assert!(pair.writer.note_consumed(sent));
        }
        assert_eq!(pair.writer.chunks(), 2);
    }

    #[test]
    fn counts_of_a_receiver_that_is_none_are_refused() {
        let mut pair = Pair::new(SHAPE);
        assert!(pair.send(20));
        assert!(!pair.writer.note_consumed(2));
        assert!(pair.writer.note_consumed(1));
        assert!(!pair.writer.note_consumed(0));
    }

    #[test]
    fn heads_of_a_sender_that_is_none_are_refused() {
        let refused = |head| Reader::new(SHAPE).take(head).is_none();
        assert!(refused([0; 8]), "fresh memory");
        assert!(refused(head(1, 8)), "another number");
        assert!(refused(head(0, 0)), "no records");
        assert!(refused(head(0, 49)), "past the end");
        assert!(refused(head(0, JUMP - 1)), "past every end");
        assert!(refused(head(0, JUMP | 4)), "a chunk that there is not");
        let mut reader = Reader::new(SHAPE);
        assert_eq!(reader.take(head(0, JUMP | 3)), Some(Step::Jump));
        assert!(reader.take(head(0, JUMP | 2)).is_none(), "a jump behind a jump");
    }

    #[test]
    fn what_cannot_be_a_ring_is_refused() {
        let shape = |chunk_bytes, chunks| Shape { chunk_bytes, chunks }.is_possible();
        assert!(shape(64, 2) && shape(1 << 18, 1 << 16));
        assert!(
            !shape(56, 2)
                && !shape(68, 2)
                && !shape(64, 1)
                && !shape(1 << 31, 2)
                && !shape(64, 1 << 17)
                && !shape(1 << 19, 1 << 16)
        );
    }

    proptest! {
        #[test]
        fn batches_come_out_as_they_went_in(
            chunk in 8u32..40, chunks in 2u32..6,
            steps in prop::collection::vec((0u8..3, 1u64..400), 1..400),
        ) {
            let shape = Shape { chunk_bytes: chunk * 8, chunks };
            let mut pair = Pair::new(shape);
            let mut under_way = std::collections::VecDeque::new();
            let mut received = 0;
            for (what, len) in steps {
                let len = 1 + len % shape.longest();
                match what {
                    0 => if pair.send(len) {
                        under_way.push_back((pair.writer.sent() as u8 - 1, len));
                    } else {
                        prop_assert!(pair.writer.sent() > pair.writer.consumed(), "an empty ring has a place");
                        prop_assert_eq!(pair.writer.chunks(), chunks, "it grows first");
                    },
                    1 => if let Some((number, len)) = under_way.pop_front() {
                        prop_assert_eq!(pair.receive(), vec![number; len as usize]);
                        received += 1;
                    },
                    _ => prop_assert!(pair.writer.note_consumed(received)),
                }
            }
        }
    }
}
