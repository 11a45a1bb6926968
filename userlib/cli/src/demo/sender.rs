//! Node 0: holds the file in exported memory, writes it MiB by MiB, and reads it back.

use netvm::{NodeId, Port, Region, RegionSlice, RemoteSegment};

use super::receiver::ARRIVED;
use super::source::{MIB, Source};

/// Memory of node 1, as node 0 reaches it.
pub(super) trait Target: Sync {
    /// Posts a write from there, and the notification after it.
    ///
    /// # Errors
    /// What the library says.
    fn write(&self, offset: u64, from: &Region, at: u64, len: u64) -> netvm::Result<()>;

    /// Reads into there; the bytes have come when it returns.
    ///
    /// # Errors
    /// What the library says.
    fn read(&self, offset: u64, into: RegionSlice) -> netvm::Result<()>;
}

impl Target for RemoteSegment {
    fn write(&self, offset: u64, from: &Region, at: u64, len: u64) -> netvm::Result<()> {
        let slice = from.slice(at..at + len)?;
        Self::write(self, offset, slice).notify(ARRIVED).post().map(drop)
    }

    fn read(&self, offset: u64, into: RegionSlice) -> netvm::Result<()> {
        Self::read(self, offset, into).fenced().post().map(drop)
    }
}

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
    remote: &dyn Target,
    to: NodeId,
    bytes: u64,
    sent: &mut dyn FnMut(u64),
) -> netvm::Result<()> {
    for offset in (0..bytes).step_by(MIB as usize) {
        remote.write(offset, memory, offset, MIB)?;
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
    remote: &dyn Target,
    bytes: u64,
    read: &mut dyn FnMut(u64),
) -> netvm::Result<blake3::Hash> {
    let landing = port.alloc(MIB)?;
    let mut digest = blake3::Hasher::new();
    let mut buffer = vec![0; MIB as usize];
    for offset in (0..bytes).step_by(MIB as usize) {
        remote.read(offset, landing.whole())?;
        landing.read_into(0, &mut buffer)?;
        digest.update(&buffer);
        read(offset / MIB + 1);
    }
    Ok(digest.finalize())
}
