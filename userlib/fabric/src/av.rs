//! Address vectors, `fi_av(3)`: tables and maps alike, since an address is its index here.

use core::ffi::{c_char, c_int, c_void};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use zerocopy::IntoBytes;

use crate::absent;
use crate::address::{ADDRESS_BYTES, Address};
use crate::domain::{Child, Domain};
use crate::eq::{self, Eq};
use crate::ffi::{Handle, array, call, given, number, string, table};
use crate::fi::*;
use crate::service::{Named, Service};

#[derive(Default)]
struct Entries {
    by_index: Vec<Option<Address>>,
    /// Indices of addresses that were removed: the lowest of them is the next to be given.
    free: BTreeSet<u64>,
    by_address: HashMap<Address, u64>,
}

/// An address vector.
pub(crate) struct Av {
    child: Child,
    entries: RwLock<Entries>,
    /// Rises with each change, from 1.
    version: AtomicU64,
    events: RwLock<Option<Arc<Eq>>>,
    kind: fi_av_type,
    /// `FI_EVENT`: insertions end with events.
    tells: bool,
}

/// An address vector as C holds it.
type AvHandle = Handle<fid_av, Av>;

impl Av {
    /// The address of an index.
    pub(crate) fn address(&self, index: u64) -> Option<Address> {
        let entries = self.entries.read();
        *entries.by_index.get(usize::try_from(index).ok()?)?
    }

    /// The index of an address; the first one, if it was inserted several times.
    pub(crate) fn index(&self, address: &Address) -> Option<u64> {
        self.entries.read().by_address.get(address).copied()
    }

    /// Another number after each change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether it is the domain's.
    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        self.child.is_of(domain)
    }

    /// Inserts an address. One that is none has its place, too: those of a call are numbered one after the other.
    fn insert(&self, address: Answer<Address>) -> Answer<u64> {
        let mut entries = self.entries.write();
        let index = entries.free.pop_first().unwrap_or(entries.by_index.len() as u64);
        match entries.by_index.get_mut(index as usize) {
            Some(place) => *place = address.ok(),
            None => entries.by_index.push(address.ok()),
        }
        let address = address?;
        entries.by_address.entry(address).or_insert(index);
        self.version.fetch_add(1, Ordering::AcqRel);
        Ok(index)
    }

    fn remove(&self, index: u64) -> Answer {
        let mut entries = self.entries.write();
        let at = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let place = entries.by_index.get_mut(at).ok_or(Errno::INVAL)?;
        let address = place.take().ok_or(Errno::INVAL)?;
        entries.free.insert(index);
        // The same address may stand elsewhere, too.
        let other = entries.by_index.iter().position(|other| *other == Some(address));
        match other {
            Some(other) => entries.by_address.insert(address, other as u64),
            None => entries.by_address.remove(&address),
        };
        self.version.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    ..absent::FID_OPS
};

static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: None,
};

/// `fi_av_open`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let (domain, attr) = unsafe { (Domain::of(domain)?, given(attr)) };
        if av.is_null() {
            return Err(Errno::INVAL);
        }
        if attr.is_some_and(|attr| !attr.name.is_null() || attr.rx_ctx_bits != 0 || attr.flags & FI_READ != 0)
        {
            return Err(Errno::NOSYS);
        }
        let kind = match attr.map_or(FI_AV_UNSPEC, |attr| attr.type_) {
            FI_AV_UNSPEC => FI_AV_TABLE,
            kind @ (FI_AV_MAP | FI_AV_TABLE) => kind,
            _ => return Err(Errno::INVAL),
        };
        if let Some(attr) = attr.filter(|attr| attr.type_ == FI_AV_UNSPEC) {
            // SAFETY: the structure is the caller's to be changed (`fi_av(3)`: the type is returned).
            unsafe {
                core::ptr::from_ref(attr)
                    .cast_mut()
                    .cast::<fi_av_type>()
                    .write(kind)
            };
        }
        let object = Arc::new(Av {
            child: domain.child(),
            entries: RwLock::default(),
            version: AtomicU64::new(1),
            events: RwLock::default(),
            kind,
            tells: attr.is_some_and(|attr| attr.flags & FI_EVENT != 0),
        });
        let face = fid_av {
            fid: fid {
                fclass: FI_CLASS_AV as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
        };
        // SAFETY: checked above.
        unsafe { *av = AvHandle::give(face, FI_CLASS_AV, object)? };
        Ok(())
    })
}

/// The vector behind a handle.
///
/// # Safety
/// As [`Handle::of`].
pub(crate) unsafe fn of<'a, P>(av: *mut P) -> Answer<&'a Arc<Av>> {
    // SAFETY: the caller's promise.
    unsafe { AvHandle::of(av, FI_CLASS_AV) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        if Arc::strong_count(unsafe { of(fid)? }) > 1 {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        unsafe { AvHandle::take(fid, FI_CLASS_AV) }.map(drop)
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    call(|| {
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: C's handles.
        let (av, eq) = unsafe { (of(fid)?, eq::of(other)?) };
        *av.events.write() = Some(Arc::clone(eq));
        Ok(())
    })
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    indices: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    number(|| {
        // SAFETY: C passes as many addresses as it says, of the length that `fi_getname` gave.
        let addresses = unsafe { array(addresses.cast::<[u8; ADDRESS_BYTES]>(), count)? };
        let named = addresses.iter().map(|bytes| Named::read(bytes));
        // SAFETY: C's handle, and room for as many indices.
        unsafe { insert_all(av, named, indices, flags, context) }
    })
}

/// How long a call may take in which services are asked for addresses.
const PATIENCE: Duration = Duration::from_secs(5);

/// Inserts addresses. Those of services are asked for, one after the other.
///
/// # Safety
/// `av` is a handle; `indices` is null or has room for an index of each address; `context` is what `fi_av(3)` says.
unsafe fn insert_all(
    handle: *mut fid_av,
    addresses: impl ExactSizeIterator<Item = Answer<Named>>,
    indices: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> Answer<c_int> {
    // SAFETY: C's handle.
    let av = unsafe { of(handle)? };
    if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
        return Err(Errno::BADFLAGS);
    }
    if indices.is_null() && addresses.len() > 0 && av.kind == FI_AV_MAP {
        return Err(Errno::INVAL);
    }
    let events = av.events.read().clone().filter(|_| av.tells);
    if av.tells && events.is_none() {
        return Err(Errno::NOEQ);
    }
    let end = Instant::now() + PATIENCE;
    let mut inserted = 0;
    for (at, named) in addresses.enumerate() {
        let index = av.insert(named.and_then(|named| named.endpoint(end)));
        inserted += c_int::from(index.is_ok());
        if !indices.is_null() {
            // SAFETY: the caller's promise.
            unsafe { indices.add(at).write(index.unwrap_or(FI_ADDR_NOTAVAIL)) };
        }
        if let Some(events) = &events {
            if let Err(errno) = index {
                events.no_address(handle.cast(), context, at as u64, errno);
            }
        } else if flags & FI_SYNC_ERR != 0 && !context.is_null() {
            // SAFETY: with this flag the context is an array of as many numbers.
            unsafe {
                context
                    .cast::<c_int>()
                    .add(at)
                    .write(index.err().map_or(0, |errno| errno.0))
            };
        }
    }
    if let Some(events) = events {
        events.av_complete(handle.cast(), context, inserted.unsigned_abs().into());
        return Ok(0);
    }
    Ok(inserted)
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    indices: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    number(|| {
        // SAFETY: C's strings, if there are any.
        let (node, service) = unsafe { (string(node), string(service)) };
        let found = match Service::find(node, service, 0) {
            Ok(None) => return Err(Errno::INVAL),
            Ok(Some(service)) => Ok(Named::Service(service)),
            Err(errno) => Err(errno),
        };
        // SAFETY: C's handle, and room for an index.
        unsafe { insert_all(av, core::iter::once(found), indices, flags, context) }
    })
}

unsafe extern "C" fn insertsym(
    _av: *mut fid_av,
    _node: *const c_char,
    _nodes: usize,
    _service: *const c_char,
    _services: usize,
    _indices: *mut fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

unsafe extern "C" fn remove(av: *mut fid_av, indices: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    call(|| {
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: C's handle, and as many indices as it says.
        let (av, indices) = unsafe { (of(av)?, array(indices, count)?) };
        indices.iter().try_for_each(|&index| av.remove(index))
    })
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    index: fi_addr_t,
    address: *mut c_void,
    len: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let av = unsafe { of(av)? };
        let found = av.address(index).ok_or(Errno::INVAL)?;
        // SAFETY: C's room, as long as it says.
        unsafe { write_address(&found, address, len, false) }
    })
}

/// Writes an address to where C has room, and says how long it is.
///
/// # Safety
/// `len` is null or a length; `into` has so much room.
pub(crate) unsafe fn write_address(
    address: &Address,
    into: *mut c_void,
    len: *mut usize,
    whole: bool,
) -> Answer {
    if len.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let room = unsafe { len.replace(ADDRESS_BYTES) };
    let fits = room.min(ADDRESS_BYTES);
    if !into.is_null() {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(address.as_bytes().as_ptr(), into.cast(), fits) };
    }
    if whole && (fits < ADDRESS_BYTES || into.is_null()) {
        return Err(Errno::TOOSMALL);
    }
    Ok(())
}

unsafe extern "C" fn straddr(
    _av: *mut fid_av,
    address: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    if address.is_null() || buf.is_null() || len.is_null() {
        return core::ptr::null();
    }
    // SAFETY: C passes an address of this provider's length.
    let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), ADDRESS_BYTES) };
    let text = Named::read(bytes).map_or_else(|_| "no address of netvm".into(), |named| named.text());
    // SAFETY: C's length, and as much room.
    unsafe {
        let room = len.replace(text.len() + 1);
        if room > 0 {
            let fits = text.len().min(room - 1);
            core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, fits);
            buf.add(fits).write(0);
        }
    }
    buf
}
