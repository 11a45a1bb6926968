//! Atomics on words of other ports' memory.

use std::ffi::{c_int, c_void};

use netvm::{PendingAtomic, RemoteSegment};

use crate::access::netvm_remote;
use crate::argument::{flags, out, set};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle;
use crate::pending::{Under, netvm_pending};
use crate::transfer::{NETVM_NOWAIT, NETVM_ORDERED, NETVM_REGARDLESS};

/// Adds the operand, wrapping.
pub const NETVM_FETCH_ADD: u32 = 1;
/// Subtracts the operand, wrapping.
pub const NETVM_FETCH_SUB: u32 = 2;
/// Stores the operand.
pub const NETVM_SWAP: u32 = 3;
/// Stores the operand if the word is what is compared with.
pub const NETVM_COMPARE_SWAP: u32 = 4;
/// Stores 1 if the word is 0. The operand counts for nothing.
pub const NETVM_TEST_AND_SET: u32 = 5;

const FLAGS: u32 = NETVM_ORDERED | NETVM_REGARDLESS;

/// Posts an operation on a word.
macro_rules! post {
    ($word:expr, $what:expr, $operand:expr, $compare:expr, $flags:expr) => {{
        let word = $word;
        let mut op = match $what {
            NETVM_FETCH_ADD => word.add($operand),
            NETVM_FETCH_SUB => word.sub($operand),
            NETVM_SWAP => word.exchange($operand),
            NETVM_COMPARE_SWAP => word.exchange_if($compare, $operand),
            NETVM_TEST_AND_SET => word.set(),
            _ => return Err(Fault::argument(libc::EINVAL, "there is no such atomic")),
        };
        if $flags & NETVM_ORDERED != 0 {
            op = op.ordered();
        }
        if $flags & NETVM_REGARDLESS != 0 {
            op = op.regardless();
        }
        Ok(if $flags & NETVM_NOWAIT == 0 {
            op.post()
        } else {
            op.try_post()
        }?)
    }};
}

fn post32(
    remote: &RemoteSegment,
    offset: u64,
    what: u32,
    (operand, compare): (u32, u32),
    flags: u32,
) -> Result<PendingAtomic> {
    post!(remote.word32(offset)?, what, operand, compare, flags)
}

fn post64(
    remote: &RemoteSegment,
    offset: u64,
    what: u32,
    (operand, compare): (u64, u64),
    flags: u32,
) -> Result<PendingAtomic> {
    post!(remote.word64(offset)?, what, operand, compare, flags)
}

/// Changes an aligned 32-bit word by NETVM_FETCH_ADD and the like, and waits for the answer: one round trip. `old` gets what was there; it
/// may be NULL. Flags: NETVM_ORDERED, NETVM_REGARDLESS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_atomic32(
    remote: *mut netvm_remote,
    offset: u64,
    what: u32,
    operand: u32,
    compare: u32,
    flags: u32,
    old: *mut u32,
) -> c_int {
    call(|| {
        let flags = self::flags(flags, FLAGS)?;
        let answer = post32(&*handle::get(remote)?, offset, what, (operand, compare), flags)?.wait()?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(old, answer.value as u32) };
        Ok(())
    })
}

/// The same for an aligned 64-bit word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_atomic64(
    remote: *mut netvm_remote,
    offset: u64,
    what: u32,
    operand: u64,
    compare: u64,
    flags: u32,
    old: *mut u64,
) -> c_int {
    call(|| {
        let flags = self::flags(flags, FLAGS)?;
        let answer = post64(&*handle::get(remote)?, offset, what, (operand, compare), flags)?.wait()?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(old, answer.value) };
        Ok(())
    })
}

/// Begins an atomic on an aligned 32-bit word and never waits: -EAGAIN if there is no room. netvm_pending_value() gives the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_atomic32(
    remote: *mut netvm_remote,
    offset: u64,
    what: u32,
    operand: u32,
    compare: u32,
    flags: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = self::flags(flags, FLAGS)? | NETVM_NOWAIT;
        let begun = post32(&*handle::get(remote)?, offset, what, (operand, compare), flags)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(Under::Atomic(begun).handle(context)?) };
        Ok(())
    })
}

/// The same for an aligned 64-bit word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_atomic64(
    remote: *mut netvm_remote,
    offset: u64,
    what: u32,
    operand: u64,
    compare: u64,
    flags: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = self::flags(flags, FLAGS)? | NETVM_NOWAIT;
        let begun = post64(&*handle::get(remote)?, offset, what, (operand, compare), flags)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(Under::Atomic(begun).handle(context)?) };
        Ok(())
    })
}
