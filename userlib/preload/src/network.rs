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

use crate::greeting::{Nonce, Word};
use crate::process::process;
use crate::socket::Socket;
use crate::watch::Watcher;

/// Where streams come to that take a connection over.
const SERVICE: u16 = 1;
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
    has_lost: AtomicBool,
}

/// What there is once it was opened.
pub(crate) struct Open {
    node: SoftNode,
    pub(crate) net: Net,
    address: Address,
    listener: Mutex<Listener>,
    /// Streams that were accepted and have not said yet which connection they are for.
    unnamed: Mutex<Vec<Unnamed>>,
    /// Something may have come for the two above.
    came: AtomicBool,
    arrivals: Waker,
}

struct Unnamed {
    stream: Stream,
    word: Word,
    have: usize,
}

/// The network of a process.
#[derive(Default)]
pub(crate) struct Network {
    /// `None`: it could not be opened, and connections stay with TCP.
    open: OnceLock<Option<Open>>,
    /// Connections of this process that others may take over.
    greeting: Mutex<HashMap<Nonce, Weak<Socket>>>,
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

    /// A connection that may be taken over.
    pub(crate) fn expect(&self, nonce: Nonce, socket: &Arc<Socket>) {
        self.greeting.lock().insert(nonce, Arc::downgrade(socket));
    }

    pub(crate) fn forget(&self, nonce: &Nonce) {
        self.greeting.lock().remove(nonce);
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

    /// The program uses a connection that has moved in the process that this one was forked from. Said once: it may try for ever.
    pub(crate) fn tell_lost(&self) {
        if !self.counts.has_lost.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "a connection had moved before this process was forked, and stays its parent's: run this program without the library"
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
            while let Poll::Ready(Ok(stream)) = open.listener.lock().poll_accept(&mut context) {
                unnamed.push(Unnamed {
                    stream,
                    word: Word::new_zeroed(),
                    have: 0,
                });
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
    fn give(&self, mut one: Unnamed) {
        let socket = self.greeting.lock().remove(&one.word.nonce);
        match socket.and_then(|socket| socket.upgrade()) {
            Some(socket) => socket.arrive(one.stream, one.word.before.get()),
            None => {
                let word = Word::new(one.word.nonce, Word::STAYS);
                // The stream is new, so there is room. If it has ended, so has what it was for.
                let _ = one
                    .stream
                    .poll_write(&Context::from_waker(Waker::noop()), word.as_bytes());
            }
        }
    }
}

impl Unnamed {
    /// Reads which connection it is for. `false`: it has ended before.
    fn fill(&mut self, context: &Context<'_>) -> Poll<bool> {
        while self.have < Word::BYTES {
            let rest = &mut self.word.as_mut_bytes()[self.have..];
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
        let mut listener = net.listen(SERVICE)?;
        let arrivals = Waker::from(Arc::new(Arrivals));
        // Nothing can have come: the address was not told yet. It leaves the waker.
        let early = listener.poll_accept(&mut Context::from_waker(&arrivals));
        drop(early);
        Ok(Self {
            address: listener.local_address(),
            listener: Mutex::new(listener),
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
}

/// What connections have sent is sent, and the other ends hear that no more comes, when the process ends in an orderly way.
fn at_exit() {
    static REGISTERED: Once = Once::new();
    // A child of `fork` has inherited it.
    REGISTERED.call_once(|| {
        // SAFETY: the function may be called at any time, and this library is never unloaded. Without memory for it an exit is as
        // sudden as a signal.
        let _ = unsafe { libc::atexit(leave) };
    });
}

/// The process ends.
pub(crate) extern "C" fn leave() {
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
    let Counts { moved, stayed, .. } = &process.network.counts;
    say(format_args!(
        "{} connections have moved, {} have stayed with TCP",
        moved.load(Ordering::Relaxed),
        stayed.load(Ordering::Relaxed)
    ));
}

/// The word of a stream, from its bytes.
pub(crate) fn word(bytes: &[u8; Word::BYTES]) -> Word {
    Word::read_from_bytes(bytes).unwrap_or_else(|_| Word::new_zeroed())
}
