//! What both sides of a channel agree on: where things lie in the memory that each lets the other use.
//!
//! The receiver's export begins with a page that says how the queue is made, and has a word for the
//! sender's name and one for its farewell. Entries follow: a head of 8 bytes (length, number), then the
//! message. The sender's export, one page, has a word for the count of entries given back and one for
//! the receiver's farewell. All words are aligned and little-endian, so they are written in one piece.

use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::{Generation, NodeId, NotificationId, PAGE_SIZE, PortId};

/// Marks the memory of a channel of this version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"NetVMch2");
/// Bytes before each message.
pub(super) const HEAD_BYTES: u64 = 8;
/// Entries begin at multiples of this: no line of the processor's cache belongs to two messages.
const LINE: u64 = 64;
const PAGE: u64 = PAGE_SIZE as u64;

/// Offsets in the receiver's export.
pub(super) mod queue {
    /// The receiver's description of the channel.
    pub(in super::super) const DESCRIPTION: u64 = 0;
    /// The sender: an [`Owner`](super::Owner).
    pub(in super::super) const OWNER: u64 = 64;
    /// The sender's farewell: 0, or a [`Farewell`](super::Farewell).
    pub(in super::super) const FAREWELL: u64 = 72;
    /// Where the receiver's own looks put what they read. No one looks there.
    pub(in super::super) const LOOKS: u64 = 80;
}

/// Offsets in the sender's export.
pub(super) mod credits {
    /// Entries given back since the beginning.
    pub(in super::super) const FREED: u64 = 0;
    /// Not 0 when the receiver has gone.
    pub(in super::super) const FAREWELL: u64 = 8;
    /// Length of the export.
    pub(in super::super) const LEN: u64 = 16;
    /// Where the sender's own looks put what they read, behind the export. No one looks there.
    pub(in super::super) const LOOKS: u64 = 64;
}

/// How a queue is made. Part of the description, so an importer checks it before use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Largest message.
    pub(super) message_bytes: u64,
    /// Entries.
    pub(super) capacity: u32,
    /// The receiver's notification.
    pub(super) notification: NotificationId,
}

/// Bytes of a description.
pub(super) const DESCRIPTION_BYTES: usize = 32;

impl Layout {
    /// As the receiver's memory says it.
    pub(super) fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        let words = [
            MAGIC,
            self.message_bytes,
            u64::from(self.capacity),
            u64::from(self.notification.0),
        ];
        let mut bytes = [0; DESCRIPTION_BYTES];
        for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *eight = word.to_le_bytes();
        }
        bytes
    }

    /// Reads a description of a queue that is said to lie in an export of `len` bytes. Says what is wrong
    /// with it, if anything is.
    pub(super) fn decode(bytes: &[u8; DESCRIPTION_BYTES], len: u64) -> Result<Self, &'static str> {
        let mut words = [0; DESCRIPTION_BYTES / 8];
        for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*eight);
        }
        let [magic, message_bytes, capacity, notification] = words;
        if magic != MAGIC {
            return Err("it is not the queue of a channel of this version");
        }
        let (Ok(capacity), Ok(notification)) = (u32::try_from(capacity), u32::try_from(notification)) else {
            return Err("its description makes no sense");
        };
        let layout = Self {
            message_bytes,
            capacity,
            notification: NotificationId(notification),
        };
        match layout.export_len() {
            Some(needed) if needed <= len => Ok(layout),
            _ => Err("its description does not fit its size"),
        }
    }

    /// From one entry to the next, where several share a page; else whole pages.
    fn stride(&self) -> Option<u64> {
        let bytes = self.message_bytes.checked_add(HEAD_BYTES)?;
        if bytes <= PAGE {
            bytes.checked_next_multiple_of(LINE)
        } else {
            bytes.checked_next_multiple_of(PAGE)
        }
    }

    /// Bytes of all entries; `None` if no memory could hold them, or a length does not fit its head.
    pub(super) fn entries_len(&self) -> Option<u64> {
        u32::try_from(self.message_bytes).ok()?;
        let stride = self.stride()?;
        let capacity = u64::from(self.capacity);
        if capacity == 0 {
            return None;
        }
        match PAGE.checked_div(stride) {
            Some(per_page) if per_page > 0 => capacity.div_ceil(per_page).checked_mul(PAGE),
            _ => capacity.checked_mul(stride),
        }
    }

    /// Bytes of the receiver's export.
    pub(super) fn export_len(&self) -> Option<u64> {
        self.entries_len()?.checked_add(PAGE)
    }

    /// Where the entry of this message lies among the entries.
    pub(super) fn entry(&self, message: u64) -> u64 {
        let entry = message.checked_rem(u64::from(self.capacity)).unwrap_or_default();
        let stride = self.stride().unwrap_or(PAGE);
        match PAGE.checked_div(stride) {
            Some(per_page) if per_page > 0 => entry / per_page * PAGE + entry % per_page * stride,
            _ => entry * stride,
        }
    }

    /// Where the entry of this message lies in the receiver's export.
    pub(super) fn remote_entry(&self, message: u64) -> u64 {
        self.entry(message) + PAGE
    }
}

/// The head of a message's entry.
pub(super) fn head(message: u64, len: u64) -> [u8; HEAD_BYTES as usize] {
    (u64::from(number(message)) << 32 | (len & u64::from(u32::MAX))).to_le_bytes()
}

/// The number in an entry's head, and the length.
pub(super) fn split_head(head: [u8; HEAD_BYTES as usize]) -> (u32, u64) {
    let word = u64::from_le_bytes(head);
    ((word >> 32) as u32, word & u64::from(u32::MAX))
}

/// What an entry's head says if it holds this message: never what it says in fresh memory, or held
/// by the message before in the same entry.
pub(super) const fn number(message: u64) -> u32 {
    (message as u32).wrapping_add(1)
}

/// Identifies the sender: enough for the receiver to find the sender's export, and no other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) node: NodeId,
    pub(super) port: PortId,
    /// Which channel of the port it is: the next one that the port joins has another serial, and so has
    /// the first one of the port's next owner.
    pub(super) serial: Serial,
    /// What signals a replenishment. Never 0.
    pub(super) notification: NotificationId,
}

/// Bits of an event-count number.
const ID_BITS: u32 = EVENT_COUNTS.trailing_zeros();
/// Bits of a serial: what is left of the word.
const SERIAL_BITS: u32 = 64 - 16 - 16 - ID_BITS;

/// 2^22 divided by the golden ratio: multiples of it lie as far apart as they can.
const GOLDEN: u32 = 0x0027_8DDF;

/// Tells the channels that a port has joined from one another, and from those of the port's earlier lives.
///
/// The receiver finds the sender's export by a name, perhaps long after the sender has joined. If the sender has been
/// lost meanwhile, its notification number serves another channel of the same port, and the name must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Serial(u32);

impl Serial {
    /// The serial of the channel that this life of a port joins after `before` others.
    pub(super) const fn new(life: Generation, before: u32) -> Self {
        let first = life.0.wrapping_mul(GOLDEN);
        Self(first.wrapping_add(before) & ((1 << SERIAL_BITS) - 1))
    }
}

impl Owner {
    pub(super) const fn encode(&self) -> u64 {
        let from = (self.node.0 as u64) << 16 | self.port.0 as u64;
        let what = (self.serial.0 as u64) << ID_BITS | self.notification.0 as u64;
        from << (SERIAL_BITS + ID_BITS) | what
    }

    /// From the word that a sender has written; nothing if none has.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let bits = |from: u32, count: u32| (word >> from) as u32 & ((1 << count) - 1);
        (word != 0).then(|| Self {
            node: NodeId(bits(48, 16) as u16),
            port: PortId(bits(32, 16) as u16),
            serial: Serial(bits(ID_BITS, SERIAL_BITS)),
            notification: NotificationId(bits(0, ID_BITS)),
        })
    }

    /// The name of the sender's export.
    pub(super) fn export_name(&self) -> String {
        format!("netvm channel {} {}", self.notification.0, self.serial.0)
    }
}

/// The last word of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Farewell {
    /// Messages sent in all.
    pub(super) sent: u64,
    /// Some of them may be lost.
    pub(super) broken: bool,
}

impl Farewell {
    pub(super) const fn encode(&self) -> u64 {
        (self.sent << 2) | 1 | ((self.broken as u64) << 1)
    }

    pub(super) fn decode(word: u64) -> Option<Self> {
        (word != 0).then_some(Self {
            sent: word >> 2,
            broken: word & 2 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(message_bytes: u64, capacity: u32) -> Layout {
        Layout {
            message_bytes,
            capacity,
            notification: NotificationId(9),
        }
    }

    #[test]
    fn what_is_no_description_is_refused() {
        let good = layout(100, 8);
        let len = good.export_len().unwrap();
        assert_eq!(Layout::decode(&good.encode(), len), Ok(good));
        assert!(Layout::decode(&good.encode(), len - 1).is_err());
        assert!(Layout::decode(&[0; DESCRIPTION_BYTES], len).is_err());
        assert!(Layout::decode(&layout(100, 0).encode(), len).is_err());
        assert!(Layout::decode(&layout(u64::MAX, 1).encode(), u64::MAX).is_err());
        assert!(Layout::decode(&layout(1 << 32, 1).encode(), u64::MAX).is_err());
    }

    #[test]
    fn words_come_back() {
        let owner = Owner {
            node: NodeId(3),
            port: PortId(70),
            serial: Serial::new(Generation(u32::MAX), 5),
            notification: NotificationId(1022),
        };
        assert_eq!(Owner::decode(owner.encode()), Some(owner));
        assert_eq!(Owner::decode(0), None);
        for broken in [false, true] {
            let farewell = Farewell { sent: 12345, broken };
            assert_eq!(Farewell::decode(farewell.encode()), Some(farewell));
        }
        assert_eq!(Farewell::decode(0), None);
        assert_eq!(split_head(head(u64::from(u32::MAX), 4)), (0, 4));
    }

    #[test]
    fn channels_of_one_port_have_names_of_their_own() {
        let mut names = std::collections::BTreeSet::new();
        for life in 0..100 {
            for before in 0..100 {
                let owner = Owner {
                    node: NodeId(1),
                    port: PortId(2),
                    serial: Serial::new(Generation(life), before),
                    notification: NotificationId(9),
                };
                assert!(names.insert(owner.export_name()), "{life} {before}");
                assert_eq!(Owner::decode(owner.encode()), Some(owner));
            }
        }
    }

    proptest! {
        #[test]
        fn entries_lie_apart_and_cross_no_page_that_they_need_not(bytes in 0u64..20_000, capacity in 1u32..300) {
            let layout = layout(bytes, capacity);
            let all = layout.entries_len().unwrap();
            let mut end = 0;
            for message in 0..u64::from(capacity) {
                let at = layout.entry(message);
                prop_assert!(at >= end && at.is_multiple_of(LINE));
                end = at + HEAD_BYTES + bytes;
                prop_assert!(end <= all);
                if HEAD_BYTES + bytes <= PAGE {
                    prop_assert_eq!(at / PAGE, (end - 1) / PAGE);
                }
            }
            prop_assert_eq!(layout.entry(u64::from(capacity)), 0);
            prop_assert_eq!(Layout::decode(&layout.encode(), layout.export_len().unwrap()), Ok(layout));
        }
    }
}
