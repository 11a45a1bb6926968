//! A port in an event loop of the program, and completion queues.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use netvm::{Completion, CompletionQueue, Error, Events, Timeout};
use parking_lot::Mutex;

use crate::argument::{Led, fill, out, timeout, waited};
use crate::call::call;
use crate::errno;
use crate::fault::Fault;
use crate::handle::{self, handles};
use crate::pending::{self, BUSY, netvm_pending};
use crate::port::netvm_port;

/// A port as a part of an event loop.
pub struct netvm_events;
/// Operations of one port under way, in the order in which they end.
pub struct netvm_cq;

handles! {
    netvm_events = 7: Mutex<Events>;
    netvm_cq = 8: Mutex<CompletionQueue<usize>>;
}

/// Makes a port a part of an event loop: its descriptor becomes readable when something has happened there. A port has one of these at a
/// time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_events_open(port: *mut netvm_port, events: *mut *mut netvm_events) -> c_int {
    call(|| {
        let place = out(events, "events")?;
        let opened = handle::get(port)?.events()?;
        let made = handle::make(Mutex::new(opened))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// The descriptor, for poll(2) and epoll(7), until the handle is closed. The program only polls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_events_fd(events: *mut netvm_events, fd: *mut c_int) -> c_int {
    call(|| {
        let place = out(fd, "fd")?;
        let number = handle::get(events)?.try_lock().ok_or(BUSY)?.as_fd().as_raw_fd();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(number) };
        Ok(())
    })
}

/// Empties the descriptor. From now on a notification, a failure, a message, or the end of an operation under way makes it readable. What
/// happened before does not: so arm, then look, and poll if there is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_events_arm(events: *mut netvm_events) -> c_int {
    call(|| {
        let events = handle::get(events)?;
        let mut events = events.try_lock().ok_or(BUSY)?;
        events.turn()?;
        Ok(events.arm()?)
    })
}

/// Takes the port out of the event loop.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_events_close(events: *mut netvm_events) -> c_int {
    call(|| handle::close(events))
}

/// An operation has ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_completion {
    /// `sizeof(struct netvm_completion)`.
    pub size: usize,
    /// What the program gave with it.
    pub context: *mut c_void,
    /// The old value of an atomic's word.
    pub value: u64,
    /// Its number.
    pub op: u32,
    /// How it has ended: 0 or a negative errno.
    pub result: i32,
    /// The status of a card or a driver behind that: NETVM_STATUS_..., or 0.
    pub status: u32,
    /// Not used; 0.
    pub reserved: u32,
}

// SAFETY: integers, and a pointer that is not followed.
unsafe impl Led for netvm_completion {
    const FIRST: usize = 40;
    const ZERO: Self = Self {
        size: 0,
        context: std::ptr::null_mut(),
        value: 0,
        op: 0,
        result: 0,
        status: 0,
        reserved: 0,
    };
}

const _: () = assert!(size_of::<netvm_completion>() == netvm_completion::FIRST);

impl From<Completion<usize>> for netvm_completion {
    fn from(ended: Completion<usize>) -> Self {
        let (value, result, status) = match ended.result {
            Ok(answer) => (answer.map_or(0, |answer| answer.value), 0, 0),
            Err(error) => (
                0,
                -errno::of(&error),
                error.status().map_or(0, |status| status.code().into()),
            ),
        };
        Self {
            context: std::ptr::with_exposed_provenance_mut(ended.context),
            value,
            op: ended.op.0,
            result,
            status,
            ..Self::ZERO
        }
    }
}

/// Makes a completion queue for operations of a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_cq_open(port: *mut netvm_port, cq: *mut *mut netvm_cq) -> c_int {
    call(|| {
        let place = out(cq, "cq")?;
        let queue = CompletionQueue::new(&*handle::get(port)?);
        let made = handle::make(Mutex::new(queue))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Moves an operation into a completion queue. Its handle ends by that. -EXDEV for an operation of another port, which goes on by itself;
/// -EINVAL for an import, which stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_cq_add(cq: *mut netvm_cq, pending: *mut netvm_pending) -> c_int {
    call(|| {
        let queue = handle::get(cq)?;
        let (operation, context) = pending::take(pending)?;
        // A thread that waits in the queue lets go of it within a millisecond.
        let mut queue = queue.lock();
        Ok(queue.add(operation, context)?)
    })
}

/// The longest wait during which no operation can be added.
const SLICE: Duration = Duration::from_millis(1);

/// Waits for the next operation that ends. -ENODATA if the queue holds none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_cq_next(
    cq: *mut netvm_cq,
    timeout_ns: i64,
    completion: *mut netvm_completion,
) -> c_int {
    call(|| {
        let queue = handle::get(cq)?;
        // Looks at the place before it takes anything out.
        // SAFETY: the header asks for such a structure, here and below.
        unsafe { fill(completion, &netvm_completion::ZERO, "completion") }?;
        let ended = waited(next(&queue, timeout(timeout_ns)), timeout_ns)?;
        let ended = ended.ok_or(Fault::argument(
            libc::ENODATA,
            "the completion queue holds no operation",
        ))?;
        // SAFETY: as above.
        unsafe { fill(completion, &ended.into(), "completion") }
    })
}

fn next(queue: &Mutex<CompletionQueue<usize>>, timeout: Timeout) -> netvm::Result<Option<Completion<usize>>> {
    let until = match timeout {
        Timeout::Now => Some(Instant::now()),
        Timeout::After(span) => Instant::now().checked_add(span),
        Timeout::Never => None,
    };
    loop {
        let left = until.map_or(SLICE, |until| {
            until.saturating_duration_since(Instant::now()).min(SLICE)
        });
        let slice = if left.is_zero() { Timeout::Now } else { left.into() };
        match queue.lock().next_for(slice) {
            Err(Error::TimedOut) if slice != Timeout::Now => {}
            result => return result,
        }
    }
}

/// How many operations the queue holds, those included that have ended and were not taken out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_cq_len(cq: *mut netvm_cq, len: *mut usize) -> c_int {
    call(|| {
        let place = out(len, "len")?;
        let held = handle::get(cq)?.lock().len();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(held) };
        Ok(())
    })
}

/// Ends a completion queue. That takes nothing back: its operations go on.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_cq_close(cq: *mut netvm_cq) -> c_int {
    call(|| handle::close(cq))
}
