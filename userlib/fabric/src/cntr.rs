//! Counters, `fi_cntr(3)`.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;

use crate::absent;
use crate::cq::control_wait;
use crate::domain::{Child, Domain};
use crate::ep::Endpoint;
use crate::ffi::{Handle, call, given, table};
use crate::fi::*;
use crate::wait::{Wait, end_of};

/// A counter.
pub(crate) struct Counter {
    child: Child,
    value: AtomicU64,
    errors: AtomicU64,
    /// Operations that ended, well or not, whatever the program does to the values.
    ended: AtomicU64,
    wait: Wait,
    /// Endpoints whose operations end here. One that closes is taken out.
    sources: RwLock<Vec<Arc<Endpoint>>>,
}

/// A counter as C holds it.
type CounterHandle = Handle<fid_cntr, Counter>;

impl Counter {
    /// Adds an endpoint whose operations it counts.
    pub(crate) fn bind(&self, endpoint: &Arc<Endpoint>) {
        self.sources.write().push(Arc::clone(endpoint));
        if self.wait.waits() {
            endpoint.serve_in_background();
        }
    }

    /// Forgets an endpoint that closes.
    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>) {
        self.sources
            .write()
            .retain(|source| !Arc::ptr_eq(source, endpoint));
    }

    /// Whether it is the domain's.
    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        self.child.is_of(domain)
    }

    /// An operation has ended.
    pub(crate) fn count(&self, good: bool) {
        let counter = if good { &self.value } else { &self.errors };
        counter.fetch_add(1, Ordering::AcqRel);
        self.ended.fetch_add(1, Ordering::Release);
        self.wait.raise();
    }

    fn progress(&self) {
        for source in &*self.sources.read() {
            source.progress();
        }
    }

    fn rest(&self) {
        for source in &*self.sources.read() {
            source.rest();
        }
    }

    /// How many operations have ended, after a look: what a poll set has news of.
    pub(crate) fn news(&self) -> u64 {
        self.progress();
        self.ended.load(Ordering::Acquire)
    }

    /// Prepares to wait by its descriptor; `fi_trywait`.
    pub(crate) fn try_wait(&self) -> Answer {
        let before = self.value.load(Ordering::Acquire);
        self.progress();
        self.wait.clear();
        self.rest();
        if self.value.load(Ordering::Acquire) == before {
            Ok(())
        } else {
            self.wait.raise();
            Err(Errno::AGAIN)
        }
    }

    fn change(&self, counter: &AtomicU64, change: impl FnOnce(&AtomicU64)) {
        change(counter);
        self.wait.raise();
    }
}

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    control: Some(control),
    ..absent::FID_OPS
};

static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};

/// `fi_cntr_open`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let (domain, attr) = unsafe { (Domain::of(domain)?, given(attr)) };
        let wait = attr.map_or(FI_WAIT_UNSPEC, |attr| attr.wait_obj);
        if cntr.is_null() || attr.is_some_and(|attr| attr.events != FI_CNTR_EVENTS_COMP) {
            return Err(Errno::INVAL);
        }
        // A call may wait for a counter without a descriptor, too.
        let wait = if wait == FI_WAIT_UNSPEC {
            FI_WAIT_YIELD
        } else {
            wait
        };
        let object = Arc::new(Counter {
            child: domain.child(),
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            wait: Wait::new(wait)?,
            sources: RwLock::default(),
        });
        let face = fid_cntr {
            fid: fid {
                fclass: FI_CLASS_CNTR as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
        };
        // SAFETY: checked above.
        unsafe { *cntr = CounterHandle::give(face, FI_CLASS_CNTR, object)? };
        Ok(())
    })
}

/// The counter behind a handle.
///
/// # Safety
/// As [`Handle::of`].
pub(crate) unsafe fn of<'a, P>(cntr: *mut P) -> Answer<&'a Arc<Counter>> {
    // SAFETY: the caller's promise.
    unsafe { CounterHandle::of(cntr, FI_CLASS_CNTR) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        if Arc::strong_count(unsafe { of(fid)? }) > 1 {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        unsafe { CounterHandle::take(fid, FI_CLASS_CNTR) }.map(drop)
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: C's handle.
    call(|| unsafe { control_wait(&of(fid)?.wait, command, arg) })
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: C's handle.
    unsafe { of(cntr) }.map_or(0, |counter| {
        counter.progress();
        counter.value.load(Ordering::Acquire)
    })
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: C's handle.
    unsafe { of(cntr) }.map_or(0, |counter| {
        counter.progress();
        counter.errors.load(Ordering::Acquire)
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let counter = unsafe { of(cntr)? };
        counter.change(&counter.value, |word| {
            word.fetch_add(value, Ordering::AcqRel);
        });
        Ok(())
    })
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let counter = unsafe { of(cntr)? };
        counter.change(&counter.value, |word| word.store(value, Ordering::Release));
        Ok(())
    })
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let counter = unsafe { of(cntr)? };
        counter.change(&counter.errors, |word| {
            word.fetch_add(value, Ordering::AcqRel);
        });
        Ok(())
    })
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let counter = unsafe { of(cntr)? };
        counter.change(&counter.errors, |word| word.store(value, Ordering::Release));
        Ok(())
    })
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let counter = unsafe { of(cntr)? };
        if !counter.wait.waits() {
            return Err(Errno::NOSYS);
        }
        let errors = counter.errors.load(Ordering::Acquire);
        let end = end_of(timeout);
        let mut spins = 0;
        loop {
            let seen = counter.wait.seen();
            counter.progress();
            if counter.value.load(Ordering::Acquire) >= threshold {
                return Ok(());
            }
            if counter.errors.load(Ordering::Acquire) != errors {
                return Err(Errno::AVAIL);
            }
            if spins < 200 {
                spins += 1;
                continue;
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(Errno::TIMEDOUT);
            }
            counter.rest();
            counter.wait.until(seen, end);
        }
    })
}
