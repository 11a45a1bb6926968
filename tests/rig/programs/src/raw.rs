//! The device without the library: calls as a process may make them that knows nothing, or means no good.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;

use netvm::abi::bar::port as block;
use netvm::abi::ioctl::{self, Adopt, Disown, Register, Wait};
use netvm::abi::{ABI_VERSION, WordIndex, port_area};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater};
use rustix::mm::{MapFlags, ProtFlags};

/// An open file of the device.
pub struct Device(OwnedFd);

/// A port area that is mapped, until it is dropped.
pub struct Area(Mapping);

/// A port's block of NIC memory that is mapped, until it is dropped.
pub struct Block(Mapping);

struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Device {
    /// Opens it; the file survives an `exec`.
    ///
    /// # Errors
    /// There is no such device.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        let device = Self(file.into());
        rustix::io::fcntl_setfd(&device.0, rustix::io::FdFlags::empty())?;
        Ok(device)
    }

    /// An open file that this process was left with by the program before it.
    ///
    /// # Safety
    /// The number is that of an open file that nothing else in this process uses.
    #[must_use]
    pub unsafe fn inherited(number: RawFd) -> Self {
        // SAFETY: as promised.
        Self(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn call<const NUMBER: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: only those below call it, with the argument of the number; all of it are integers.
        unsafe { rustix::ioctl::ioctl(&self.0, Updater::<NUMBER, T>::new(argument)) }
    }

    /// Makes it a port.
    ///
    /// # Errors
    /// What the driver says.
    pub fn register(&self, port: u16) -> Result<Register, Errno> {
        let mut register = Register {
            version: ABI_VERSION,
            port,
            eventfd: u32::MAX,
            ..Register::default()
        };
        self.call::<{ ioctl::REGISTER }, _>(&mut register)?;
        Ok(register)
    }

    /// Registers memory; the segment.
    ///
    /// # Errors
    /// What the driver says.
    pub fn adopt(&self, address: u64, len: u64) -> Result<u32, Errno> {
        let mut adopt = Adopt {
            address,
            len,
            ..Adopt::default()
        };
        self.call::<{ ioctl::ADOPT }, _>(&mut adopt)?;
        Ok(adopt.segment)
    }

    /// Lets go of a segment.
    ///
    /// # Errors
    /// What the driver says.
    pub fn disown(&self, segment: u32) -> Result<(), Errno> {
        let mut disown = Disown {
            segment,
            ..Disown::default()
        };
        self.call::<{ ioctl::DISOWN }, _>(&mut disown)
    }

    /// Waits for news, so many nanoseconds.
    ///
    /// # Errors
    /// What the driver says: also `TIMEDOUT` and `INTR`.
    pub fn wait(&self, timeout: u64) -> Result<(), Errno> {
        // What there is at the beginning is no news.
        let mut wait = Wait::default();
        loop {
            wait.timeout = timeout;
            let before = [wait.notifications, wait.errors, wait.state, wait.events];
            self.call::<{ ioctl::WAIT }, _>(&mut wait)?;
            if before != [0; 4] {
                return Ok(());
            }
        }
    }

    /// Maps its port area.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn area(&self, register: &Register) -> Result<Area, Errno> {
        self.map(register.area_offset, port_area::AREA_WORDS, ProtFlags::READ)
            .map(Area)
    }

    /// Maps its block of NIC memory.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn block(&self, register: &Register) -> Result<Block, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        self.map(register.block_offset, block::BLOCK_WORDS, access)
            .map(Block)
    }

    fn map(&self, offset: u64, words: u32, access: ProtFlags) -> Result<Mapping, Errno> {
        let bytes = words as usize * 4;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                &self.0,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Mapping { start, bytes })
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Area {
    /// Where it is mapped.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.start.as_ptr().expose_provenance() as u64
    }

    /// A word of it.
    #[must_use]
    pub fn load(&self, word: WordIndex) -> u32 {
        self.0.load(word.index())
    }
}

impl Block {
    /// Stores a word of it.
    pub fn store(&self, word: WordIndex, value: u32) {
        let at = self.0.word(word.index());
        // SAFETY: inside of the mapping, aligned; others read it, so it is written as volatile.
        unsafe { at.write_volatile(value) }
    }

    /// Loads a word of it.
    #[must_use]
    pub fn load(&self, word: WordIndex) -> u32 {
        self.0.load(word.index())
    }

    /// Stores what is there to each of its pages.
    pub fn touch(&self) {
        for word in (0..self.0.bytes / 4).step_by(1024) {
            let at = self.0.word(word);
            // SAFETY: as above.
            unsafe { at.write_volatile(at.read_volatile()) }
        }
    }
}

impl Mapping {
    fn word(&self, word: usize) -> NonNull<u32> {
        assert!(word * 4 + 4 <= self.bytes, "no such word");
        // SAFETY: inside of the mapping, aligned.
        unsafe { self.start.cast::<u32>().add(word) }
    }

    fn load(&self, word: usize) -> u32 {
        // SAFETY: a word of the mapping; others write it, so it is read as volatile.
        unsafe { self.word(word).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
