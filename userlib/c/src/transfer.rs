//! Writing to and reading from the memory of other ports.

use std::ffi::{c_int, c_void};

use netvm::{OpId, Read, RegionSlice, Write};

use crate::access::netvm_remote;
use crate::argument::{bytes, bytes_mut, flags, out, set};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle;
use crate::memory::netvm_region;
use crate::pending::{Under, netvm_pending};

/// Return only when this and all earlier writes (or reads) of the port are done at this node: their memory may be used again.
pub const NETVM_FENCED: u32 = 1;
/// Act only after everything earlier from this port to that node has landed.
pub const NETVM_ORDERED: u32 = 2;
/// Act, and notify, even if an earlier operation to that node has failed.
pub const NETVM_REGARDLESS: u32 = 4;
/// Do not wait for room: -EAGAIN if there is none.
pub const NETVM_NOWAIT: u32 = 8;
/// More follows at once: the next operation without this flag, a wait or netvm_progress() calls the card for all of them. Writes that it
/// takes in one run leave together. Until then they may stand in the queue.
pub const NETVM_MORE: u32 = 16;

pub(crate) const WRITE_FLAGS: u32 =
    NETVM_FENCED | NETVM_ORDERED | NETVM_REGARDLESS | NETVM_NOWAIT | NETVM_MORE;
pub(crate) const READ_FLAGS: u32 = NETVM_FENCED | NETVM_ORDERED | NETVM_NOWAIT;
pub(crate) const BEGIN_FLAGS: u32 = NETVM_ORDERED | NETVM_REGARDLESS;

/// Flags of which all are known, and which do not say that a call is to wait and not to wait.
pub(crate) fn how(given: u32, known: u32) -> Result<u32> {
    let both = NETVM_FENCED | NETVM_NOWAIT;
    if given & both == both {
        return Err(Fault::argument(
            libc::EINVAL,
            "a fenced operation waits: NETVM_NOWAIT does not go with it",
        ));
    }
    flags(given, known)
}

/// A write as its flags say.
#[inline]
fn dress<'a>(mut write: Write<'a>, flags: u32, notification: u32) -> Write<'a> {
    if flags & NETVM_FENCED != 0 {
        write = write.fenced();
    }
    if flags & NETVM_ORDERED != 0 {
        write = write.ordered();
    }
    if flags & NETVM_REGARDLESS != 0 {
        write = write.regardless();
    }
    if flags & NETVM_MORE != 0 {
        write = write.more();
    }
    if notification != 0 {
        write = write.notify(notification);
    }
    write
}

#[inline]
fn post(write: Write<'_>, flags: u32, notification: u32) -> netvm::Result<OpId> {
    let write = dress(write, flags, notification);
    if flags & NETVM_NOWAIT == 0 {
        write.post()
    } else {
        write.try_post()
    }
}

fn post_read(mut read: Read<'_, RegionSlice>, flags: u32) -> netvm::Result<OpId> {
    if flags & NETVM_FENCED != 0 {
        read = read.fenced();
    }
    if flags & NETVM_ORDERED != 0 {
        read = read.ordered();
    }
    if flags & NETVM_NOWAIT == 0 {
        read.post()
    } else {
        read.try_post()
    }
}

/// Writes `len` bytes of the program to `offset` on. They are copied before the call returns. `notification`: what to signal when they,
/// and all that was written before, have landed; 0 for nothing. `op` gets the number by which a later failure is told; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_write(
    remote: *mut netvm_remote,
    offset: u64,
    from: *const c_void,
    len: usize,
    flags: u32,
    notification: u32,
    op: *mut u32,
) -> c_int {
    call(|| {
        let flags = how(flags, WRITE_FLAGS)?;
        // SAFETY: the header asks for such arguments, here and below.
        let from = unsafe { bytes(from, len, "from") }?;
        let remote = handle::get(remote)?;
        let posted = post(remote.write(offset, from), flags, notification)?;
        // SAFETY: as above.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// The same from a region of the port: transferred from where it is. It must not change before the write is done at this node, which
/// NETVM_FENCED or netvm_flush_writes() tells.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_write_region(
    remote: *mut netvm_remote,
    offset: u64,
    region: *mut netvm_region,
    region_offset: u64,
    len: usize,
    flags: u32,
    notification: u32,
    op: *mut u32,
) -> c_int {
    call(|| {
        let flags = how(flags, WRITE_FLAGS)?;
        let part = handle::get(region)?.part(region_offset, len)?;
        let remote = handle::get(remote)?;
        let posted = post(remote.write(offset, &part), flags, notification)?;
        // SAFETY: the header asks for such a place.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// Signals a notification and writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_notify(
    remote: *mut netvm_remote,
    notification: u32,
    flags: u32,
    op: *mut u32,
) -> c_int {
    call(|| {
        let flags = how(flags, WRITE_FLAGS)?;
        let remote = handle::get(remote)?;
        let write = remote.write(0, &[]).notify(notification);
        let posted = post(write, flags, notification)?;
        // SAFETY: the header asks for such a place.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// Reads `len` bytes from `offset` on into memory of the program, and waits for them. After an error they are undefined. The only flag is
/// NETVM_ORDERED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_read(
    remote: *mut netvm_remote,
    offset: u64,
    into: *mut c_void,
    len: usize,
    flags: u32,
) -> c_int {
    call(|| {
        let flags = how(flags, NETVM_ORDERED)?;
        // SAFETY: the header asks for such memory.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        let remote = handle::get(remote)?;
        let read = remote.read(offset, into);
        let read = if flags & NETVM_ORDERED == 0 {
            read
        } else {
            read.ordered()
        };
        Ok(read.call()?)
    })
}

/// Reads into a region of the port, and does not wait: the bytes are there when NETVM_FENCED or netvm_flush_reads() says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_read_region(
    remote: *mut netvm_remote,
    offset: u64,
    region: *mut netvm_region,
    region_offset: u64,
    len: usize,
    flags: u32,
    op: *mut u32,
) -> c_int {
    call(|| {
        let flags = how(flags, READ_FLAGS)?;
        let part = handle::get(region)?.part(region_offset, len)?;
        let remote = handle::get(remote)?;
        let posted = post_read(remote.read(offset, &part), flags)?;
        // SAFETY: the header asks for such a place.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// Begins a write of bytes of the program, which are copied before the call returns, and never waits: -EAGAIN if there is no room. The
/// pending operation ends when the write is done at this node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_write(
    remote: *mut netvm_remote,
    offset: u64,
    from: *const c_void,
    len: usize,
    flags: u32,
    notification: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = how(flags, BEGIN_FLAGS)?;
        // SAFETY: the header asks for such arguments, here and below.
        let from = unsafe { bytes(from, len, "from") }?;
        let remote = handle::get(remote)?;
        let begun = dress(remote.write(offset, from), flags, notification).begin()?;
        // SAFETY: as above.
        unsafe { place.set(Under::Plain(begun).handle(context)?) };
        Ok(())
    })
}

/// The same from a region of the port, which must not change before the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_write_region(
    remote: *mut netvm_remote,
    offset: u64,
    region: *mut netvm_region,
    region_offset: u64,
    len: usize,
    flags: u32,
    notification: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = how(flags, BEGIN_FLAGS)?;
        let part = handle::get(region)?.part(region_offset, len)?;
        let remote = handle::get(remote)?;
        let begun = dress(remote.write(offset, &part), flags, notification).begin()?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(Under::Plain(begun).handle(context)?) };
        Ok(())
    })
}

/// Begins a read into a region of the port, and never waits: -EAGAIN if there is no room. The pending operation ends when the bytes are
/// there. The only flag is NETVM_ORDERED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_read_region(
    remote: *mut netvm_remote,
    offset: u64,
    region: *mut netvm_region,
    region_offset: u64,
    len: usize,
    flags: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = how(flags, NETVM_ORDERED)?;
        let part = handle::get(region)?.part(region_offset, len)?;
        let remote = handle::get(remote)?;
        let read = remote.read(offset, &part);
        let read = if flags & NETVM_ORDERED == 0 {
            read
        } else {
            read.ordered()
        };
        // SAFETY: the header asks for such a place.
        unsafe { place.set(Under::Plain(read.begin()?).handle(context)?) };
        Ok(())
    })
}
