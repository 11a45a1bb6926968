//! Event queues, `fi_eq(3)`.

use core::ffi::{c_char, c_int, c_void};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::absent;
use crate::cq::{control_wait, explain};
use crate::fabric::{self, Fabric};
use crate::ffi::{Handle, call, count, given, table};
use crate::fi::*;
use crate::wait::{Wait, end_of};

/// What is read from a queue.
enum Event {
    /// Its number, and its bytes.
    Good(u32, Vec<u8>),
    /// An address that is none.
    NoAddress {
        av: usize,
        context: usize,
        /// Its place among those that were inserted by one call.
        index: u64,
        errno: Errno,
    },
}

/// An event queue.
pub(crate) struct Eq {
    _fabric: Arc<Fabric>,
    events: Mutex<VecDeque<Event>>,
    wait: Wait,
}

/// An event queue as C holds it.
type EqHandle = Handle<fid_eq, Eq>;

impl Eq {
    /// Addresses were inserted.
    pub(crate) fn av_complete(&self, av: fid_t, context: *mut c_void, inserted: u64) {
        let entry = fi_eq_entry {
            fid: av,
            context,
            data: inserted,
        };
        // SAFETY: the entry is plain data without padding.
        let bytes = unsafe {
            core::slice::from_raw_parts(core::ptr::from_ref(&entry).cast::<u8>(), size_of::<fi_eq_entry>())
        };
        self.push(Event::Good(FI_AV_COMPLETE, bytes.to_vec()));
    }

    /// One of the addresses is none.
    pub(crate) fn no_address(&self, av: fid_t, context: *mut c_void, index: u64, errno: Errno) {
        self.push(Event::NoAddress {
            av: av.expose_provenance(),
            context: context.expose_provenance(),
            index,
            errno,
        });
    }

    fn push(&self, event: Event) {
        self.events.lock().push_back(event);
        self.wait.raise();
    }

    /// Whether there is nothing to read; `fi_trywait`.
    pub(crate) fn try_wait(&self) -> Answer {
        let events = self.events.lock();
        if events.is_empty() {
            self.wait.clear();
            Ok(())
        } else {
            Err(Errno::AGAIN)
        }
    }

    /// # Safety
    /// `event` is null or has room for a number, `buf` for `len` bytes.
    unsafe fn read(&self, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> Answer<usize> {
        let mut events = self.events.lock();
        let Event::Good(number, bytes) = events.front().ok_or(Errno::AGAIN)? else {
            return Err(Errno::AVAIL);
        };
        if len < bytes.len() {
            return Err(Errno::TOOSMALL);
        }
        if buf.is_null() && !bytes.is_empty() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise, and the length was checked.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
            if !event.is_null() {
                event.write(*number);
            }
        }
        let read = bytes.len();
        if flags & FI_PEEK == 0 {
            self.pass(&mut events);
        }
        Ok(read)
    }

    /// The first event was read.
    fn pass(&self, events: &mut VecDeque<Event>) {
        events.pop_front();
        if events.is_empty() {
            self.wait.clear();
        }
    }

    /// Reads an error.
    fn read_error(&self, entry: &mut fi_eq_err_entry, flags: u64) -> Answer<usize> {
        let mut events = self.events.lock();
        let Some(&Event::NoAddress {
            av,
            context,
            index,
            errno,
        }) = events.front()
        else {
            return Err(Errno::AGAIN);
        };
        entry.fid = core::ptr::with_exposed_provenance_mut(av);
        entry.context = core::ptr::with_exposed_provenance_mut(context);
        entry.data = index;
        entry.err = errno.0;
        entry.prov_errno = 0;
        // There is nothing more to say of it; room for that is the program's.
        entry.err_data_size = 0;
        if flags & FI_PEEK == 0 {
            self.pass(&mut events);
        }
        Ok(size_of::<fi_eq_err_entry>())
    }
}

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    control: Some(control),
    ..absent::FID_OPS
};

static OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

/// `fi_eq_open`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let (fabric, attr) = unsafe { (fabric::of(fabric)?, given(attr)) };
        if eq.is_null() {
            return Err(Errno::INVAL);
        }
        let object = Arc::new(Eq {
            _fabric: Arc::clone(fabric),
            events: Mutex::default(),
            wait: Wait::new(attr.map_or(FI_WAIT_UNSPEC, |attr| attr.wait_obj))?,
        });
        let face = fid_eq {
            fid: fid {
                fclass: FI_CLASS_EQ as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
        };
        // SAFETY: checked above.
        unsafe { *eq = EqHandle::give(face, FI_CLASS_EQ, object)? };
        Ok(())
    })
}

/// The queue behind a handle.
///
/// # Safety
/// As [`Handle::of`].
pub(crate) unsafe fn of<'a, P>(eq: *mut P) -> Answer<&'a Arc<Eq>> {
    // SAFETY: the caller's promise.
    unsafe { EqHandle::of(eq, FI_CLASS_EQ) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        if Arc::strong_count(unsafe { of(fid)? }) > 1 {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        unsafe { EqHandle::take(fid, FI_CLASS_EQ) }.map(drop)
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: C's handle.
    call(|| unsafe { control_wait(&of(fid)?.wait, command, arg) })
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: C's handle, and room as it says.
    count(|| unsafe { of(eq)?.read(event, buf, len, flags) })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: C's handle.
        let eq = unsafe { of(eq)? };
        if !eq.wait.waits() {
            return Err(Errno::NOSYS);
        }
        let end = end_of(timeout);
        loop {
            let seen = eq.wait.seen();
            // SAFETY: room as C says.
            match unsafe { eq.read(event, buf, len, flags) } {
                Err(Errno::AGAIN) if end.is_none_or(|end| Instant::now() < end) => eq.wait.until(seen, end),
                answer => return answer,
            }
        }
    })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    count(|| {
        // SAFETY: C's handle.
        let eq = unsafe { of(eq)? };
        // SAFETY: C has room for an entry, which is plain data.
        let entry = unsafe { buf.as_mut() }.ok_or(Errno::INVAL)?;
        eq.read_error(entry, flags)
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    count(|| {
        // SAFETY: C's handle, and as many bytes as it says.
        let (eq, bytes) = unsafe { (of(eq)?, crate::ffi::array(buf.cast::<u8>(), len)?) };
        eq.push(Event::Good(event, bytes.to_vec()));
        Ok(len)
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    explain(prov_errno, buf, len)
}
