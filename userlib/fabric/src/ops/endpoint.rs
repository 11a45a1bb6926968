//! An endpoint's life: `fi_endpoint(3)`, `fi_cm(3)` as far as it is about names.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{atomic, message, rma, tagged};
use crate::absent;
use crate::av::{self, write_address};
use crate::domain::Domain;
use crate::ep::{Counted, Endpoint, Flags};
use crate::ffi::{Handle, array, call, given, table};
use crate::fi::*;
use crate::info::{ATOMIC_ORDER, QUEUE, RX_FLAGS, TX_FLAGS};
use crate::service::Named;
use crate::{cntr, cq, eq};

/// An endpoint as C holds it.
type EndpointHandle = Handle<fid_ep, Endpoint>;

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ..absent::FID_OPS
};

static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(absent::tx_ctx),
    rx_ctx: Some(absent::rx_ctx),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
};

static CM_OPS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(absent::getpeer),
    connect: Some(absent::connect),
    listen: Some(absent::listen),
    accept: Some(absent::accept),
    reject: Some(absent::reject),
    shutdown: Some(absent::shutdown),
    // The headers look whether there is any.
    join: None,
};

/// `fi_endpoint`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let (domain, info) = unsafe { (Domain::of(domain)?, given(info).ok_or(Errno::INVAL)?) };
        if ep.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: parts of an answer of `fi_getinfo` are null or valid.
        let (tx, rx, attr) = unsafe { (given(info.tx_attr), given(info.rx_attr), given(info.ep_attr)) };
        if attr.is_some_and(|attr| attr.type_ != FI_EP_RDM) {
            return Err(Errno::INVAL);
        }
        let flags = Flags::new(tx.map_or(0, |tx| tx.op_flags), rx.map_or(0, |rx| rx.op_flags));
        let orders_atomics = tx.is_some_and(|tx| tx.msg_order & ATOMIC_ORDER != 0);
        // SAFETY: the program says how long its address is.
        let source = unsafe { array(info.src_addr.cast_const().cast::<u8>(), info.src_addrlen)? };
        let object = Endpoint::new(domain, info.caps, orders_atomics, flags)?;
        if !source.is_empty()
            && let Named::Service(service) = Named::read(source)?
        {
            object.serve_at(&service)?;
        }
        let face = fid_ep {
            fid: fid {
                fclass: FI_CLASS_EP as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
            cm: table(&CM_OPS),
            msg: table(&message::OPS),
            rma: table(&rma::OPS),
            tagged: table(&tagged::OPS),
            atomic: table(&atomic::OPS),
            collective: table(&absent::COLLECTIVE).cast(),
        };
        // SAFETY: checked above.
        unsafe { *ep = EndpointHandle::give(face, FI_CLASS_EP, object)? };
        Ok(())
    })
}

/// The endpoint behind a handle.
///
/// # Safety
/// As [`Handle::of`].
#[inline]
pub(super) unsafe fn of<'a, P>(ep: *mut P) -> Answer<&'a Arc<Endpoint>> {
    // SAFETY: the caller's promise.
    unsafe { EndpointHandle::of(ep, FI_CLASS_EP) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        let endpoint = unsafe { EndpointHandle::take(fid, FI_CLASS_EP)? };
        endpoint.close();
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    call(|| {
        // SAFETY: C's handles.
        let (endpoint, class) = unsafe { (of(fid)?, given(other).ok_or(Errno::INVAL)?.fclass) };
        if endpoint.is_enabled() {
            return Err(Errno::OPBADSTATE);
        }
        match class as u32 {
            // SAFETY: as above.
            FI_CLASS_AV => bind_av(endpoint, unsafe { av::of(other)? }),
            // SAFETY: as above.
            FI_CLASS_CQ => bind_cq(endpoint, unsafe { cq::of(other)? }, flags),
            // SAFETY: as above.
            FI_CLASS_CNTR => bind_counter(endpoint, unsafe { cntr::of(other)? }, flags),
            FI_CLASS_EQ => {
                // SAFETY: as above.
                endpoint.state().eq = Some(Arc::clone(unsafe { eq::of(other)? }));
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    })
}

fn bind_av(endpoint: &Arc<Endpoint>, av: &Arc<av::Av>) -> Answer {
    if !av.is_of(endpoint.domain()) {
        return Err(Errno::DOMAIN);
    }
    let mut state = endpoint.state();
    if state.av.is_some() {
        return Err(Errno::INVAL);
    }
    state.av = Some(Arc::clone(av));
    Ok(())
}

fn bind_cq(endpoint: &Arc<Endpoint>, cq: &Arc<cq::Cq>, flags: u64) -> Answer {
    if !cq.is_of(endpoint.domain()) {
        return Err(Errno::DOMAIN);
    }
    if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 || flags & (FI_TRANSMIT | FI_RECV) == 0
    {
        return Err(Errno::BADFLAGS);
    }
    let mut state = endpoint.state();
    let selective = flags & FI_SELECTIVE_COMPLETION != 0;
    let (tx, rx) = (flags & FI_TRANSMIT != 0, flags & FI_RECV != 0);
    if (tx && state.ends.tx.is_some()) || (rx && state.ends.rx.is_some()) {
        return Err(Errno::INVAL);
    }
    if tx {
        state.ends.tx = Some(Arc::clone(cq));
        endpoint
            .selective(Counted::Send)
            .store(selective, Ordering::Release);
    }
    if rx {
        state.ends.rx = Some(Arc::clone(cq));
        endpoint
            .selective(Counted::Receive)
            .store(selective, Ordering::Release);
    }
    drop(state);
    cq.bind(endpoint);
    Ok(())
}

fn bind_counter(endpoint: &Arc<Endpoint>, counter: &Arc<cntr::Counter>, flags: u64) -> Answer {
    if !counter.is_of(endpoint.domain()) {
        return Err(Errno::DOMAIN);
    }
    let kinds = [
        (FI_SEND, Counted::Send),
        (FI_RECV, Counted::Receive),
        (FI_READ, Counted::Read),
        (FI_WRITE, Counted::Write),
    ];
    let all = kinds.iter().fold(0, |all, (flag, _)| all | flag);
    // Remote access is counted for endpoints with `FI_RMA_EVENT` alone (fi_endpoint(3)), and none is offered with it. Programs
    // name these flags all the same, on any endpoint.
    let uncounted = FI_REMOTE_READ | FI_REMOTE_WRITE;
    if flags & !(all | uncounted) != 0 || flags == 0 {
        return Err(Errno::BADFLAGS);
    }
    let mut state = endpoint.state();
    for (flag, counted) in kinds {
        if flags & flag != 0 {
            state.ends.bind_counter(counted, counter)?;
        }
    }
    drop(state);
    counter.bind(endpoint);
    Ok(())
}

/// What flags are about, as a program names it: `FI_TRANSMIT` or `FI_RECV`, and which flags such operations may have by default.
fn direction(flags: u64) -> Answer<(Counted, u64)> {
    match flags & (FI_TRANSMIT | FI_RECV) {
        FI_TRANSMIT => Ok((Counted::Send, TX_FLAGS)),
        FI_RECV => Ok((Counted::Receive, RX_FLAGS)),
        _ => Err(Errno::INVAL),
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let endpoint = unsafe { of(fid)? };
        // SAFETY: with these commands the argument is null or one of flags.
        let flags = || unsafe { arg.cast::<u64>().as_mut() }.ok_or(Errno::INVAL);
        match command.cast_unsigned() {
            FI_ENABLE => endpoint.enable(),
            FI_GETOPSFLAG => {
                let flags = flags()?;
                *flags = endpoint.flags(direction(*flags)?.0);
                Ok(())
            }
            FI_SETOPSFLAG => {
                let flags = *flags()?;
                let (counted, allowed) = direction(flags)?;
                let wanted = flags & !(FI_TRANSMIT | FI_RECV);
                if wanted & !allowed != 0 {
                    return Err(Errno::BADFLAGS);
                }
                endpoint.set_flags(counted, wanted);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    })
}

unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    // SAFETY: C's handle.
    call(|| unsafe { of(fid)? }.cancel(context.expose_provenance())) as isize
}

/// `FI_OPT_MIN_MULTI_RECV` of `FI_OPT_ENDPOINT`, the one option.
fn option(level: c_int, name: c_int) -> Answer {
    let known = level.cast_unsigned() == FI_OPT_ENDPOINT && name.cast_unsigned() == FI_OPT_MIN_MULTI_RECV;
    known.then_some(()).ok_or(Errno(libc::ENOPROTOOPT))
}

unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let endpoint = unsafe { of(fid)? };
        option(level, name)?;
        if value.is_null() || len.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: C says how much room there is.
        unsafe {
            if len.replace(size_of::<usize>()) < size_of::<usize>() {
                return Err(Errno::TOOSMALL);
            }
            value.cast::<usize>().write_unaligned(endpoint.state().least);
        }
        Ok(())
    })
}

unsafe extern "C" fn setopt(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        let endpoint = unsafe { of(fid)? };
        option(level, name)?;
        if value.is_null() || len != size_of::<usize>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the length is that of the option's type.
        endpoint.state().least = unsafe { value.cast::<usize>().read_unaligned() };
        Ok(())
    })
}

unsafe extern "C" fn size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: C's handle.
    crate::ffi::count(|| unsafe { of(ep) }?.active().map(|_| QUEUE))
}

unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, len: usize) -> c_int {
    call(|| {
        // SAFETY: C's handle, and an address as long as it says.
        let (endpoint, address) = unsafe { (of(fid)?, array(addr.cast_const().cast::<u8>(), len)?) };
        match Named::read(address)? {
            Named::Service(service) => endpoint.serve_at(&service),
            // A node, its ports and a life are the provider's to give.
            Named::Endpoint(_) => Err(Errno::OPNOTSUPP),
        }
    })
}

unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    call(|| {
        // SAFETY: C's handle, and room as it says.
        unsafe { write_address(&of(fid)?.address, addr, len, true) }
    })
}
