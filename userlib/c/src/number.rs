//! Atomics on numbers in other ports' memory.

use std::ffi::{c_int, c_void};

use netvm::abi::atomic::Atomic;
use netvm::{PendingAtomic, RemoteSegment, ValueOp, ValueType};

use crate::access::netvm_remote;
use crate::argument::{flags, out};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle;
use crate::pending::{Under, netvm_pending};
use crate::transfer::{NETVM_NOWAIT, NETVM_ORDERED, NETVM_REGARDLESS};

/// A number of 8 bits with sign.
pub const NETVM_INT8: u32 = 1;
/// A number of 8 bits without sign.
pub const NETVM_UINT8: u32 = 2;
/// A number of 16 bits with sign.
pub const NETVM_INT16: u32 = 3;
/// A number of 16 bits without sign.
pub const NETVM_UINT16: u32 = 4;
/// A number of 32 bits with sign.
pub const NETVM_INT32: u32 = 5;
/// A number of 32 bits without sign.
pub const NETVM_UINT32: u32 = 6;
/// A number of 64 bits with sign.
pub const NETVM_INT64: u32 = 7;
/// A number of 64 bits without sign.
pub const NETVM_UINT64: u32 = 8;
/// `float`: 32 bits.
pub const NETVM_FLOAT: u32 = 9;
/// `double`: 64 bits.
pub const NETVM_DOUBLE: u32 = 10;
/// `float complex`: real and imaginary part, of 32 bits each.
pub const NETVM_FLOAT_COMPLEX: u32 = 11;

/// Stores the operand if it is less.
pub const NETVM_MIN: u32 = 16;
/// Stores the operand if it is greater.
pub const NETVM_MAX: u32 = 17;
/// Adds the operand. Whole numbers wrap.
pub const NETVM_SUM: u32 = 18;
/// Multiplies by the operand. Whole numbers wrap.
pub const NETVM_PRODUCT: u32 = 19;
/// Stores 1 if the number or the operand is not 0, else 0.
pub const NETVM_LOGICAL_OR: u32 = 20;
/// Stores 1 if neither the number nor the operand is 0, else 0.
pub const NETVM_LOGICAL_AND: u32 = 21;
/// ORs the bits.
pub const NETVM_BIT_OR: u32 = 22;
/// ANDs the bits.
pub const NETVM_BIT_AND: u32 = 23;
/// Stores 1 if just one of the number and the operand is not 0, else 0.
pub const NETVM_LOGICAL_XOR: u32 = 24;
/// XORs the bits.
pub const NETVM_BIT_XOR: u32 = 25;
/// Changes nothing. The operand counts for nothing and may be NULL.
pub const NETVM_LOAD: u32 = 26;
/// Stores the operand.
pub const NETVM_STORE: u32 = 27;
/// Stores the operand if `compare` is equal to the number.
pub const NETVM_SWAP_EQ: u32 = 28;
/// Stores the operand if `compare` is not equal to the number.
pub const NETVM_SWAP_NE: u32 = 29;
/// Stores the operand if `compare` is less than or equal to the number.
pub const NETVM_SWAP_LE: u32 = 30;
/// Stores the operand if `compare` is less than the number.
pub const NETVM_SWAP_LT: u32 = 31;
/// Stores the operand if `compare` is greater than or equal to the number.
pub const NETVM_SWAP_GE: u32 = 32;
/// Stores the operand if `compare` is greater than the number.
pub const NETVM_SWAP_GT: u32 = 33;
/// Stores those bits of the operand that are set in `compare`.
pub const NETVM_SWAP_BITS: u32 = 34;

const FLAGS: u32 = NETVM_ORDERED | NETVM_REGARDLESS;

fn type_of(number: u32) -> Result<ValueType> {
    Ok(match number {
        NETVM_INT8 => ValueType::I8,
        NETVM_UINT8 => ValueType::U8,
        NETVM_INT16 => ValueType::I16,
        NETVM_UINT16 => ValueType::U16,
        NETVM_INT32 => ValueType::I32,
        NETVM_UINT32 => ValueType::U32,
        NETVM_INT64 => ValueType::I64,
        NETVM_UINT64 => ValueType::U64,
        NETVM_FLOAT => ValueType::F32,
        NETVM_DOUBLE => ValueType::F64,
        NETVM_FLOAT_COMPLEX => ValueType::Complex32,
        _ => return Err(Fault::argument(libc::EINVAL, "there is no such type of numbers")),
    })
}

fn op_of(what: u32) -> Result<ValueOp> {
    let index = what.checked_sub(NETVM_MIN);
    let op = index.and_then(|index| ValueOp::ALL.get(index as usize));
    op.copied().ok_or(Fault::argument(
        libc::EINVAL,
        "there is no such atomic on numbers",
    ))
}

/// The bits of a number.
///
/// # Safety
/// `at` is NULL or a place of a number of this type.
unsafe fn bits(at: *const c_void, on: ValueType, name: &'static str) -> Result<u64> {
    if at.is_null() {
        return Err(Fault::null(name));
    }
    let mut bytes = [0; 8];
    // SAFETY: the caller's promise; no type has more bytes than there is room for.
    unsafe { core::ptr::copy_nonoverlapping(at.cast(), bytes.as_mut_ptr(), on.bytes() as usize) };
    Ok(u64::from_le_bytes(bytes))
}

/// Posts an operation.
///
/// # Safety
/// `operand` and `compare` are each NULL or a place of a number of the type.
unsafe fn post(
    remote: &RemoteSegment,
    offset: u64,
    (what, number): (u32, u32),
    (operand, compare): (*const c_void, *const c_void),
    flags: u32,
) -> Result<(PendingAtomic, ValueType)> {
    let (op, on) = (op_of(what)?, type_of(number)?);
    let operand = match op {
        ValueOp::Read => 0,
        // SAFETY: the caller's promise.
        _ => unsafe { bits(operand, on, "operand") }?,
    };
    let compare = match op {
        ValueOp::CompareSwap
        | ValueOp::CompareSwapNe
        | ValueOp::CompareSwapLe
        | ValueOp::CompareSwapLt
        | ValueOp::CompareSwapGe
        | ValueOp::CompareSwapGt
        // SAFETY: as above.
        | ValueOp::MaskedSwap => unsafe { bits(compare, on, "compare") }?,
        _ => 0,
    };
    let undefined = Fault::argument(
        libc::EOPNOTSUPP,
        "the operation is not defined on this type of numbers",
    );
    let atomic = Atomic::on_value(op, on, operand, compare).ok_or(undefined)?;
    let mut op = remote.atomic(offset, atomic);
    if flags & NETVM_ORDERED != 0 {
        op = op.ordered();
    }
    if flags & NETVM_REGARDLESS != 0 {
        op = op.regardless();
    }
    let posted = if flags & NETVM_NOWAIT == 0 {
        op.post()
    } else {
        op.try_post()
    };
    Ok((posted?, on))
}

/// Changes an aligned number of the type `type` (NETVM_INT8 and the like) by NETVM_MIN and the like, and waits for the answer: one round trip. `operand`,
/// `compare` and `old` are places of numbers of the type; `compare` counts for NETVM_SWAP_EQ and the like alone and may be NULL elsewhere. `old` gets what was
/// there; it may be NULL. Flags: NETVM_ORDERED, NETVM_REGARDLESS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_atomic_number(
    remote: *mut netvm_remote,
    offset: u64,
    what: u32,
    r#type: u32,
    operand: *const c_void,
    compare: *const c_void,
    flags: u32,
    old: *mut c_void,
) -> c_int {
    call(|| {
        let flags = self::flags(flags, FLAGS)?;
        let how = (what, r#type);
        // SAFETY: the header asks for such places.
        let (posted, on) = unsafe { post(&*handle::get(remote)?, offset, how, (operand, compare), flags) }?;
        let bytes = posted.wait()?.value.to_le_bytes();
        if !old.is_null() {
            // SAFETY: the header asks for a place of a number of the type, which has no more bytes than a word.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), old.cast(), on.bytes() as usize) };
        }
        Ok(())
    })
}

/// Begins an atomic on an aligned number and never waits: -EAGAIN if there is no room. netvm_pending_value() gives the bits of the answer, in the
/// lowest bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_atomic_number(
    remote: *mut netvm_remote,
    offset: u64,
    what: u32,
    r#type: u32,
    operand: *const c_void,
    compare: *const c_void,
    flags: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = self::flags(flags, FLAGS)? | NETVM_NOWAIT;
        let how = (what, r#type);
        // SAFETY: the header asks for such places.
        let (begun, _) = unsafe { post(&*handle::get(remote)?, offset, how, (operand, compare), flags) }?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(Under::Atomic(begun).handle(context)?) };
        Ok(())
    })
}
