//! Node 0: holds the file in exported memory, writes it MiB by MiB, and reads it back.

use netvm::{NodeId, Port, Region, RemoteSegment};

use super::receiver::ARRIVED;
use super::source::{MIB, Source};

/// Brings the file into exported memory and digests it on the way. The system may not read a file into exported
/// memory by itself (`EFAULT` for an ordinary user), so it passes through ordinary memory.
///
/// # Errors
/// What the library says.
pub(crate) fn load(source: &Source, memory: &Region, bytes: u64) -> netvm::Result<blake3::Hash> {
    let mut digest = blake3::Hasher::new();
    let mut buffer = vec![0; MIB as usize];
    for offset in (0..bytes).step_by(MIB as usize) {
        source.fill(offset, &mut buffer);
        memory.write_from(offset, &buffer)?;
        digest.update(&buffer);
    }
    Ok(digest.finalize())
}

/// Writes everything, a notification for each MiB, and returns when all of it has landed.
///
/// # Errors
/// What the library says.
pub(crate) fn send(
    port: &Port,
    memory: &Region,
    remote: &RemoteSegment,
    to: NodeId,
    bytes: u64,
    sent: &mut dyn FnMut(u64),
) -> netvm::Result<()> {
    for offset in (0..bytes).step_by(MIB as usize) {
        remote
            .write(offset, memory.slice(offset..offset + MIB)?)
            .notify(ARRIVED)
            .post()?;
        sent(offset / MIB + 1);
    }
    port.flush_remote(to)
}

/// Reads everything back through NetVM and digests it.
///
/// # Errors
/// What the library says.
pub(crate) fn read_back(
    port: &Port,
    remote: &RemoteSegment,
    bytes: u64,
    read: &mut dyn FnMut(u64),
) -> netvm::Result<blake3::Hash> {
    let landing = port.alloc(MIB)?;
    let mut digest = blake3::Hasher::new();
    let mut buffer = vec![0; MIB as usize];
    for offset in (0..bytes).step_by(MIB as usize) {
        remote.read(offset, landing.whole()).fenced().post()?;
        landing.read_into(0, &mut buffer)?;
        digest.update(&buffer);
        read(offset / MIB + 1);
    }
    Ok(digest.finalize())
}
