//! Completion queues, `fi_cq(3)`.

mod entries;

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::RwLock;

use crate::absent;
use crate::domain::{Child, Domain};
use crate::ep::Endpoint;
use crate::ffi::{Handle, call, count, given, table};
use crate::fi::*;
use crate::wait::{Wait, end_of};
use entries::Entries;

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The sender.
    pub(crate) from: u64,
}

impl Completion {
    pub(crate) const fn new(context: usize, flags: u64) -> Self {
        Self {
            context,
            flags,
            len: 0,
            buffer: 0,
            data: 0,
            tag: 0,
            from: FI_ADDR_NOTAVAIL,
        }
    }
}

/// How an operation failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) completion: Completion,
    pub(crate) errno: Errno,
    /// What the card says ([`netvm::Status`]), or 0.
    pub(crate) status: u8,
    /// Bytes that had no room.
    pub(crate) over: usize,
}

/// A completion queue.
pub(crate) struct Cq {
    child: Child,
    format: fi_cq_format,
    entries: Entries,
    wait: Wait,
    /// Looks in vain, one after the other.
    idle: AtomicU32,
    /// The program wants to be woken.
    signalled: AtomicUsize,
    /// Endpoints whose operations end here. One that closes is taken out.
    sources: RwLock<Vec<Arc<Endpoint>>>,
}

/// A completion queue as C holds it.
type CqHandle = Handle<fid_cq, Cq>;

impl Cq {
    /// Adds an endpoint whose operations complete here.
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

    /// An operation has ended well.
    pub(crate) fn push(&self, completion: Completion) {
        self.entries.push(completion);
        self.wait.raise();
    }

    /// An operation has failed.
    pub(crate) fn push_failed(&self, failed: Failed) {
        self.entries.push_failed(failed);
        self.wait.raise();
    }

    fn progress(&self) {
        for source in &*self.sources.read() {
            source.progress();
        }
    }

    /// The program is going to wait by itself, or in a call.
    fn rest(&self) {
        for source in &*self.sources.read() {
            source.rest();
        }
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is nothing to read, after a look.
    pub(crate) fn is_empty_now(&self) -> bool {
        if self.is_empty() {
            self.progress();
        }
        self.is_empty()
    }

    /// Looks for something to read; `fi_trywait`.
    pub(crate) fn try_wait(&self) -> Answer {
        self.progress();
        if !self.is_empty() {
            return Err(Errno::AGAIN);
        }
        self.wait.clear();
        self.rest();
        if self.is_empty() {
            Ok(())
        } else {
            self.wait.raise();
            Err(Errno::AGAIN)
        }
    }

    /// Reads up to `most` entries.
    ///
    /// # Safety
    /// `into` has room for them; `from` is null or has room for as many addresses.
    unsafe fn read(&self, into: *mut c_void, most: usize, from: *mut fi_addr_t) -> Answer<usize> {
        if self.is_empty() {
            self.progress();
            if self.is_empty() {
                self.found_nothing();
                return Err(Errno::AGAIN);
            }
        }
        self.idle.store(0, Ordering::Relaxed);
        let mut entries = self.entries.read();
        if !entries.has_good() {
            return Err(if entries.has_bad() {
                Errno::AVAIL
            } else {
                Errno::AGAIN
            });
        }
        if into.is_null() && most > 0 {
            return Err(Errno::INVAL);
        }
        let mut read = 0;
        while read < most {
            let Some(completion) = entries.good() else { break };
            // SAFETY: the caller's promise.
            unsafe {
                self.write(into, read, &completion);
                if !from.is_null() {
                    from.add(read).write(completion.from);
                }
            }
            read += 1;
        }
        if !entries.has_good() && !entries.has_bad() {
            self.wait.clear();
        }
        drop(entries);
        Ok(read)
    }

    /// # Safety
    /// `into` has room for `index + 1` entries of the queue's format.
    unsafe fn write(&self, into: *mut c_void, index: usize, completion: &Completion) {
        let context = core::ptr::with_exposed_provenance_mut(completion.context);
        let buffer = core::ptr::with_exposed_provenance_mut(completion.buffer);
        let (flags, len, data, tag) = (completion.flags, completion.len, completion.data, completion.tag);
        // SAFETY: the caller's promise.
        unsafe {
            match self.format {
                FI_CQ_FORMAT_MSG => into.cast::<fi_cq_msg_entry>().add(index).write(fi_cq_msg_entry {
                    op_context: context,
                    flags,
                    len,
                }),
                FI_CQ_FORMAT_DATA => into
                    .cast::<fi_cq_data_entry>()
                    .add(index)
                    .write(fi_cq_data_entry {
                        op_context: context,
                        flags,
                        len,
                        buf: buffer,
                        data,
                    }),
                FI_CQ_FORMAT_TAGGED => {
                    into.cast::<fi_cq_tagged_entry>()
                        .add(index)
                        .write(fi_cq_tagged_entry {
                            op_context: context,
                            flags,
                            len,
                            buf: buffer,
                            data,
                            tag,
                        });
                }
                _ => into
                    .cast::<fi_cq_entry>()
                    .add(index)
                    .write(fi_cq_entry { op_context: context }),
            }
        }
    }

    /// A program that has looked in vain for long lets others have the processor now and then: the one that it waits for, perhaps.
    fn found_nothing(&self) {
        let idle = self.idle.fetch_add(1, Ordering::Relaxed);
        if idle >= PATIENCE && idle.is_multiple_of(LOOKS_PER_YIELD) {
            std::thread::yield_now();
        }
    }

    fn take_failed(&self) -> Option<Failed> {
        let mut entries = self.entries.read();
        let failed = entries.bad()?;
        if !entries.has_good() && !entries.has_bad() {
            self.wait.clear();
        }
        Some(failed)
    }

    /// Waits for something to read.
    fn wait_until(&self, end: Option<Instant>) -> Answer {
        if !self.wait.waits() {
            return Err(Errno::NOSYS);
        }
        // What answers at once is waited for by looking.
        for _ in 0..SPINS {
            self.progress();
            if !self.is_empty() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        loop {
            let seen = self.wait.seen();
            self.progress();
            if !self.is_empty() {
                return Ok(());
            }
            if self.signalled.swap(0, Ordering::AcqRel) > 0 || end.is_some_and(|end| Instant::now() >= end) {
                return Err(Errno::AGAIN);
            }
            self.rest();
            if self.is_empty() {
                self.wait.until(seen, end);
            }
        }
    }
}

/// Looks in vain before the processor is offered to others.
const PATIENCE: u32 = 1000;
/// Looks between two such offers.
const LOOKS_PER_YIELD: u32 = 16;
/// Looks before a call that waits goes to sleep.
const SPINS: u32 = 200;

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    control: Some(control),
    ..absent::FID_OPS
};

static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

/// `fi_cq_open`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let (domain, attr) = unsafe { (Domain::of(domain)?, given(attr)) };
        let (format, wait) = attr.map_or((FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE), |attr| {
            (attr.format, attr.wait_obj)
        });
        if cq.is_null() || format > FI_CQ_FORMAT_TAGGED {
            return Err(Errno::INVAL);
        }
        let object = Arc::new(Cq {
            child: domain.child(),
            format,
            entries: Entries::default(),
            wait: Wait::new(wait)?,
            idle: AtomicU32::new(0),
            signalled: AtomicUsize::new(0),
            sources: RwLock::default(),
        });
        let face = fid_cq {
            fid: fid {
                fclass: FI_CLASS_CQ as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
        };
        // SAFETY: checked above.
        unsafe { *cq = CqHandle::give(face, FI_CLASS_CQ, object)? };
        Ok(())
    })
}

/// The queue behind a handle.
///
/// # Safety
/// As [`Handle::of`].
pub(crate) unsafe fn of<'a, P>(cq: *mut P) -> Answer<&'a Arc<Cq>> {
    // SAFETY: the caller's promise.
    unsafe { CqHandle::of(cq, FI_CLASS_CQ) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        let bound = Arc::strong_count(unsafe { of(fid)? }) > 1;
        if bound {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        unsafe { CqHandle::take(fid, FI_CLASS_CQ) }.map(drop)
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: C's handle.
    call(|| unsafe { control_wait(&of(fid)?.wait, command, arg) })
}

/// What may be asked of a wait object by `fi_control`.
///
/// # Safety
/// `arg` is null or what the command says.
pub(crate) unsafe fn control_wait(wait: &Wait, command: c_int, arg: *mut c_void) -> Answer {
    if arg.is_null() {
        return Err(Errno::INVAL);
    }
    match command.cast_unsigned() {
        FI_GETWAIT => {
            let descriptor = wait.descriptor().ok_or(Errno::NOSYS)?;
            // SAFETY: the caller's promise: room for a descriptor.
            unsafe { arg.cast::<c_int>().write(descriptor) };
            Ok(())
        }
        FI_GETWAITOBJ => {
            let kind = match (wait.descriptor(), wait.waits()) {
                (Some(_), _) => FI_WAIT_FD,
                (None, true) => FI_WAIT_YIELD,
                (None, false) => FI_WAIT_NONE,
            };
            // SAFETY: the caller's promise: room for a kind.
            unsafe { arg.cast::<fi_wait_obj>().write(kind) };
            Ok(())
        }
        _ => Err(Errno::NOSYS),
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, most: usize) -> isize {
    // SAFETY: C's handle, and room for as many entries as it says.
    count(|| unsafe { of(cq)?.read(buf, most, core::ptr::null_mut()) })
}

unsafe extern "C" fn readfrom(cq: *mut fid_cq, buf: *mut c_void, most: usize, from: *mut fi_addr_t) -> isize {
    // SAFETY: as above.
    count(|| unsafe { of(cq)?.read(buf, most, from) })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as above.
    unsafe { sreadfrom(cq, buf, most, core::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    from: *mut fi_addr_t,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    count(|| {
        // SAFETY: as above.
        let cq = unsafe { of(cq)? };
        let end = end_of(timeout);
        loop {
            cq.wait_until(end)?;
            // SAFETY: as above.
            match unsafe { cq.read(buf, most, from) } {
                // Another thread was faster.
                Err(Errno::AGAIN) => {}
                read => return read,
            }
        }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    count(|| {
        // SAFETY: C's handle.
        let cq = unsafe { of(cq)? };
        if buf.is_null() {
            return Err(Errno::INVAL);
        }
        if cq.is_empty() {
            cq.progress();
        }
        let failed = cq.take_failed().ok_or(Errno::AGAIN)?;
        let completion = failed.completion;
        // SAFETY: C has room for an entry. It may be one of an older libfabric, which ends before the last field; that is left alone.
        let entry = unsafe { &mut *buf };
        entry.op_context = core::ptr::with_exposed_provenance_mut(completion.context);
        entry.flags = completion.flags;
        entry.len = completion.len;
        entry.buf = core::ptr::with_exposed_provenance_mut(completion.buffer);
        entry.data = completion.data;
        entry.tag = completion.tag;
        entry.olen = failed.over;
        entry.err = failed.errno.0;
        entry.prov_errno = i32::from(failed.status);
        Ok(1)
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let cq = unsafe { of(cq)? };
        cq.signalled.fetch_add(1, Ordering::AcqRel);
        cq.wait.raise();
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    explain(prov_errno, buf, len)
}

/// A status of the card in words, copied to `buf` if there is room.
pub(crate) fn explain(prov_errno: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    let status = u8::try_from(prov_errno)
        .ok()
        .map(netvm::Status::from_code)
        .filter(|status| *status != netvm::Status::Ok);
    let text = status.map_or("no more is known", netvm::explain);
    if buf.is_null() || len == 0 {
        return c"see the provider's documentation".as_ptr();
    }
    let fits = text.len().min(len - 1);
    // SAFETY: C has room for `len` bytes, and `fits` and a zero are no more.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, fits);
        buf.add(fits).write(0);
    }
    buf
}
