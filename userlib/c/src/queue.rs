//! Wait queues.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use netvm::sync::{WaitQueue, Waiting, Woken};
use self_cell::{MutBorrow, self_cell};

use crate::access::netvm_access;
use crate::argument::{out, set, timeout, waited};
use crate::call::call;
use crate::fault::Fault;
use crate::handle::{self, handles};
use crate::hold::{Participant, Slot};
use crate::lock::{Address, make_home, netvm_home};
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;

/// A participant of a wait queue. It serves one thread at a time.
pub struct netvm_wait_queue;

/// A place in the queue, until its wait has ended.
type Place<'a> = Option<Waiting<'a>>;

self_cell!(
    /// A participant that stands in the queue.
    pub struct Standing {
        owner: MutBorrow<Box<WaitQueue>>,
        #[not_covariant]
        dependent: Place,
    }
);

handles! {
    netvm_wait_queue = 19: Arc<Participant<Box<WaitQueue>, Standing>>;
}

/// Makes a wait queue that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all ports may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_wait_queue_create(
    port: *mut netvm_port,
    name: *const c_char,
    access: *const netvm_access,
    home: *mut *mut netvm_home,
) -> c_int {
    // SAFETY: the header asks for such arguments.
    unsafe { make_home(port, name, access, home, WaitQueue::create) }
}

/// Takes part in a wait queue: one participant, which waits once at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_wait_queue_join(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    timeout_ns: i64,
    queue: *mut *mut netvm_wait_queue,
) -> c_int {
    call(|| {
        let place = out(queue, "queue")?;
        // SAFETY: the header asks for such arguments, here and below.
        let at = unsafe { Address::new(node, exporter, name, timeout_ns) }?;
        let joined = WaitQueue::join(&*handle::get(port)?, at.node, at.exporter, at.name, at.timeout)?;
        let made = handle::make(Participant::new(Box::new(joined)))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Stands in the queue, at its end. A signal from now on is not lost. -EDEADLK: it stands there already.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_wait_queue_insert(queue: *mut netvm_wait_queue) -> c_int {
    call(|| {
        let slot = handle::get(queue)?;
        let mut slot = slot.slot()?;
        let stands = slot.hold(|queue| {
            let stands = Standing::try_new_or_recover(MutBorrow::new(queue), |queue| {
                queue.borrow_mut().insert().map(Some)
            });
            stands.map_err(|(queue, error)| Box::new((queue.into_inner(), Fault::from(error))))
        });
        stands.map(drop)
    })
}

/// Waits to be woken. After -EAGAIN or -ETIMEDOUT the place in the queue is still there. `reset` gets whether the queue has lost a process that stood
/// in it, and has let all others out: look at what is waited for, and stand in it again; it may be NULL. -EPERM: it does not stand in the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_wait_queue_wait(
    queue: *mut netvm_wait_queue,
    timeout_ns: i64,
    reset: *mut bool,
) -> c_int {
    call(|| {
        let slot = handle::get(queue)?;
        let mut slot = slot.slot()?;
        let woken = slot.held()?.with_dependent_mut(|_, place| match place {
            Some(waiting) => waited(waiting.wait(timeout(timeout_ns)), timeout_ns),
            None => Err(Fault::argument(
                libc::EPERM,
                "this participant does not stand in the queue",
            )),
        })?;
        slot.let_go(|standing| (standing.into_owner().into_inner(), ()))?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(reset, woken == Woken::Reset) };
        Ok(())
    })
}

/// Begins to stand in the queue and to wait to be woken, and waits for neither. `queue` is away (-EBUSY) until netvm_pending_wait() answers 0.
/// netvm_pending_value() tells whether the queue was reset, as netvm_wait_queue_wait() does. Nothing tells when it stands there: a program that has to
/// say first that it will wait calls netvm_wait_queue_insert(). After an error, and when the pending call is closed before its end, this participant is
/// gone (-EIO). It costs a thread while it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_wait_queue_begin_wait(
    queue: *mut netvm_wait_queue,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let (queue, lent) = handle::get(queue)?.lend()?;
        let under = Under::taking(queue.begin_wait(), |(queue, woken)| {
            lent.back(Slot::Free(Box::new(queue)));
            (woken == Woken::Reset).into()
        });
        let made = under.handle(context)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Wakes the first waiter. `woken` gets whether there was one; it may be NULL. A participant that stands in the queue cannot (-EDEADLK).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_wait_queue_signal(queue: *mut netvm_wait_queue, woken: *mut bool) -> c_int {
    call(|| {
        let slot = handle::get(queue)?;
        let one = slot.slot()?.free()?.signal()?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(woken, one) };
        Ok(())
    })
}

/// Leaves a wait queue. One that stands there lets all others out as well: no participant can leave a queue without the help of the others in it.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_wait_queue_close(queue: *mut netvm_wait_queue) -> c_int {
    call(|| handle::close(queue))
}
