//! Poll sets, `fi_poll(3)`. Wait sets are not offered: a program has the descriptors.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::absent;
use crate::cntr::{self, Counter};
use crate::cq::{self, Cq};
use crate::domain::{Child, Domain};
use crate::ffi::{Handle, call, given, number, table};
use crate::fi::*;

enum Member {
    Cq(Arc<Cq>),
    /// With how much of its news was told.
    Counter(Arc<Counter>, u64),
}

/// A poll set.
pub(crate) struct Poll {
    _child: Child,
    /// By the address of the handle, with its context.
    members: Mutex<Vec<(usize, usize, Member)>>,
}

type PollHandle = Handle<fid_poll, Poll>;

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    ..absent::FID_OPS
};

static OPS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(add),
    poll_del: Some(del),
};

/// `fi_poll_open`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_poll_attr,
    set: *mut *mut fid_poll,
) -> c_int {
    call(|| {
        // SAFETY: C's handle; the attributes are null or what their type says.
        let (domain, attr) = unsafe { (Domain::of(domain)?, given(attr)) };
        if set.is_null() || attr.is_some_and(|attr| attr.flags != 0) {
            return Err(Errno::INVAL);
        }
        let object = Arc::new(Poll {
            _child: domain.child(),
            members: Mutex::default(),
        });
        let face = fid_poll {
            fid: fid {
                fclass: FI_CLASS_POLL as usize,
                context: core::ptr::null_mut(),
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
        };
        // SAFETY: checked above.
        unsafe { *set = PollHandle::give(face, FI_CLASS_POLL, object)? };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        let set = unsafe { PollHandle::of(fid, FI_CLASS_POLL)? };
        if !set.members.lock().is_empty() {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        unsafe { PollHandle::take(fid, FI_CLASS_POLL) }.map(drop)
    })
}

unsafe extern "C" fn add(set: *mut fid_poll, member: *mut fid, flags: u64) -> c_int {
    call(|| {
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: C's handles.
        let (set, fid) = unsafe {
            (
                PollHandle::of(set, FI_CLASS_POLL)?,
                given(member).ok_or(Errno::INVAL)?,
            )
        };
        // SAFETY: as above.
        let object = unsafe {
            match fid.fclass as u32 {
                FI_CLASS_CQ => Member::Cq(Arc::clone(cq::of(member)?)),
                FI_CLASS_CNTR => Member::Counter(Arc::clone(cntr::of(member)?), 0),
                _ => return Err(Errno::INVAL),
            }
        };
        let entry = (member.addr(), fid.context.expose_provenance(), object);
        set.members.lock().push(entry);
        Ok(())
    })
}

unsafe extern "C" fn del(set: *mut fid_poll, member: *mut fid, flags: u64) -> c_int {
    call(|| {
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: C's handle.
        let set = unsafe { PollHandle::of(set, FI_CLASS_POLL)? };
        let mut members = set.members.lock();
        let before = members.len();
        members.retain(|(address, ..)| *address != member.addr());
        if members.len() == before {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    })
}

unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    number(|| {
        // SAFETY: C's handle.
        let set = unsafe { PollHandle::of(set, FI_CLASS_POLL)? };
        let room = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if contexts.is_null() && room > 0 {
            return Err(Errno::INVAL);
        }
        let mut found = 0;
        for (_, context, member) in set.members.lock().iter_mut() {
            // One for which there is no room works all the same, and is told with the next call.
            let has_room = found < room;
            let has = match member {
                Member::Cq(cq) => !cq.is_empty_now(),
                Member::Counter(counter, last) => {
                    let news = counter.news();
                    news != if has_room {
                        std::mem::replace(last, news)
                    } else {
                        news
                    }
                }
            };
            if has && has_room {
                // SAFETY: C has room for so many.
                unsafe {
                    contexts
                        .add(found)
                        .write(core::ptr::with_exposed_provenance_mut(*context));
                }
                found += 1;
            }
        }
        Ok(c_int::try_from(found).unwrap_or(c_int::MAX))
    })
}
