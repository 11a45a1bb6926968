//! A network of connections at a port of a node.

use crate::address::Address;
use crate::config::{NetConfig, PLACES};
use crate::core::{Core, QUEUE};
use crate::engine::{Engine, Handle};
use crate::error;
use crate::listener::Listener;
use crate::stats::NetStats;
use crate::stream::Stream;
use crate::wire::Reason;
use netvm::{Node, NodeId, Port, PortConfig, PortId, SharedConfig, SharedReceiver};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Connections that wait to be accepted, if a program says nothing else.
const BACKLOG: usize = 1024;
/// Bytes of a message.
const MESSAGE: u64 = 4096;
/// The port's staging: writes of whole pieces pass through it.
const STAGING: u64 = 1 << 20;

/// A network: a port of a node, and all connections of a process through it.
///
/// Cheap to clone. It ends when the last handle goes, streams and listeners included: what was written leaves first, for
/// [so long](NetConfig::linger) at most, then peers are told.
#[derive(Clone)]
pub struct Net {
    engine: Arc<Handle>,
}

impl Net {
    /// Opens a network on a node.
    ///
    /// # Errors
    /// [`AddrInUse`](ErrorKind::AddrInUse) when the port is taken; the library's otherwise.
    pub fn open(node: &Node, config: NetConfig) -> io::Result<Self> {
        let mut ports = PortConfig::default().staging_bytes(STAGING);
        ports.port = config.port;
        let port = Port::open(node, ports).map_err(|refused| match refused {
            netvm::Error::Refused { .. } if config.port.is_some() => {
                io::Error::new(ErrorKind::AddrInUse, refused)
            }
            refused => error::library("no port for the network", refused),
        })?;
        let mut shared = SharedConfig::default().message_bytes(MESSAGE).capacity(PLACES);
        for node in &config.nodes {
            shared = shared.from_node(*node);
        }
        let queue = SharedReceiver::open(&port, QUEUE, shared)
            .map_err(|refused| error::library("no queue for the network", refused))?;
        let core = Core::new(queue, port.now(), &config);
        let engine = Engine::new(port, core, config);
        engine.drive();
        let engine = Arc::new(Handle::new(engine));
        Ok(Self { engine })
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.engine.port.node().id()
    }

    /// Its port, which others name to connect.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.engine.port.id()
    }

    /// Takes connections to this number, or to any free one for 0, from 49152 on; at most 1,024 wait to be accepted.
    ///
    /// # Errors
    /// [`AddrInUse`](ErrorKind::AddrInUse); [`NotConnected`](ErrorKind::NotConnected) when the network has ended.
    pub fn listen(&self, service: u16) -> io::Result<Listener> {
        self.listen_with(service, BACKLOG)
    }

    /// As [`listen`](Self::listen), and at most so many wait to be accepted: one more is refused.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_with(&self, service: u16, backlog: usize) -> io::Result<Listener> {
        let waiting = self
            .engine
            .ask(move |core, engine| core.listen(service, backlog.max(1), engine))??;
        Ok(Listener::new(Arc::clone(&self.engine), waiting))
    }

    /// Connects to a listener, and waits until that end of the connection is there. The listener's program need not have accepted
    /// it by then.
    ///
    /// # Errors
    /// [`ConnectionRefused`](ErrorKind::ConnectionRefused) where no listener has the number, its backlog is full, or no network is
    /// at that port; [`PermissionDenied`](ErrorKind::PermissionDenied) where this node is not admitted;
    /// [`HostUnreachable`](ErrorKind::HostUnreachable) where the node cannot be reached for two seconds;
    /// [`ConnectionReset`](ErrorKind::ConnectionReset) where the process dies while it is asked; [`QuotaExceeded`](ErrorKind::QuotaExceeded)
    /// when this network has as many [peers](NetConfig::peers) as it takes; [`NotConnected`](ErrorKind::NotConnected) when the
    /// network has ended; [`InvalidInput`](ErrorKind::InvalidInput) for a node that there cannot be.
    pub fn connect(&self, address: Address) -> io::Result<Stream> {
        self.connect_within(address, None)
    }

    /// As [`connect`](Self::connect), and waits so long at most.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`TimedOut`](ErrorKind::TimedOut).
    pub fn connect_timeout(&self, address: Address, timeout: Duration) -> io::Result<Stream> {
        self.connect_within(address, Some(timeout))
    }

    fn connect_within(&self, address: Address, timeout: Option<Duration>) -> io::Result<Stream> {
        let now = || self.engine.port.now().0;
        let begun = now();
        let wait = |stream: &Stream| {
            let writer = stream.writer();
            let left = timeout.map(|all| all.saturating_sub(Duration::from_nanos(now() - begun)));
            self.engine.wait(left, |context| writer.poll_connected(context))
        };
        let mut stream = self.begin_connect(address)?;
        let mut connected = wait(&stream);
        if is_from_before(&connected) {
            stream = self.begin_connect(address)?;
            connected = wait(&stream);
        }
        match connected {
            Ok(()) => Ok(stream),
            Err(late) if late.kind() == ErrorKind::TimedOut => Err(Reason::TimedOut.error()),
            Err(error) => Err(error),
        }
    }

    /// As [`connect`](Self::connect), as a future.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_async(&self, address: Address) -> io::Result<Stream> {
        let mut stream = self.begin_connect(address)?;
        let mut connected = poll_fn(|context| self.poll_connected(&stream, context)).await;
        if is_from_before(&connected) {
            stream = self.begin_connect(address)?;
            connected = poll_fn(|context| self.poll_connected(&stream, context)).await;
        }
        connected.map(|()| stream)
    }

    /// Begins what [`connect`](Self::connect) does, and does not wait. [`poll_connected`](Self::poll_connected) tells when the stream
    /// stands; until then writes wait, or [would](ErrorKind::WouldBlock). It asks once: where a process has taken the place of one that
    /// died, with which there was no connection, this ends in [`ConnectionReset`](ErrorKind::ConnectionReset), and the next one reaches it.
    ///
    /// # Errors
    /// As far as they are known at once: as [`connect`](Self::connect).
    pub fn begin_connect(&self, address: Address) -> io::Result<Stream> {
        if self.engine.port.node().geometry().nodes <= address.node.0 {
            return Err(error::error(
                ErrorKind::InvalidInput,
                "there cannot be a node of this number",
            ));
        }
        let conn = self
            .engine
            .ask(move |core, engine| core.connect(engine, address))??;
        Ok(Stream::new(Arc::clone(&self.engine), conn))
    }

    /// Whether a stream of [`begin_connect`](Self::begin_connect) stands. If not yet, the waker is called.
    ///
    /// # Errors
    /// Why it does not: as [`connect`](Self::connect).
    pub fn poll_connected(&self, stream: &Stream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.engine.drive();
        stream.writer().poll_connected(Some(context))
    }

    /// Drives a future to its end, blocking the caller in the back end's way: for programs without an executor.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.engine.port.block_on(future)
    }

    /// Takes what has come, if no thread does so already: for programs that poll, and have no other call to make.
    pub fn progress(&self) {
        self.engine.look();
    }

    /// Looks for something again and again for so long, as the calls of a stream do before they sleep: for a program that waits for
    /// many streams, or for other things beside them. Meanwhile no other thread is woken for what comes.
    pub fn spin<T>(&self, span: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut attempt =
            |_: Option<&Context<'_>>| look().map_or(Poll::Pending, |found| Poll::Ready(Ok(found)));
        self.engine.spin(span, &mut attempt)?.ok()
    }

    /// Runs something that sleeps outside of the network, such as `poll` of the system. Meanwhile the port's dispatcher takes what
    /// comes at once, and wakes those that wait for it. Streams of a network without [background](NetConfig::background) work need
    /// this, and others hear a millisecond sooner.
    pub fn asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.engine.asleep(sleep)
    }

    /// Ends the network now, as dropping the last handle of it does: what was written leaves, within [`linger`](NetConfig::linger), and
    /// peers are told. For a program that exits while it has handles: an exit drops none.
    pub fn leave(&self) {
        self.engine.leave_early();
    }

    /// The clock that its time-outs are measured with, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.engine.port.now().0
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// None that a program makes: those of a wait at a port that has ended.
    pub fn stats(&self) -> io::Result<NetStats> {
        self.engine.ask(|core, _| core.stats())
    }
}

/// Whether a connection was asked for of a process that is gone. One with which there was no connection is not watched, so this may be the
/// first to find that out; what has its place by now is asked by the next.
fn is_from_before(connected: &io::Result<()>) -> bool {
    let error = connected.as_ref().err();
    error.and_then(error::reason) == Some(Reason::PeerLost)
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Net(port {} of node {})", self.port(), self.node())
    }
}
