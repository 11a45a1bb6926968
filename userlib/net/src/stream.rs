//! A connection as the program has it.

use crate::address::Address;
use crate::config::Way;
use crate::conn::{Conn, Piece, Pieces};
use crate::engine::{Call, Handle};
use crate::error;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// What two halves share.
struct Shared {
    engine: Arc<Handle>,
    conn: Arc<Conn>,
}

/// The half that reads.
pub struct Reader {
    shared: Shared,
    /// What was taken and not read yet. Nothing while the connection is idle.
    pieces: Option<Box<Pieces>>,
    /// How many bytes of the first piece were read.
    at: u32,
    /// The last bytes came by a write or a read, as more of them will.
    bulk: bool,
    nonblocking: bool,
    shut: bool,
    limit: Limit,
}

/// The half that writes.
pub struct Writer {
    shared: Shared,
    /// How many bytes were sent.
    sent: u32,
    way: Way,
    nonblocking: bool,
    shut: bool,
    limit: Limit,
}

/// How long a call waits, in nanoseconds. Thousands of idle connections have two of them each: half of an `Option<Duration>`.
#[derive(Clone, Copy)]
struct Limit(u64);

impl Limit {
    /// For ever.
    const NONE: Self = Self(u64::MAX);

    const fn new(timeout: Option<Duration>) -> Self {
        match timeout {
            Some(span) if span.as_nanos() < u64::MAX as u128 => Self(span.as_nanos() as u64),
            _ => Self::NONE,
        }
    }

    fn timeout(self) -> Option<Duration> {
        (self.0 != Self::NONE.0).then(|| Duration::from_nanos(self.0))
    }
}

/// A connection: bytes both ways, in order, each once. From [`Net::connect`](crate::Net::connect) and
/// [`Listener::accept`](crate::Listener::accept).
///
/// It reads and writes as a `TcpStream` does, and ends as one: [`shutdown`](Self::shutdown) closes one direction; dropping it
/// closes both, after what was written; dropped with bytes unread, it resets the connection. What had arrived before a reset
/// can still be read.
pub struct Stream {
    reader: Reader,
    writer: Writer,
}

/// Bytes that have arrived, where they lie. From [`Stream::recv_zero_copy`]. They are the reader's until this is dropped.
pub struct Received {
    shared: Shared,
    piece: Piece,
    from: usize,
}

impl Shared {
    fn again(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
            conn: Arc::clone(&self.conn),
        }
    }

    /// So many bytes were read.
    fn consumed(&self, count: usize) {
        if self.conn.consume(count) >= self.engine.config.window / 2 && !self.conn.has_ended() {
            self.engine.call(Call::Window(Arc::clone(&self.conn)));
        }
    }
}

impl Reader {
    fn new(shared: Shared) -> Self {
        Self {
            shared,
            pieces: None,
            at: 0,
            bulk: false,
            nonblocking: false,
            shut: false,
            limit: Limit::NONE,
        }
    }

    /// What has come, if anything has; an error, or the end, if that comes next.
    fn fill(&mut self, context: Option<&Context<'_>>) -> Poll<io::Result<bool>> {
        if self.pieces.is_some() {
            return Poll::Ready(Ok(true));
        }
        if self.shut {
            return Poll::Ready(Ok(false));
        }
        let conn = &self.shared.conn;
        if let Some(context) = context {
            conn.reader.register(context.waker());
        }
        // First what says that no more comes, then what has come: so nothing that came before is passed over.
        let behind = conn.behind();
        if let Some(pieces) = conn.take() {
            self.bulk = matches!(pieces.back(), Some(Piece::Landed(_)));
            (self.pieces, self.at) = (Some(pieces), 0);
            return Poll::Ready(Ok(true));
        }
        match behind {
            Some(Ok(())) => Poll::Ready(Ok(false)),
            Some(Err(reason)) => Poll::Ready(Err(reason.error())),
            None => Poll::Pending,
        }
    }

    fn copy(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.front()) else {
                break;
            };
            let at = self.at as usize;
            let now = (piece.len() - at).min(into.len() - done);
            piece.read_into(at, &mut into[done..done + now])?;
            done += now;
            if at + now == piece.len() {
                self.pop();
                self.at = 0;
            } else {
                self.at += now as u32;
            }
        }
        self.shared.consumed(done);
        Ok(done)
    }

    /// Takes the first piece.
    fn pop(&mut self) -> Option<Piece> {
        let pieces = self.pieces.as_mut()?;
        let piece = pieces.pop_front();
        if pieces.is_empty() {
            self.pieces = None;
        }
        piece
    }

    /// How many bytes were taken and not read.
    fn unread(&self) -> usize {
        let pieces = self.pieces.iter().flat_map(|pieces| pieces.iter());
        pieces.map(Piece::len).sum::<usize>() - self.at as usize
    }

    /// Reads what has come. If nothing has, the waker is called when something comes.
    ///
    /// # Errors
    /// As [`Stream::recv`].
    pub fn poll_read(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_fill(context).map(|filled| match filled? {
            true => self.copy(into),
            false => Ok(0),
        })
    }

    /// How many bytes can be read at once; 0: no more comes. If neither is known yet, the waker is called when something comes.
    ///
    /// # Errors
    /// What a read would fail with: as [`Stream::recv`].
    pub fn poll_readable(&mut self, context: &Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_fill(context).map(|filled| {
            filled?;
            self.gather();
            Ok(self.unread())
        })
    }

    /// Takes what has come since the last pieces were taken.
    fn gather(&mut self) {
        if let (Some(pieces), Some(mut more)) = (&mut self.pieces, self.shared.conn.take()) {
            pieces.append(&mut more);
        }
    }

    fn poll_fill(&mut self, context: &Context<'_>) -> Poll<io::Result<bool>> {
        if let Poll::Ready(filled) = self.fill(None) {
            return Poll::Ready(filled);
        }
        self.shared.engine.drive();
        self.fill(Some(context))
    }

    /// Waits until there is something. False: no more comes.
    fn wait(&mut self) -> io::Result<bool> {
        if let Poll::Ready(filled) = self.fill(None) {
            return filled;
        }
        let engine = Arc::clone(&self.shared.engine);
        if self.nonblocking {
            engine.look();
            return match self.fill(None) {
                Poll::Ready(filled) => filled,
                Poll::Pending => Err(error::would_block()),
            };
        }
        engine.wait_for_piece(self.bulk, self.limit.timeout(), |context| self.fill(context))
    }

    fn receive(&mut self) -> io::Result<Option<Received>> {
        if !self.wait()? {
            return Ok(None);
        }
        let from = std::mem::take(&mut self.at) as usize;
        Ok(self.pop().map(|piece| Received {
            shared: self.shared.again(),
            piece,
            from,
        }))
    }

    fn shut(&mut self) {
        self.shut = true;
        let came = self.shared.conn.take().unwrap_or_default();
        let unread = self.unread() + came.iter().map(Piece::len).sum::<usize>();
        (self.pieces, self.at) = (None, 0);
        drop(came);
        self.shared.consumed(unread);
        let call = Call::ReaderGone(Arc::clone(&self.shared.conn));
        self.shared.engine.call(call);
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || !self.wait()? {
            return Ok(0);
        }
        self.copy(into)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Shared { engine, conn } = &self.shared;
        let unread = !self.shut && (self.pieces.is_some() || conn.take().is_some());
        let conn = Arc::clone(conn);
        engine.call(if unread {
            Call::Abort(conn)
        } else {
            Call::ReaderGone(conn)
        });
    }
}

impl Piece {
    fn read_into(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => match bytes.get(at..at + into.len()) {
                Some(part) => {
                    into.copy_from_slice(part);
                    Ok(())
                }
                None => Err(error::error(ErrorKind::InvalidInput, "there are fewer bytes")),
            },
            Self::Landed(landed) if at + into.len() <= landed.len() => landed.read_into(at, into),
            Self::Landed(_) => Err(error::error(ErrorKind::InvalidInput, "there are fewer bytes")),
        }
    }
}

impl Received {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.piece.len() - self.from
    }

    /// Never: what has arrived has bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they lie where the card has put them. If not they came in messages, or memory was scarce.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        matches!(self.piece, Piece::Landed(_))
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if there are fewer; the library's, where a page of them cannot be had.
    pub fn read_into(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        self.piece.read_into(self.from.saturating_add(offset), into)
    }

    /// A copy of all.
    ///
    /// # Errors
    /// The library's, where a page of them cannot be had.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        self.read_into(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let len = self.len();
        // The piece first: what the window lets in may need it.
        self.piece = Piece::Bytes(Vec::new());
        self.shared.consumed(len);
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({} bytes)", self.len())
    }
}

impl Writer {
    fn new(shared: Shared, way: Way) -> Self {
        Self {
            shared,
            sent: 0,
            way,
            nonblocking: false,
            shut: false,
            limit: Limit::NONE,
        }
    }

    /// Sends what there is room for.
    fn attempt(&mut self, context: Option<&Context<'_>>, bytes: &[u8], way: Way) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(error)) = self.room(context) {
            return Poll::Ready(Err(error));
        }
        let Shared { engine, conn } = &self.shared;
        let room = conn.room(self.sent);
        let now = &bytes[..bytes.len().min(room)];
        if now.is_empty() {
            return Poll::Pending;
        }
        let sent = match engine.with(|core, engine| core.send(engine, conn, now, way)) {
            Some(sent) => sent,
            None => {
                let part = &now[..now.len().min(HAND_OVER)];
                engine.hand_over(conn, part, way).map_or(0, |()| part.len())
            }
        };
        self.sent = self.sent.wrapping_add(sent as u32);
        match sent {
            0 => match conn.over() {
                Some(reason) => Poll::Ready(Err(reason.error())),
                None => Poll::Pending,
            },
            sent => Poll::Ready(Ok(sent)),
        }
    }

    /// Sends what there is room for. If there is none, the waker is called when there is.
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let way = self.way;
        if let Poll::Ready(sent) = self.attempt(None, bytes, way) {
            return Poll::Ready(sent);
        }
        self.shared.engine.drive();
        self.attempt(Some(context), bytes, way)
    }

    /// Whether bytes can be written. If not yet, the waker is called when there is room.
    ///
    /// # Errors
    /// What a write would fail with: as [`Stream::send`].
    pub fn poll_writable(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let starves =
            |now: &Poll<io::Result<()>>| matches!(now, Poll::Ready(Ok(()))) && self.shared.conn.is_starved();
        let now = self.room(None);
        if now.is_ready() && !starves(&now) {
            return now;
        }
        self.shared.engine.drive();
        let now = self.room(Some(context));
        if starves(&now) { Poll::Pending } else { now }
    }

    /// Whether there is room.
    fn room(&self, context: Option<&Context<'_>>) -> Poll<io::Result<()>> {
        let conn = &self.shared.conn;
        if let Some(context) = context {
            conn.writer.register(context.waker());
        }
        if self.shut {
            return Poll::Ready(Err(error::shut()));
        }
        match conn.over() {
            Some(reason) => Poll::Ready(Err(reason.error())),
            None if conn.room(self.sent) > 0 => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    fn send(&mut self, bytes: &[u8], way: Way) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if let Poll::Ready(sent) = self.attempt(None, bytes, way) {
            return sent;
        }
        let engine = Arc::clone(&self.shared.engine);
        if self.nonblocking {
            engine.look();
            return match self.attempt(None, bytes, way) {
                Poll::Ready(sent) => sent,
                Poll::Pending => Err(error::would_block()),
            };
        }
        let bulk = way != Way::Message && bytes.len() >= engine.config.large as usize;
        engine.wait_for_piece(bulk, self.limit.timeout(), |context| {
            self.attempt(context, bytes, way)
        })
    }

    /// Waits until the connection stands, or is refused.
    pub(crate) fn poll_connected(&self, context: Option<&Context<'_>>) -> Poll<io::Result<()>> {
        let conn = &self.shared.conn;
        if let Some(context) = context {
            conn.writer.register(context.waker());
        }
        match conn.over() {
            Some(reason) => Poll::Ready(Err(reason.error())),
            None if conn.is_connected() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    pub(crate) fn shut(&mut self) {
        if !std::mem::replace(&mut self.shut, true) {
            self.shared.engine.call(Call::End(Arc::clone(&self.shared.conn)));
        }
    }
}

/// Bytes that a call hands over to another thread at once.
const HAND_OVER: usize = 128 << 10;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let way = self.way;
        self.send(bytes, way)
    }

    /// Nothing: what was written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let call = Call::WriterGone(Arc::clone(&self.shared.conn));
        self.shared.engine.call(call);
    }
}

impl Stream {
    pub(crate) fn new(engine: Arc<Handle>, conn: Arc<Conn>) -> Self {
        let way = engine.config.way;
        let shared = Shared { engine, conn };
        Self {
            writer: Writer::new(shared.again(), way),
            reader: Reader::new(shared),
        }
    }

    pub(crate) const fn writer(&self) -> &Writer {
        &self.writer
    }

    #[cfg(feature = "tokio")]
    pub(crate) const fn reader_mut(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Reads what has come: as [`Reader::poll_read`].
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_read(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.reader.poll_read(context, into)
    }

    /// Sends what there is room for: as [`Writer::poll_write`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writer.poll_write(context, bytes)
    }

    /// How many bytes can be read at once: as [`Reader::poll_readable`].
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_readable(&mut self, context: &Context<'_>) -> Poll<io::Result<usize>> {
        self.reader.poll_readable(context)
    }

    /// Whether bytes can be written: as [`Writer::poll_writable`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn poll_writable(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_writable(context)
    }

    /// Sends bytes in the way that is named, as far as there is room, and tells how many. At least one, or it waits.
    ///
    /// # Errors
    /// As [`write`](Write::write): [`ConnectionReset`](ErrorKind::ConnectionReset), [`BrokenPipe`](ErrorKind::BrokenPipe) after a
    /// shutdown, [`WouldBlock`](ErrorKind::WouldBlock), [`TimedOut`](ErrorKind::TimedOut),
    /// [`NotConnected`](ErrorKind::NotConnected) when the network has ended.
    pub fn send(&mut self, bytes: &[u8], way: Way) -> io::Result<usize> {
        self.writer.send(bytes, way)
    }

    /// Receives bytes: another name of [`read`](Read::read).
    ///
    /// # Errors
    /// As [`read`](Read::read): [`ConnectionReset`](ErrorKind::ConnectionReset), [`WouldBlock`](ErrorKind::WouldBlock),
    /// [`TimedOut`](ErrorKind::TimedOut), [`NotConnected`](ErrorKind::NotConnected) when the network has ended.
    pub fn recv(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }

    /// Receives the next piece where it lies, without a copy. Nothing: the other end sends no more. The piece counts in the
    /// connection's window until it is dropped.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_zero_copy(&mut self) -> io::Result<Option<Received>> {
        self.reader.receive()
    }

    /// Closes one direction or both. After [`Write`](Shutdown::Write) the other end reads what was written, and then the end; after
    /// [`Read`](Shutdown::Read) this end reads nothing more, and what comes is thrown away.
    pub fn shutdown(&mut self, how: Shutdown) {
        if how != Shutdown::Read {
            self.writer.shut();
        }
        if how != Shutdown::Write {
            self.reader.shut();
        }
    }

    /// Two halves, for two threads. The connection ends when both are gone.
    #[must_use]
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }

    /// Whether calls return at once with [`WouldBlock`](ErrorKind::WouldBlock) instead of waiting.
    pub const fn set_nonblocking(&mut self, nonblocking: bool) {
        self.reader.nonblocking = nonblocking;
        self.writer.nonblocking = nonblocking;
    }

    /// How long a read waits; none: for ever.
    pub const fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.reader.limit = Limit::new(timeout);
    }

    /// How long a write waits for room; none: for ever.
    pub const fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.writer.limit = Limit::new(timeout);
    }

    /// The way that [`write`](Write::write) takes.
    pub const fn set_way(&mut self, way: Way) {
        self.writer.way = way;
    }

    /// Where the other end is. The number is the listener's.
    #[must_use]
    pub fn peer_address(&self) -> Address {
        let conn = &self.writer.shared.conn;
        Address {
            node: conn.peer.0,
            port: conn.peer.1,
            service: conn.service,
        }
    }

    /// Whether this end was accepted by a listener.
    #[must_use]
    pub fn was_accepted(&self) -> bool {
        self.writer.shared.conn.accepted
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    /// Nothing: what was written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.peer_address())
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thousands of them are idle.
    #[test]
    fn a_stream_is_small() {
        assert!(size_of::<Stream>() <= 72, "{}", size_of::<Stream>());
    }

    #[test]
    fn a_limit_is_as_long_as_its_timeout() {
        for timeout in [None, Some(Duration::ZERO), Some(Duration::from_millis(7))] {
            assert_eq!(Limit::new(timeout).timeout(), timeout);
        }
        assert_eq!(Limit::new(Some(Duration::MAX)).timeout(), None);
    }
}
