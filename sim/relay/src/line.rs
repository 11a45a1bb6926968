//! A line that is as long as its delay: what goes in at one end comes out at the other that much later, in the same order.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Datagrams that a line holds. More are lost, as they are in a queue of a network.
const ROOM: usize = 1 << 16;

type Send = dyn Fn(&[u8]) + std::marker::Send;

/// A datagram, and when it comes out.
type Under = (Instant, Vec<u8>);

/// One direction's line. It ends when this is dropped, and what is in it has come out.
pub(crate) enum Line {
    /// Without a delay what goes in comes out at once.
    Short(Box<Send>),
    Long {
        delay: Duration,
        way: Option<SyncSender<Under>>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Line {
    /// A line at whose other end stands `send`.
    pub(crate) fn new(delay: Duration, send: impl Fn(&[u8]) + std::marker::Send + 'static) -> Self {
        if delay.is_zero() {
            return Self::Short(Box::new(send));
        }
        let (way, out) = sync_channel(ROOM);
        Self::Long {
            delay,
            way: Some(way),
            thread: Some(std::thread::spawn(move || come_out(&out, &send))),
        }
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        match self {
            Self::Short(send) => send(datagram),
            Self::Long { delay, way, .. } => {
                let due = Instant::now() + *delay;
                if let Some(way) = way {
                    let _ = way.try_send((due, datagram.to_vec()));
                }
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Self::Long { way, thread, .. } = self {
            drop(way.take());
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn come_out(out: &Receiver<Under>, send: &dyn Fn(&[u8])) {
    for (due, datagram) in out {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        send(&datagram);
    }
}
