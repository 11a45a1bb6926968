//! A domain: a share in the process' node, a port for remote access to memory, and a thread for what may wait.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use netvm::{Port, PortConfig};
use netvm_process::SoftNode;

use crate::everything::Everything;
use crate::fabric::{self, Fabric};
use crate::ffi::{Handle, call, given, table};
use crate::fi::*;
use crate::helper::Helper;
use crate::rma::{Rma, Scratch};
use crate::{absent, av, cntr, cq, log, mr, node, ops, poll};

/// A domain.
pub(crate) struct Domain {
    _fabric: Arc<Fabric>,
    pub(crate) node: Arc<SoftNode>,
    /// Remote access to memory of this process goes by this port, and this process' to that of others.
    pub(crate) memory: Port,
    /// All memory of the process.
    pub(crate) everything: Everything,
    /// Places for what short reads bring.
    pub(crate) scratch: Scratch,
    /// The helper's own: what fails on it holds up nothing else.
    pub(crate) errands: Port,
    pub(crate) helper: Helper,
    /// One-sided operations under way.
    pub(crate) rma: Rma,
    /// Keys are the provider's, and targets are named by their addresses (`FI_MR_BASIC`).
    pub(crate) basic: bool,
    /// `FI_PROGRESS_AUTO`.
    pub(crate) auto: bool,
    /// The next key that the provider gives.
    pub(crate) next_key: AtomicU64,
    /// What was opened from it and is not closed.
    open: AtomicUsize,
}

/// Something that was opened from a domain.
pub(crate) struct Child {
    domain: Arc<Domain>,
    is_open: AtomicBool,
}

impl Child {
    /// Its domain.
    pub(crate) const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Whether this is its domain.
    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// The program has closed it, though a thread of the provider may still be at it: it keeps the domain from being closed no more.
    pub(crate) fn close(&self) {
        if self.is_open.swap(false, Ordering::AcqRel) {
            self.domain.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.close();
    }
}

/// A domain as C holds it.
type DomainHandle = Handle<fid_domain, Domain>;

impl Domain {
    /// The domain behind a handle.
    ///
    /// # Safety
    /// As [`Handle::of`].
    pub(crate) unsafe fn of<'a, P>(domain: *mut P) -> Answer<&'a Arc<Self>> {
        // SAFETY: the caller's promise.
        unsafe { DomainHandle::of(domain, FI_CLASS_DOMAIN) }
    }

    /// Counts something that is opened from it.
    pub(crate) fn child(self: &Arc<Self>) -> Child {
        self.open.fetch_add(1, Ordering::AcqRel);
        Child {
            domain: Arc::clone(self),
            is_open: AtomicBool::new(true),
        }
    }

    fn start(fabric: &Arc<Fabric>, info: &fi_info) -> Answer<Self> {
        // SAFETY: a part of an answer of `fi_getinfo` is null or valid.
        let attr = unsafe { given(info.domain_attr) };
        let basic = attr.is_some_and(|attr| attr.mr_mode.cast_unsigned() & FI_MR_BASIC != 0);
        let auto = attr.is_some_and(|attr| attr.data_progress == FI_PROGRESS_AUTO);
        let node = node::share()?;
        let port = || Port::open(&node.node(), PortConfig::default()).map_err(|error| refused(&error));
        let (memory, errands) = (port()?, port()?);
        let own = Scratch::new(&memory).and_then(|scratch| {
            let everything = Everything::but(&memory, scratch.memory())?;
            Ok((scratch, everything))
        });
        let (scratch, everything) = own.map_err(|error| refused(&error))?;
        Ok(Self {
            _fabric: Arc::clone(fabric),
            node,
            memory,
            everything,
            scratch,
            errands,
            helper: Helper::start()?,
            rma: Rma::default(),
            basic,
            auto,
            next_key: AtomicU64::new(1),
            open: AtomicUsize::new(0),
        })
    }
}

/// Why the library refused something when a domain or an endpoint was opened.
pub(crate) fn refused(error: &netvm::Error) -> Errno {
    log::warn(&error.to_string());
    match error.status() {
        Some(netvm::Status::TableFull | netvm::Status::NoMemory) => Errno::NOMEM,
        _ => Errno::OTHER,
    }
}

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    ..absent::FID_OPS
};

static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(ops::endpoint::open),
    scalable_ep: Some(absent::scalable_ep),
    cntr_open: Some(cntr::open),
    poll_open: Some(poll::open),
    stx_ctx: Some(absent::stx_ctx),
    srx_ctx: Some(absent::srx_ctx),
    query_atomic: Some(ops::atomic::query),
    query_collective: None,
    endpoint2: None,
};

/// `fi_domain`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let (fabric, info) = unsafe { (fabric::of(fabric)?, given(info).ok_or(Errno::INVAL)?) };
        if domain.is_null() {
            return Err(Errno::INVAL);
        }
        let object = Arc::new(Domain::start(fabric, info)?);
        let face = fid_domain {
            fid: fid {
                fclass: FI_CLASS_DOMAIN as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
            mr: table(&mr::OPS),
        };
        // SAFETY: checked above.
        unsafe { *domain = DomainHandle::give(face, FI_CLASS_DOMAIN, object)? };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        let open = unsafe { Domain::of(fid)? }.open.load(Ordering::Acquire);
        if open > 0 {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        let domain = unsafe { DomainHandle::take(fid, FI_CLASS_DOMAIN)? };
        domain.helper.stop();
        domain.rma.clear();
        drop(domain);
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    call(|| {
        // SAFETY: C's handles. No event of a domain is reported: an event queue may be bound, and stays empty.
        unsafe {
            Domain::of(fid)?;
            crate::eq::of(other)?;
        }
        Ok(())
    })
}
