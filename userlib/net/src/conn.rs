//! What an end of a connection shares with the network's state: a few words, no lock, and no memory while it is idle.
//!
//! Bytes go from the thread that has the network's state to the reader of the connection through one word: a box of pieces. The
//! one takes the box out, adds a piece and puts it back. The other takes the box, and has it. Between taking and putting back
//! the reader finds nothing, and is woken after.

use crate::large::Landed;
use crate::wire::{Id, PeerAddress, Reason};
use crossbeam_utils::atomic::AtomicCell;
use futures_util::task::AtomicWaker;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pieces of a stream, oldest first.
pub(crate) type Pieces = VecDeque<Piece>;

/// A piece of a stream that has arrived.
pub(crate) enum Piece {
    /// It came in messages.
    Bytes(Vec<u8>),
    /// It lies where it was written, or read to.
    Landed(Landed),
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Landed(landed) => landed.len(),
        }
    }
}

/// Messages are put together to pieces of about so many bytes.
const PIECE: usize = 16 << 10;
/// Larger ones stay as they are: to move them costs more than a piece of their own.
const SMALL: usize = 1 << 10;

/// The connection stands: bytes may be sent.
const CONNECTED: u32 = 1;
/// The other end sends no more.
const ENDED: u32 = 2;
/// It is over.
const RESET: u32 = 4;
/// Bits of the reason begin here.
const REASON: u32 = 8;
/// There is no place for its bytes, at the peer or in the queue of calls: the writer is woken when there is.
const STARVED: u32 = 1 << 31;

/// Why it is over, if it is.
fn reason(state: u32) -> Option<Reason> {
    (state & RESET != 0).then(|| Reason::of((state >> REASON) as u8))
}

/// One end.
pub(crate) struct Conn {
    inbox: AtomicCell<Option<Box<Pieces>>>,
    /// Waits for bytes.
    pub(crate) reader: AtomicWaker,
    /// Waits for room, or for the connection to stand.
    pub(crate) writer: AtomicWaker,
    /// Up to which byte may be sent.
    allowed: AtomicU32,
    /// Up to which byte the program has read.
    consumed: AtomicU32,
    /// Up to which byte the other end knows of that.
    told: AtomicU32,
    state: AtomicU32,
    pub(crate) id: Id,
    pub(crate) peer: PeerAddress,
    /// The listener's number.
    pub(crate) service: u16,
    /// This end was accepted.
    pub(crate) accepted: bool,
}

impl Conn {
    pub(crate) fn new(id: Id, peer: PeerAddress, service: u16, accepted: bool) -> Self {
        Self {
            inbox: AtomicCell::new(None),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            allowed: AtomicU32::new(0),
            consumed: AtomicU32::new(0),
            told: AtomicU32::new(0),
            state: AtomicU32::new(0),
            id,
            peer,
            service,
            accepted,
        }
    }

    // ---- the network's side: one thread at a time ----

    /// Adds bytes, and wakes the reader.
    pub(crate) fn deliver(&self, piece: Piece) {
        let mut inbox = self.inbox.take().unwrap_or_default();
        match (inbox.back_mut(), piece) {
            (Some(Piece::Bytes(last)), Piece::Bytes(bytes))
                if bytes.len() <= SMALL && last.len() + bytes.len() <= PIECE =>
            {
                last.extend_from_slice(&bytes);
            }
            (_, piece) => inbox.push_back(piece),
        }
        self.inbox.store(Some(inbox));
        self.reader.wake();
    }

    /// The connection stands, and the other end takes so many bytes.
    pub(crate) fn connect(&self, window: u32) {
        self.allowed.store(window, Ordering::Release);
        self.state.fetch_or(CONNECTED, Ordering::AcqRel);
        self.writer.wake();
    }

    /// The other end's program has read up to there.
    pub(crate) fn allow(&self, up_to: u32) {
        let before = self.allowed.load(Ordering::Relaxed);
        if up_to.wrapping_sub(before).cast_signed() > 0 {
            self.allowed.store(up_to, Ordering::Release);
            self.writer.wake();
        }
    }

    /// There is no place for its bytes now. Tells whether there was.
    pub(crate) fn starve(&self) -> bool {
        self.state.fetch_or(STARVED, Ordering::AcqRel) & STARVED == 0
    }

    /// There is a place again.
    pub(crate) fn feed(&self) {
        self.state.fetch_and(!STARVED, Ordering::AcqRel);
        self.writer.wake();
    }

    pub(crate) fn is_starved(&self) -> bool {
        self.state.load(Ordering::Acquire) & STARVED != 0
    }

    /// The other end sends no more.
    pub(crate) fn end(&self) {
        self.state.fetch_or(ENDED, Ordering::AcqRel);
        self.reader.wake();
    }

    /// It is over. The first reason stays.
    pub(crate) fn reset(&self, reason: Reason) {
        let word = RESET | (reason as u32) << REASON;
        let set = |state: u32| (state & RESET == 0).then_some(state | word);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
        self.reader.wake();
        self.writer.wake();
    }

    /// What the other end is to be told, in the next message to it.
    pub(crate) fn tell_consumed(&self) -> u32 {
        let consumed = self.consumed.load(Ordering::Acquire);
        self.told.store(consumed, Ordering::Relaxed);
        consumed
    }

    /// How many bytes the program has read.
    pub(crate) fn consumed(&self) -> u32 {
        self.consumed.load(Ordering::Acquire)
    }

    // ---- either side ----

    pub(crate) fn is_connected(&self) -> bool {
        self.state.load(Ordering::Acquire) & CONNECTED != 0
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<Reason> {
        reason(self.state.load(Ordering::Acquire))
    }

    // ---- the program's side ----

    /// What the reader finds behind all that has come: the end, or why it is over; nothing yet. It is one look at one word: where the end
    /// came first, it is the end, however soon the connection is over after it.
    pub(crate) fn behind(&self) -> Option<Result<(), Reason>> {
        let state = self.state.load(Ordering::Acquire);
        if state & ENDED != 0 {
            Some(Ok(()))
        } else {
            reason(state).map(Err)
        }
    }

    /// What has come.
    pub(crate) fn take(&self) -> Option<Box<Pieces>> {
        self.inbox.take()
    }

    /// How many bytes may be sent behind the first `sent`.
    pub(crate) fn room(&self, sent: u32) -> usize {
        let room = self.allowed.load(Ordering::Acquire).wrapping_sub(sent);
        room.cast_signed().max(0) as usize
    }

    /// The program has read so many bytes more. Tells how many the other end does not know of.
    pub(crate) fn consume(&self, count: usize) -> u32 {
        let consumed = self.consumed.load(Ordering::Relaxed).wrapping_add(count as u32);
        self.consumed.store(consumed, Ordering::Release);
        consumed.wrapping_sub(self.told.load(Ordering::Relaxed))
    }
}

const _: () = assert!(AtomicCell::<Option<Box<Pieces>>>::is_lock_free());

#[cfg(test)]
mod tests {
    use super::*;
    use netvm::{NodeId, PortId};

    fn conn() -> Conn {
        Conn::new(Id::new(1, 1), (NodeId(0), PortId(1)), 80, false)
    }

    #[test]
    fn an_end_is_small() {
        assert!(size_of::<Conn>() <= 112, "{}", size_of::<Conn>());
    }

    #[test]
    fn bytes_come_in_order_and_pieces_are_put_together() {
        let conn = conn();
        assert!(conn.take().is_none());
        conn.deliver(Piece::Bytes(b"one".to_vec()));
        conn.deliver(Piece::Bytes(b"two".to_vec()));
        conn.deliver(Piece::Bytes(vec![7; SMALL + 1]));
        for _ in 0..16 {
            conn.deliver(Piece::Bytes(vec![7; SMALL]));
        }
        let pieces = conn.take().unwrap();
        let whole = PIECE - SMALL + 1;
        assert_eq!(
            pieces.iter().map(Piece::len).collect::<Vec<_>>(),
            [6, whole, 2 * SMALL]
        );
        assert!(conn.take().is_none());
    }

    /// A peer that ends its connection and then its network: the reader sees the end, whenever it looks.
    #[test]
    fn an_end_before_a_reset_is_an_end() {
        for _ in 0..5_000 {
            let conn = conn();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    conn.end();
                    conn.reset(Reason::PeerLost);
                });
                let behind = loop {
                    match conn.behind() {
                        Some(behind) => break behind,
                        None => std::hint::spin_loop(),
                    }
                };
                assert_eq!(behind, Ok(()));
            });
        }
        let conn = conn();
        conn.reset(Reason::PeerLost);
        assert_eq!(conn.behind(), Some(Err(Reason::PeerLost)));
    }

    #[test]
    fn the_first_reason_stays_and_windows_never_shrink() {
        let conn = conn();
        assert!(!conn.is_connected());
        conn.connect(100);
        assert_eq!((conn.room(40), conn.room(100)), (60, 0));
        conn.allow(90);
        assert_eq!(conn.room(0), 100);
        conn.allow(130);
        assert_eq!(conn.room(100), 30);
        assert_eq!(conn.consume(10), 10);
        assert_eq!(conn.tell_consumed(), 10);
        assert_eq!(conn.consume(5), 5);
        assert_eq!(conn.over(), None);
        conn.reset(Reason::PeerLost);
        conn.reset(Reason::Reset);
        assert_eq!(conn.over(), Some(Reason::PeerLost));
    }
}
