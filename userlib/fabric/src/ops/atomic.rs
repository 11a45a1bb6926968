//! Atomic changes of remote values, `fi_atomic(3)`: every operation on every type of up to 8 bytes on which it is defined.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::iovec;
use netvm::{ValueOp, ValueType};

use super::endpoint::of;
use super::message::Manner;
use super::rma::Remote;
use crate::buffer::Buffer;
use crate::domain::Domain;
use crate::ep::{Counted, Endpoint};
use crate::ffi::{array, call, given};
use crate::fi::*;
use crate::rma::{Op, What};

/// The calls.
pub(super) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

/// Values of one operation.
const MOST: usize = 256;
/// Bytes of the longest call.
pub(crate) const MOST_BYTES: usize = MOST * 8;
const FLAGS: u64 =
    FI_COMPLETION | FI_MORE | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

/// Which calls there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Base,
    Fetch,
    Compare,
}

/// A type of libfabric, as the card calls it. Wider ones it does not have.
const fn type_of(datatype: fi_datatype) -> Option<ValueType> {
    Some(match datatype {
        FI_INT8 => ValueType::I8,
        FI_UINT8 => ValueType::U8,
        FI_INT16 => ValueType::I16,
        FI_UINT16 => ValueType::U16,
        FI_INT32 => ValueType::I32,
        FI_UINT32 => ValueType::U32,
        FI_INT64 => ValueType::I64,
        FI_UINT64 => ValueType::U64,
        FI_FLOAT => ValueType::F32,
        FI_DOUBLE => ValueType::F64,
        FI_FLOAT_COMPLEX => ValueType::Complex32,
        _ => return None,
    })
}

/// What the card does for an operation, and the calls that have it.
const fn op_of(shape: Shape, op: fi_op) -> Option<ValueOp> {
    Some(match (shape, op) {
        (Shape::Fetch, FI_ATOMIC_READ) => ValueOp::Read,
        (Shape::Base | Shape::Fetch, op) => match op {
            FI_MIN => ValueOp::Min,
            FI_MAX => ValueOp::Max,
            FI_SUM => ValueOp::Sum,
            FI_PROD => ValueOp::Product,
            FI_LOR => ValueOp::LogicalOr,
            FI_LAND => ValueOp::LogicalAnd,
            FI_BOR => ValueOp::BitOr,
            FI_BAND => ValueOp::BitAnd,
            FI_LXOR => ValueOp::LogicalXor,
            FI_BXOR => ValueOp::BitXor,
            FI_ATOMIC_WRITE => ValueOp::Write,
            _ => return None,
        },
        (Shape::Compare, op) => match op {
            FI_CSWAP => ValueOp::CompareSwap,
            FI_CSWAP_NE => ValueOp::CompareSwapNe,
            FI_CSWAP_LE => ValueOp::CompareSwapLe,
            FI_CSWAP_LT => ValueOp::CompareSwapLt,
            FI_CSWAP_GE => ValueOp::CompareSwapGe,
            FI_CSWAP_GT => ValueOp::CompareSwapGt,
            FI_MSWAP => ValueOp::MaskedSwap,
            _ => return None,
        },
    })
}

/// What the card does for a type and an operation in a call.
fn supported(shape: Shape, datatype: fi_datatype, op: fi_op) -> Answer<(ValueOp, ValueType)> {
    match (op_of(shape, op), type_of(datatype)) {
        (Some(op), Some(on)) if on.has(op) => Ok((op, on)),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The pieces of scattered operands, as bytes.
fn bytes_of(ioc: &[fi_ioc], on: ValueType) -> Answer<Buffer> {
    let mut pieces = Vec::with_capacity(ioc.len());
    for piece in ioc {
        pieces.push(iovec {
            iov_base: piece.addr,
            iov_len: piece.count.checked_mul(on.bytes() as usize).ok_or(Errno::INVAL)?,
        });
    }
    Buffer::of(&pieces)
}

/// The bits of values.
fn values(buffer: &Buffer, on: ValueType) -> Vec<u64> {
    let mut bytes = vec![0; buffer.len()];
    buffer.gather(0, &mut bytes);
    let wide = |bytes: &[u8]| {
        let mut wide = [0; 8];
        for (place, byte) in wide.iter_mut().zip(bytes) {
            *place = *byte;
        }
        u64::from_le_bytes(wide)
    };
    bytes.chunks_exact(on.bytes() as usize).map(wide).collect()
}

/// A call.
struct Call<'a> {
    shape: Shape,
    operands: &'a [fi_ioc],
    compares: &'a [fi_ioc],
    results: &'a [fi_ioc],
    remote: Remote,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
}

/// # Safety
/// `ep` is a handle, or null; the buffers are there, and those for results stay until the operation has ended.
unsafe fn begin(ep: *mut fid_ep, manner: Manner, made: &Call<'_>) -> Answer {
    // SAFETY: the caller's promise.
    let endpoint: &Arc<Endpoint> = unsafe { of(ep)? };
    let (op, on) = supported(made.shape, made.datatype, made.op)?;
    let width = on.bytes() as usize;
    let flags = match manner {
        Manner::Plain => endpoint.flags(Counted::Write),
        Manner::Inject => 0,
        Manner::Flags(flags) if flags & !FLAGS != 0 => return Err(Errno::BADFLAGS),
        Manner::Flags(flags) => flags,
    };
    let results = bytes_of(made.results, on)?;
    let operands = match op {
        // Its operand is not looked at, and may be nowhere.
        ValueOp::Read => None,
        _ => Some(bytes_of(made.operands, on)?),
    };
    let compares = bytes_of(made.compares, on)?;
    // Before they are copied.
    let count = operands.as_ref().unwrap_or(&results).len() / width;
    if count > MOST {
        return Err(Errno::MSGSIZE);
    }
    let fetches = made.shape != Shape::Base;
    let fits = count > 0
        && (!fetches || results.len() == count * width)
        && (made.shape != Shape::Compare || compares.len() == count * width);
    if !fits {
        return Err(Errno::INVAL);
    }
    let operands = operands.map_or_else(|| vec![0; count], |operands| values(&operands, on));
    let compares = values(&compares, on);
    let counted = if fetches { Counted::Read } else { Counted::Write };
    let completes = !matches!(manner, Manner::Inject) && endpoint.completes(counted, flags);
    let target = made.remote.target(endpoint)?;
    let domain = endpoint.domain();
    domain.rma.begin(domain, &target, || {
        let what = What::Atomic {
            op,
            on,
            operands,
            compares,
            fetches,
            ordered: endpoint.orders_atomics,
        };
        Op::new(
            endpoint,
            what,
            results,
            made.context.expose_provenance(),
            completes,
        )
    })
}

const fn piece(addr: *const c_void, count: usize) -> fi_ioc {
    fi_ioc {
        addr: addr.cast_mut(),
        count,
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let made = Call {
        shape: Shape::Base,
        operands: &[piece(buf, count)],
        compares: &[],
        results: &[],
        remote: Remote { to, at, key },
        datatype,
        op,
        context,
    };
    // SAFETY: C's handle and buffers.
    call(|| unsafe { begin(ep, Manner::Plain, &made) }) as isize
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    call(|| {
        let made = Call {
            shape: Shape::Base,
            // SAFETY: C passes as many elements as it says.
            operands: unsafe { array(iov, count)? },
            compares: &[],
            results: &[],
            remote: Remote { to, at, key },
            datatype,
            op,
            context,
        };
        // SAFETY: C's handle and buffers.
        unsafe { begin(ep, Manner::Plain, &made) }
    }) as isize
}

/// # Safety
/// As [`begin`]; `msg` is null or C's message, with as many elements as it says.
unsafe fn message(
    ep: *mut fid_ep,
    shape: Shape,
    msg: *const fi_msg_atomic,
    compares: &[fi_ioc],
    results: &[fi_ioc],
    flags: u64,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe {
        let msg = given(msg).ok_or(Errno::INVAL)?;
        let [remote] = array(msg.rma_iov, msg.rma_iov_count)? else {
            return Err(Errno::INVAL);
        };
        let made = Call {
            shape,
            operands: array(msg.msg_iov, msg.iov_count)?,
            compares,
            results,
            remote: Remote {
                to: msg.addr,
                at: remote.addr,
                key: remote.key,
            },
            datatype: msg.datatype,
            op: msg.op,
            context: msg.context,
        };
        begin(ep, Manner::Flags(flags), &made)
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: C's handle and message.
    call(|| unsafe { message(ep, Shape::Base, msg, &[], &[], flags) }) as isize
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    let made = Call {
        shape: Shape::Base,
        operands: &[piece(buf, count)],
        compares: &[],
        results: &[],
        remote: Remote { to, at, key },
        datatype,
        op,
        context: core::ptr::null_mut(),
    };
    // SAFETY: C's handle and buffers.
    call(|| unsafe { begin(ep, Manner::Inject, &made) }) as isize
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let made = Call {
        shape: Shape::Fetch,
        operands: &[piece(buf, count)],
        compares: &[],
        results: &[piece(result, count)],
        remote: Remote { to, at, key },
        datatype,
        op,
        context,
    };
    // SAFETY: C's handle and buffers.
    call(|| unsafe { begin(ep, Manner::Plain, &made) }) as isize
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    results: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: C passes as many elements as it says.
        let (operands, results) = unsafe { (array(iov, count)?, array(results.cast_const(), result_count)?) };
        let made = Call {
            shape: Shape::Fetch,
            operands,
            compares: &[],
            results,
            remote: Remote { to, at, key },
            datatype,
            op,
            context,
        };
        // SAFETY: C's handle and buffers.
        unsafe { begin(ep, Manner::Plain, &made) }
    }) as isize
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    results: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    call(|| {
        // SAFETY: C passes as many elements as it says.
        let results = unsafe { array(results.cast_const(), result_count)? };
        // SAFETY: C's handle and message.
        unsafe { message(ep, Shape::Fetch, msg, &[], results, flags) }
    }) as isize
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let made = Call {
        shape: Shape::Compare,
        operands: &[piece(buf, count)],
        compares: &[piece(compare, count)],
        results: &[piece(result, count)],
        remote: Remote { to, at, key },
        datatype,
        op,
        context,
    };
    // SAFETY: C's handle and buffers.
    call(|| unsafe { begin(ep, Manner::Plain, &made) }) as isize
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compares: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: C passes as many elements as it says.
        let (operands, compares, results) = unsafe {
            (
                array(iov, count)?,
                array(compares, compare_count)?,
                array(results.cast_const(), result_count)?,
            )
        };
        let made = Call {
            shape: Shape::Compare,
            operands,
            compares,
            results,
            remote: Remote { to, at, key },
            datatype,
            op,
            context,
        };
        // SAFETY: C's handle and buffers.
        unsafe { begin(ep, Manner::Plain, &made) }
    }) as isize
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    compares: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    call(|| {
        // SAFETY: C passes as many elements as it says.
        let (compares, results) = unsafe {
            (
                array(compares, compare_count)?,
                array(results.cast_const(), result_count)?,
            )
        };
        // SAFETY: C's handle and message.
        unsafe { message(ep, Shape::Compare, msg, compares, results, flags) }
    }) as isize
}

fn valid(shape: Shape, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    call(|| {
        supported(shape, datatype, op)?;
        if !count.is_null() {
            // SAFETY: C has room for a number.
            unsafe { count.write(MOST) };
        }
        Ok(())
    })
}

unsafe extern "C" fn writevalid(
    _ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    valid(Shape::Base, datatype, op, count)
}

unsafe extern "C" fn readwritevalid(
    _ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    valid(Shape::Fetch, datatype, op, count)
}

unsafe extern "C" fn compwritevalid(
    _ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    valid(Shape::Compare, datatype, op, count)
}

/// `fi_query_atomic`.
///
/// # Safety
/// As libfabric passes them.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        unsafe { Domain::of(domain)? };
        let shape = match flags & !FI_TAGGED {
            0 => Shape::Base,
            FI_FETCH_ATOMIC => Shape::Fetch,
            FI_COMPARE_ATOMIC => Shape::Compare,
            _ => return Err(Errno::BADFLAGS),
        };
        // Buffers that are received into are no targets of atomics.
        if flags & FI_TAGGED != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (_, on) = supported(shape, datatype, op)?;
        if attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: C has room for an attribute.
        unsafe {
            attr.write(fi_atomic_attr {
                count: MOST,
                size: on.bytes() as usize,
            });
        }
        Ok(())
    })
}
