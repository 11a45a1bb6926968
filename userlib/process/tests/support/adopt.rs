//! Memory of many kinds, handed over to a port, and another node that uses it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use netvm::{Access, Error, Export, NodeId, Port, PortConfig, PortId, Region, RemoteSegment, Status};
use netvm_process::SoftNode;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const PAGE: usize = 4096;

/// Two linked nodes, and a port on each.
pub(crate) struct Pair {
    pub(crate) target: Port,
    pub(crate) sender: Port,
    pub(crate) target_id: NodeId,
    pub(crate) nodes: [SoftNode; 2],
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::to(SoftNode::builder().start().unwrap())
    }

    /// The same with this target.
    pub(crate) fn to(target: SoftNode) -> Self {
        let sender = SoftNode::builder().start().unwrap();
        let target_id = sender
            .connect(&format!("#{}", target.number()), PATIENCE)
            .unwrap();
        Self {
            target: Port::open(&target.node(), PortConfig::number(7)).unwrap(),
            sender: Port::open(&sender.node(), PortConfig::default()).unwrap(),
            target_id,
            nodes: [target, sender],
        }
    }

    /// Writes, reads back, and adds to a word: all of `what` as another node sees it.
    pub(crate) fn try_all(&self, remote: &RemoteSegment, len: u64) -> Result<(), String> {
        let sent: Vec<u8> = (0..len).map(|at| (at * 7 + 3) as u8).collect();
        let text = |error: netvm::Error| format!("{error:?}");
        remote.write(0, &sent[..]).post().map_err(text)?;
        self.sender.flush_remote(self.target_id).map_err(text)?;
        let mut back = vec![0; sent.len()];
        remote.read(0, &mut back[..]).call().map_err(text)?;
        assert_eq!(sent, back);
        let word = remote.word64(8).map_err(text)?;
        let before = word.fetch_add(5).map_err(text)?;
        assert_eq!(before.to_le_bytes(), sent[8..16]);
        Ok(())
    }

    /// Adopts memory, exports it, and imports it at the other node.
    pub(crate) fn lend(&self, name: &str, start: *mut u8, len: u64) -> Result<Lent, String> {
        // SAFETY: the memory is the caller's own, and reached through raw pointers while this lives.
        let region = unsafe { self.target.adopt(NonNull::new(start).unwrap(), len) };
        let region = region.map_err(|error| format!("adopt: {error:?}"))?;
        let export = self.target.export(name, &region, .., Access::everyone()).unwrap();
        let remote = self
            .sender
            .import(self.target_id, PortId(7), name, PATIENCE)
            .unwrap();
        Ok(Lent {
            remote,
            _export: export,
            _region: region,
        })
    }

    /// Adopts memory, and does everything to it from the other node.
    pub(crate) fn with(&self, name: &str, start: *mut u8, len: u64) -> Result<(), String> {
        self.try_all(&self.lend(name, start, len)?.remote, len)
    }

    /// Writes, and returns when the bytes have landed.
    pub(crate) fn write(&self, remote: &RemoteSegment, at: u64, bytes: &[u8]) -> netvm::Result<()> {
        remote.write(at, bytes).post()?;
        self.sender.flush_remote(self.target_id)
    }
}

/// Memory that another node uses.
pub(crate) struct Lent {
    pub(crate) remote: RemoteSegment,
    _export: Export,
    _region: Region,
}

/// What another node reads.
pub(crate) fn read<const N: usize>(remote: &RemoteSegment, at: u64) -> netvm::Result<[u8; N]> {
    let mut bytes = [0; N];
    remote.read(at, &mut bytes[..]).call()?;
    Ok(bytes)
}

/// Why an operation failed.
pub(crate) fn failed<T: std::fmt::Debug>(result: netvm::Result<T>) -> Status {
    match result {
        Err(Error::Failed(failure)) => failure.status,
        other => panic!("{other:?} is no failure of an operation"),
    }
}

pub(crate) fn map(len: usize, prot: i32, flags: i32, file: Option<&OwnedFd>) -> *mut u8 {
    let file = file.map_or(-1, |file| file.as_raw_fd());
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

pub(crate) const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

pub(crate) fn memfd(len: usize) -> OwnedFd {
    // SAFETY: the descriptor is new.
    let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"t".as_ptr(), libc::MFD_CLOEXEC)) };
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    file
}
