//! Several pieces of memory as one operation.

use std::ffi::{c_int, c_void};

use netvm::{OpId, ReadVector, RegionSlice, RemoteSegment, WriteVector};

use crate::access::netvm_remote;
use crate::argument::{bytes, bytes_mut, out, set};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, Used};
use crate::memory::netvm_region;
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;
use crate::transfer::{
    BEGIN_FLAGS, NETVM_FENCED, NETVM_MORE, NETVM_NOWAIT, NETVM_ORDERED, NETVM_REGARDLESS, READ_FLAGS,
    WRITE_FLAGS, how,
};

/// A piece of a vector: remote memory, and the local memory that goes there or comes from there.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_piece {
    /// An import of the port. All pieces of a vector go to one node.
    pub remote: *mut netvm_remote,
    /// Where the piece begins in it.
    pub remote_offset: u64,
    /// A region of the port; NULL: bytes of the program.
    pub region: *mut netvm_region,
    /// Where the piece begins in the region.
    pub region_offset: u64,
    /// Bytes of the program, where there is no region.
    pub data: *mut c_void,
    /// How many bytes.
    pub len: usize,
}

/// The pieces of a call, with what their handles stand for.
struct Pieces<'a> {
    given: &'a [netvm_piece],
    remotes: Vec<Used<RemoteSegment>>,
    slices: Vec<Option<RegionSlice>>,
}

impl<'a> Pieces<'a> {
    /// # Safety
    /// `pieces` is NULL or has `count` pieces.
    unsafe fn new(pieces: *const netvm_piece, count: usize) -> Result<Self> {
        if count > 0 && pieces.is_null() {
            return Err(Fault::Null("pieces"));
        }
        if count > isize::MAX as usize / size_of::<netvm_piece>() || !pieces.is_aligned() {
            return Err(Fault::argument(libc::EINVAL, "that is no vector of pieces"));
        }
        let given = if count == 0 {
            &[][..]
        } else {
            // SAFETY: the caller's.
            unsafe { std::slice::from_raw_parts(pieces, count) }
        };
        let mut all = Self {
            given,
            remotes: Vec::with_capacity(count),
            slices: Vec::with_capacity(count),
        };
        for piece in given {
            all.remotes.push(handle::get(piece.remote)?);
            all.slices.push(if piece.region.is_null() {
                None
            } else {
                Some(handle::get(piece.region)?.part(piece.region_offset, piece.len)?)
            });
        }
        Ok(all)
    }

    fn iter(&self) -> impl Iterator<Item = (&netvm_piece, &RemoteSegment, Option<&RegionSlice>)> {
        let remotes = self.remotes.iter().map(|remote| &**remote);
        let slices = self.slices.iter().map(Option::as_ref);
        let parts = self.given.iter().zip(remotes).zip(slices);
        parts.map(|((piece, remote), slice)| (piece, remote, slice))
    }

    /// Whether all of them are regions', or none is.
    fn all_in_regions(&self) -> Result<bool> {
        let count = self.slices.iter().flatten().count();
        if count == self.slices.len() {
            return Ok(true);
        }
        if count == 0 {
            return Ok(false);
        }
        Err(Fault::argument(
            libc::EINVAL,
            "a read goes into regions, or into memory of the program: make a vector for each",
        ))
    }

    /// A write of them, as the flags say.
    ///
    /// # Safety
    /// Pieces without a region have bytes, which do not change during the call.
    unsafe fn write<'b>(
        &'b self,
        port: &'b netvm::Port,
        flags: u32,
        notification: u32,
    ) -> Result<WriteVector<'b>> {
        let mut vector = port.write_vector();
        for (piece, remote, slice) in self.iter() {
            vector = match slice {
                Some(slice) => vector.piece(remote, piece.remote_offset, slice),
                None => {
                    // SAFETY: the caller's.
                    let from = unsafe { bytes(piece.data, piece.len, "data") }?;
                    vector.piece(remote, piece.remote_offset, from)
                }
            };
        }
        if flags & NETVM_FENCED != 0 {
            vector = vector.fenced();
        }
        if flags & NETVM_ORDERED != 0 {
            vector = vector.ordered();
        }
        if flags & NETVM_REGARDLESS != 0 {
            vector = vector.regardless();
        }
        if flags & NETVM_MORE != 0 {
            vector = vector.more();
        }
        if notification != 0 {
            vector = vector.notify(notification);
        }
        Ok(vector)
    }

    /// A read of them into their regions, as the flags say.
    fn read<'b>(&'b self, port: &'b netvm::Port, flags: u32) -> ReadVector<'b, RegionSlice> {
        let mut vector = port.read_vector();
        for (piece, remote, slice) in self.iter() {
            if let Some(slice) = slice {
                vector = vector.piece(remote, piece.remote_offset, slice);
            }
        }
        if flags & NETVM_FENCED != 0 {
            vector = vector.fenced();
        }
        if flags & NETVM_ORDERED != 0 {
            vector = vector.ordered();
        }
        vector
    }

    /// Checks that no byte of the program is in two pieces.
    fn are_apart(&self) -> Result<()> {
        let places = self.given.iter().filter(|piece| piece.len > 0);
        let mut places: Vec<_> = places.map(|piece| (piece.data.addr(), piece.len)).collect();
        places.sort_unstable();
        let overlap =
            |pair: &[(usize, usize)]| matches!(pair, [(first, len), (second, _)] if second - first < *len);
        if places.windows(2).any(overlap) {
            return Err(Fault::argument(
                libc::EINVAL,
                "two pieces of a read overlap in memory of the program",
            ));
        }
        Ok(())
    }

    /// Reads them into memory of the program.
    ///
    /// # Safety
    /// They have such memory, which nothing else uses during the call.
    unsafe fn read_bytes(&self, port: &netvm::Port, flags: u32) -> Result<()> {
        self.are_apart()?;
        let mut vector = port.read_vector();
        for (piece, remote, _) in self.iter() {
            // SAFETY: the caller's; no two of them overlap.
            let into = unsafe { bytes_mut(piece.data, piece.len, "data") }?;
            vector = vector.piece(remote, piece.remote_offset, into);
        }
        if flags & NETVM_ORDERED != 0 {
            vector = vector.ordered();
        }
        Ok(vector.call()?)
    }
}

/// Writes `count` pieces as one operation: with one number, one end, one failure. Bytes of the program are copied before the call returns;
/// regions must not change before the write is done at this node. Every piece is checked before any is posted: one that is refused, or
/// with NETVM_NOWAIT a lack of room, keeps all back. With NETVM_ORDERED the pieces land one after the other. `notification`: what to signal
/// at the port of the last piece when all of them, and all that was written before, have landed; 0 for nothing. `op` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_write_vector(
    port: *mut netvm_port,
    pieces: *const netvm_piece,
    count: usize,
    flags: u32,
    notification: u32,
    op: *mut u32,
) -> c_int {
    call(|| {
        let flags = how(flags, WRITE_FLAGS)?;
        let port = handle::get(port)?;
        // SAFETY: the header asks for such arguments, here and below.
        let pieces = unsafe { Pieces::new(pieces, count) }?;
        // SAFETY: as above.
        let vector = unsafe { pieces.write(&port, flags, notification) }?;
        let posted = if flags & NETVM_NOWAIT == 0 {
            vector.post()?
        } else {
            vector.try_post()?
        };
        // SAFETY: as above.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// Reads `count` pieces as one operation. Into regions, it does not wait: the bytes are there when NETVM_FENCED or netvm_flush_reads() says
/// so. Into memory of the program, which must not overlap (-EINVAL), it waits for them, and its only flag is NETVM_ORDERED. The pieces of a
/// vector are all of one kind (-EINVAL). `op` may be NULL; it gets 0 where the call has waited.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_read_vector(
    port: *mut netvm_port,
    pieces: *const netvm_piece,
    count: usize,
    flags: u32,
    op: *mut u32,
) -> c_int {
    call(|| {
        let flags = how(flags, READ_FLAGS)?;
        let port = handle::get(port)?;
        // SAFETY: the header asks for such arguments, here and below.
        let pieces = unsafe { Pieces::new(pieces, count) }?;
        let posted = if !pieces.all_in_regions()? {
            let flags = how(flags, NETVM_ORDERED)?;
            // SAFETY: as above.
            unsafe { pieces.read_bytes(&port, flags) }?;
            OpId(0)
        } else if flags & NETVM_NOWAIT == 0 {
            pieces.read(&port, flags).post()?
        } else {
            pieces.read(&port, flags).try_post()?
        };
        // SAFETY: as above.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// Begins what netvm_write_vector() does, and never waits: -EAGAIN if there is no room for all of it, -EMSGSIZE if there never is. The pending
/// operation ends when the write of all pieces is done at this node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_write_vector(
    port: *mut netvm_port,
    pieces: *const netvm_piece,
    count: usize,
    flags: u32,
    notification: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = how(flags, BEGIN_FLAGS)?;
        let port = handle::get(port)?;
        // SAFETY: the header asks for such arguments, here and below.
        let pieces = unsafe { Pieces::new(pieces, count) }?;
        // SAFETY: as above.
        let begun = unsafe { pieces.write(&port, flags, notification) }?.begin()?;
        // SAFETY: as above.
        unsafe { place.set(Under::Plain(begun).handle(context)?) };
        Ok(())
    })
}

/// Begins a read of pieces into regions, and never waits, as netvm_begin_write_vector(). The pending operation ends when the bytes of all pieces
/// are there. The only flag is NETVM_ORDERED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_read_vector(
    port: *mut netvm_port,
    pieces: *const netvm_piece,
    count: usize,
    flags: u32,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let flags = how(flags, NETVM_ORDERED)?;
        let port = handle::get(port)?;
        // SAFETY: the header asks for such arguments, here and below.
        let pieces = unsafe { Pieces::new(pieces, count) }?;
        if !pieces.all_in_regions()? {
            return Err(Fault::argument(
                libc::EINVAL,
                "a read into memory that is no region waits: it cannot be begun",
            ));
        }
        let begun = pieces.read(&port, flags).begin()?;
        // SAFETY: as above.
        unsafe { place.set(Under::Plain(begun).handle(context)?) };
        Ok(())
    })
}
