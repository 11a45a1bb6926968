//! The server: it maps the file, exports it, and has nothing more to do.

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};
use netvm::sync::{Home, Lock};
use netvm::{Access, Export, Modes, Node, Port, PortConfig};

use super::{BUCKET_BYTES, PORT, StoreError, TABLE, WRITERS};

/// A store that clients can reach. The fields are dropped in this order: the mapping goes last.
pub struct Server {
    _table: Export,
    _writers: Home,
    _port: Port,
    map: MmapRaw,
}

impl Server {
    /// Serves a file of so many buckets, which is made if it is not there.
    ///
    /// # Errors
    /// [`StoreError::File`], [`StoreError::Buckets`], [`StoreError::Netvm`].
    pub fn start(node: &Node, path: &Path, buckets: u64) -> Result<Self, StoreError> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.metadata()?.len() / BUCKET_BYTES {
            // A hole of a sparse file takes no disk, and reads as zeros: empty slots.
            0 => file.set_len(buckets.saturating_mul(BUCKET_BYTES))?,
            // The number of buckets says where a key is.
            has if has != buckets => return Err(StoreError::Buckets { has, buckets }),
            _ => {}
        }
        let map = MmapOptions::new().map_raw(&file)?;
        // Neighbours in a hash table have nothing to do with each other: the kernel is not to read ahead.
        map.advise(Advice::Random)?;

        let port = Port::open(node, PortConfig::number(PORT))?;
        let start = NonNull::new(map.as_mut_ptr()).expect("a mapping is somewhere");
        // SAFETY: the mapping outlives the region, by the order of the fields. This process makes no reference to its bytes.
        let memory = unsafe { port.adopt(start, map.len() as u64) }?;
        let access = Access::everyone().modes(Modes::READ | Modes::WRITE);
        let table = port.export(TABLE, &memory, .., access)?;
        let writers = Lock::create(&port, WRITERS, Access::everyone())?;
        Ok(Self {
            _table: table,
            _writers: writers,
            _port: port,
            map,
        })
    }

    /// Where the file is mapped.
    #[must_use]
    pub const fn map(&self) -> &MmapRaw {
        &self.map
    }

    /// Waits until all that clients have written is on the disk.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.map.flush()?)
    }
}
