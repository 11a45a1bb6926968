//! Reading a message out of its sender's memory, which the sender has offered.
//!
//! It is one copy, by `process_vm_readv`: between processes of one user that may trace each other, in one namespace of process numbers.
//! That the number still means the sender is shown by a secret of its memory, which is read in the same call.

use libc::iovec;

use crate::address::Address;
use crate::buffer::Buffer;
use crate::fi::Errno;
use crate::info::IOV;
use crate::settings;
use crate::wire::{Part, Record};

/// What became of it.
pub(super) enum Pulled {
    /// All is here.
    All,
    /// It may not be done.
    Refused,
    /// The sender's memory, or the receiver's, is not there.
    Failed(Errno),
}

/// Reads as much of `parts` as `room` has room for.
pub(super) fn pull(address: &Address, peer: &Record, parts: &[Part], room: &Buffer) -> Pulled {
    static ALLOWED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if !*ALLOWED.get_or_init(settings::may_pull) || !address.is_near() {
        return Pulled::Refused;
    }
    let mut got = 0;
    while got < room.len() {
        match read(peer, parts, got, &room.part(got, room.len())) {
            Ok(0) => return Pulled::Failed(Errno::FAULT),
            Ok(read) => got += read,
            // After a beginning nothing may change.
            Err(errno) if got > 0 => return Pulled::Failed(errno),
            Err(Errno(libc::EFAULT)) => return Pulled::Failed(Errno::FAULT),
            Err(_) => return Pulled::Refused,
        }
    }
    Pulled::All
}

const NOWHERE: iovec = iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// Reads from `skip` on. Gives how many bytes came.
fn read(peer: &Record, parts: &[Part], mut skip: usize, room: &Buffer) -> Result<usize, Errno> {
    let mut proof = [0_u8; 8];
    let (mut here, mut there) = ([NOWHERE; IOV + 1], [NOWHERE; IOV + 1]);
    let (pieces, count) = room.iov();
    here[0] = iovec {
        iov_base: proof.as_mut_ptr().cast(),
        iov_len: proof.len(),
    };
    for (place, piece) in here.iter_mut().skip(1).zip(pieces.iter().take(count)) {
        *place = *piece;
    }
    let far = |start: u64, len: usize| iovec {
        iov_base: core::ptr::without_provenance_mut(start as usize),
        iov_len: len,
    };
    there[0] = far(peer.proof_at, proof.len());
    let mut want = room.len();
    let mut used = 1;
    for part in parts {
        let len = usize::try_from(part.len).map_err(|_| Errno::INVAL)?;
        let begin = skip.min(len);
        skip -= begin;
        let take = (len - begin).min(want);
        if take > 0
            && let Some(place) = there.get_mut(used)
        {
            *place = far(part.start.wrapping_add(begin as u64), take);
            used += 1;
            want -= take;
        }
    }
    let pid = libc::pid_t::try_from(peer.pid).map_err(|_| Errno::INVAL)?;
    // SAFETY: the local vectors name this function's own bytes and the program's buffer, which is there until the receive has ended;
    // the remote ones are checked by the kernel.
    let read = unsafe {
        libc::process_vm_readv(
            pid,
            here.as_ptr(),
            (count + 1) as libc::c_ulong,
            there.as_ptr(),
            used as libc::c_ulong,
            0,
        )
    };
    let Ok(read) = usize::try_from(read) else {
        let errno = std::io::Error::last_os_error().raw_os_error();
        // Not even the proof was there: it is another process.
        return Err(match errno.unwrap_or(libc::EIO) {
            libc::EFAULT => Errno::ACCES,
            errno => Errno(errno),
        });
    };
    if read < proof.len() || u64::from_ne_bytes(proof) != peer.proof {
        return Err(Errno::ACCES);
    }
    Ok(read - proof.len())
}
