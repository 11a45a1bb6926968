//! The node and the network of a process: opened at the first connection that may move.

use std::collections::HashMap;
use std::io::{Error, Result};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use netvm_net::{Address, Listener, Net, NetConfig, Stream};
use netvm_process::SoftNode;
use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::greeting::{Back, End, Nonce, Word};
use crate::process::process;
use crate::socket::Socket;
use crate::watch::Watcher;

/// Where streams come to that take a connection over.
const SERVICE: u16 = 1;
/// Where streams come to that say that a connection goes back to TCP.
const BACK: u16 = 2;
/// How long a process waits for the node of another one, which runs: its hello has just come.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a process that ends waits for others to hear of streams.
const LINGER: Duration = Duration::from_millis(500);
/// If it is set to anything but nothing, the library says on standard error what it does.
const VERBOSE: &str = "NETVM_PRELOAD_VERBOSE";

/// What has become of connections.
#[derive(Default)]
struct Counts {
    moved: AtomicU64,
    stayed: AtomicU64,
    returned: AtomicU64,
    has_lost: AtomicBool,
}

/// What there is once it was opened.
pub(crate) struct Open {
    node: SoftNode,
    pub(crate) net: Net,
    address: Address,
    /// For [`SERVICE`] and [`BACK`].
    listeners: Mutex<[Listener; 2]>,
    /// Streams that were accepted and have not said yet which connection they are for.
    unnamed: Mutex<Vec<Unnamed>>,
    /// Something may have come for the two above.
    came: AtomicBool,
    arrivals: Waker,
}

/// A stream of which not all has come that it says first.
struct Unnamed {
    stream: Stream,
    says: [u8; MOST],
    have: usize,
    /// How many bytes that is: of a [`Word`], or of a [`Back`].
    wanted: usize,
}

/// The longer one of the two.
const MOST: usize = Back::BYTES;

/// Names a connection of this process.
pub(crate) type Name = (Nonce, End);

/// The network of a process.
#[derive(Default)]
pub(crate) struct Network {
    /// `None`: it could not be opened, and connections stay with TCP.
    open: OnceLock<Option<Open>>,
    /// Connections of this process that others may take over, or have.
    known: Mutex<HashMap<Name, Weak<Socket>>>,
    /// Connections that the program has closed, and another name of their TCP sockets, so that these do not end yet.
    closed: Mutex<Vec<(Arc<Socket>, OwnedFd)>>,
    /// Something may have changed with those.
    closed_changed: AtomicBool,
    counts: Counts,
}

/// Streams have come. Called on whichever thread has the network's state, so it never waits.
struct Arrivals;

impl Wake for Arrivals {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        process().network.take_arrivals();
    }
}

fn is_verbose() -> bool {
    static VERBOSE_SET: OnceLock<bool> = OnceLock::new();
    *VERBOSE_SET.get_or_init(|| std::env::var_os(VERBOSE).is_some_and(|value| !value.is_empty()))
}

/// Says something on standard error, if it is to.
fn say(what: std::fmt::Arguments<'_>) {
    if is_verbose() {
        let line = format!("netvm-preload[{}]: {what}\n", std::process::id());
        // What cannot be said is not said.
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}

impl Network {
    /// The network, opened if it is not. Nothing: it cannot be.
    pub(crate) fn open(&self) -> Option<&Open> {
        let open = self.open.get_or_init(|| match Open::new() {
            Ok(open) => {
                say(format_args!("node {}", open.node.number()));
                at_exit();
                Some(open)
            }
            Err(why) => {
                say(format_args!("connections stay with TCP: {why}"));
                None
            }
        });
        open.as_ref()
    }

    /// The network, if it was opened.
    pub(crate) fn known(&self) -> Option<&Open> {
        self.open.get()?.as_ref()
    }

    /// Where others reach this process.
    pub(crate) fn address(&self) -> Option<Address> {
        Some(self.open()?.address)
    }

    /// A connection that may be taken over, or has moved.
    pub(crate) fn know(&self, name: Name, socket: Weak<Socket>) {
        self.known.lock().insert(name, socket);
    }

    pub(crate) fn forget(&self, name: &Name) {
        self.known.lock().remove(name);
    }

    fn find(&self, name: &Name) -> Option<Arc<Socket>> {
        self.known.lock().get(name)?.upgrade()
    }

    pub(crate) fn count_moved(&self) {
        self.counts.moved.fetch_add(1, Ordering::Relaxed);
        say(format_args!("a connection has moved"));
    }

    /// A connection stays with TCP though its other end has the library.
    pub(crate) fn count_stayed(&self, why: &dyn std::fmt::Display) {
        self.counts.stayed.fetch_add(1, Ordering::Relaxed);
        say(format_args!("a connection stays with TCP: {why}"));
    }

    /// A connection goes back to TCP.
    pub(crate) fn count_returned(&self) {
        self.counts.returned.fetch_add(1, Ordering::Relaxed);
        say(format_args!(
            "a connection goes back to TCP: a parent and its child use it"
        ));
    }

    /// A child cannot have a connection of this process.
    pub(crate) fn tell_kept(&self, why: &dyn std::fmt::Display) {
        say(format_args!(
            "a connection does not go back to TCP, and a child waits for it: {why}"
        ));
    }

    /// The program uses a connection of its parent's, which does not give it. Said once: it may try for ever.
    pub(crate) fn tell_lost(&self, why: &dyn std::fmt::Display) {
        if !self.counts.has_lost.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "a connection had moved before this process was forked, and cannot go back to TCP: {why}"
            ));
        }
    }

    /// The program has closed a connection. Its stream ends; if the other end may not know of that yet, TCP stays until it does.
    pub(crate) fn close(&self, fd: RawFd, socket: Arc<Socket>) {
        if !socket.lingers() {
            return;
        }
        // SAFETY: the descriptor is open: it is closed after this.
        let Ok(tcp) = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0) else {
            return;
        };
        socket.end();
        socket.watchers().add(Watcher::Closed);
        self.closed.lock().push((socket, tcp));
        self.look_at_closed();
    }

    /// Lets go of those whose other end knows of its stream, or is gone. Called on any thread.
    pub(crate) fn look_at_closed(&self) {
        self.closed_changed.store(true, Ordering::SeqCst);
        while self.closed_changed.load(Ordering::SeqCst) {
            let Some(mut closed) = self.closed.try_lock() else {
                // The thread that is there looks once more after it has gone.
                return;
            };
            self.closed_changed.store(false, Ordering::SeqCst);
            let all = std::mem::take(&mut *closed);
            let (stay, go): (Vec<_>, Vec<_>) = all.into_iter().partition(|(socket, _)| socket.lingers());
            *closed = stay;
            drop(closed);
            // Without the lock: what is let go of makes calls.
            drop(go);
        }
    }

    /// Waits until other ends know of their streams, but not for long: the process ends.
    fn linger(&self, open: &Open, sockets: &[Arc<Socket>]) {
        let look = || {
            self.look_at_closed();
            let closed = self.closed.try_lock().is_none_or(|closed| !closed.is_empty());
            (!closed && !sockets.iter().any(|socket| socket.lingers())).then_some(())
        };
        // Whether it was so in the end or not, there is no more time.
        let _ = open.net.spin(LINGER, look);
    }

    /// Takes the streams that have come, and gives them to their connections.
    fn take_arrivals(&self) {
        let Some(open) = self.known() else {
            // It is being opened, and looks by itself when it is.
            return;
        };
        open.came.store(true, Ordering::SeqCst);
        while open.came.load(Ordering::SeqCst) {
            let Some(mut unnamed) = open.unnamed.try_lock() else {
                // The thread that is there looks once more after it has gone.
                return;
            };
            open.came.store(false, Ordering::SeqCst);
            let mut context = Context::from_waker(&open.arrivals);
            for (listener, wanted) in open.listeners.lock().iter_mut().zip([Word::BYTES, Back::BYTES]) {
                while let Poll::Ready(Ok(stream)) = listener.poll_accept(&mut context) {
                    unnamed.push(Unnamed {
                        stream,
                        says: [0; MOST],
                        have: 0,
                        wanted,
                    });
                }
            }
            let mut at = 0;
            while let Some(one) = unnamed.get_mut(at) {
                match one.fill(&context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(whole) => {
                        let one = unnamed.swap_remove(at);
                        if whole {
                            self.give(one);
                        }
                    }
                }
            }
        }
    }

    /// Gives a stream to the connection that it names.
    fn give(&self, one: Unnamed) {
        let Unnamed {
            stream, says, wanted, ..
        } = one;
        if wanted == Back::BYTES {
            // A connection that is not there was closed: the stream ends without an answer.
            if let Ok(back) = Back::read_from_bytes(&says)
                && let Some(to) = back.to()
                && let Some(socket) = self.find(&(back.nonce, to))
            {
                socket.is_asked_back(stream, back.sent.get());
            }
            return;
        }
        let Ok((word, _)) = Word::read_from_prefix(&says) else {
            return;
        };
        let unwanted = match self.find(&(word.nonce, End::Connected)) {
            Some(socket) => socket.arrive(stream, word.before.get()),
            None => Some(stream),
        };
        if let Some(mut stream) = unwanted {
            let word = Word::new(word.nonce, Word::STAYS);
            // The stream is new, so there is room. If it has ended, so has what it was for.
            let _ = stream.poll_write(&Context::from_waker(Waker::noop()), word.as_bytes());
        }
    }
}

impl Unnamed {
    /// Reads which connection it is for. `false`: it has ended before.
    fn fill(&mut self, context: &Context<'_>) -> Poll<bool> {
        while self.have < self.wanted {
            let rest = &mut self.says[self.have..self.wanted];
            match self.stream.poll_read(context, rest) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(false),
                Poll::Ready(Ok(count)) => self.have += count,
            }
        }
        Poll::Ready(true)
    }
}

impl Open {
    fn new() -> Result<Self> {
        let node = SoftNode::builder().start().map_err(Error::other)?;
        let net = Net::open(&node.node(), NetConfig::default().gather(true))?;
        let mut listeners = [net.listen(SERVICE)?, net.listen(BACK)?];
        let arrivals = Waker::from(Arc::new(Arrivals));
        for listener in &mut listeners {
            // Nothing can have come: the address was not told yet. It leaves the waker.
            let early = listener.poll_accept(&mut Context::from_waker(&arrivals));
            drop(early);
        }
        let [takes, _] = &listeners;
        Ok(Self {
            address: takes.local_address(),
            listeners: Mutex::new(listeners),
            unnamed: Mutex::default(),
            came: AtomicBool::new(false),
            arrivals,
            node,
            net,
        })
    }

    /// Begins a stream to another process's network.
    ///
    /// # Errors
    /// That process is not there, or has another user.
    pub(crate) fn begin(&self, to: Address) -> Result<Stream> {
        if to.node != self.node.number() {
            let link = self.node.connect(&format!("#{}", to.node), PATIENCE);
            link.map_err(Error::other)?;
        }
        self.net.begin_connect(to)
    }

    /// Begins a stream to the network that one comes from, to say that a connection goes back.
    ///
    /// # Errors
    /// That process is not there.
    pub(crate) fn begin_back(&self, peer: Address) -> Result<Stream> {
        self.net.begin_connect(Address::new(peer.node, peer.port, BACK))
    }
}

/// What connections have sent is sent, and the other ends hear that no more comes, when the process ends in an orderly way.
fn at_exit() {
    static REGISTERED: Once = Once::new();
    // A child of `fork` has inherited it.
    REGISTERED.call_once(|| {
        // SAFETY: the function may be called at any time, and this library is never unloaded. Without memory for it an exit is as
        // sudden as a signal.
        let _ = unsafe { libc::atexit(crate::calls::end) };
    });
}

/// The process ends.
pub(crate) fn leave() {
    let process = process();
    let Some(open) = process.network.known() else {
        return;
    };
    let sockets = crate::process::sockets();
    for socket in &sockets {
        socket.end();
    }
    process.network.linger(open, &sockets);
    open.net.leave();
    let counts = &process.network.counts;
    say(format_args!(
        "{} connections have moved, {} have stayed with TCP, {} have gone back to it",
        counts.moved.load(Ordering::Relaxed),
        counts.stayed.load(Ordering::Relaxed),
        counts.returned.load(Ordering::Relaxed)
    ));
}

/// The word of a stream, from its bytes.
pub(crate) fn word(bytes: &[u8; Word::BYTES]) -> Word {
    Word::read_from_bytes(bytes).unwrap_or_else(|_| Word::new_zeroed())
}
