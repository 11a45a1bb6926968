//! The card's device without the library: calls with any number and any argument, mappings of any place.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use netvm::abi::ioctl::{MapRegion, Register, mmap_offset};
use netvm::device;

/// Bytes for any argument, and for what a driver might write behind it.
pub(crate) const ROOM: usize = 512;

/// An argument of a call.
#[repr(C, align(8))]
pub(crate) struct Argument(pub(crate) [u8; ROOM]);

/// An open file of the device.
pub(crate) struct Device(File);

impl Device {
    pub(crate) fn open() -> io::Result<Self> {
        File::options()
            .read(true)
            .write(true)
            .open(device::FIRST)
            .map(Self)
    }

    /// Any call. Whether it was refused.
    pub(crate) fn call(&self, number: u32, argument: &mut Argument) -> bool {
        self.call_at(number, (&raw mut argument.0).cast())
    }

    /// Any call, with its argument anywhere.
    pub(crate) fn call_at(&self, number: u32, argument: *mut c_void) -> bool {
        // SAFETY: the driver writes at most the bytes that the number says (14 bits of it), and these are ours, or not
        // mapped; a place that is not mapped is refused.
        unsafe { libc::ioctl(self.0.as_raw_fd(), u64::from(number), argument) != 0 }
    }

    /// A mapping of the device at any place; nothing if it is refused.
    pub(crate) fn map(&self, offset: u64, len: usize, access: i32, flags: i32) -> Option<Words> {
        let offset = i64::from_ne_bytes(offset.to_ne_bytes());
        // SAFETY: at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), len, access, flags, self.0.as_raw_fd(), offset) };
        (start != libc::MAP_FAILED).then_some(Words {
            start: start.cast(),
            len,
        })
    }

    /// The port's words in NIC memory, its area, and the card's status.
    pub(crate) fn regions(&self) -> Option<[Words; 3]> {
        const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
        let map = |region, len, access| self.map(mmap_offset(region), len, access, libc::MAP_SHARED);
        Some([
            map(MapRegion::Block, 32_768, BOTH)?,
            map(MapRegion::Area, 16_384, libc::PROT_READ)?,
            map(MapRegion::Status, 4096, libc::PROT_READ)?,
        ])
    }
}

/// A request for any free port.
pub(crate) fn register() -> Register {
    Register {
        version: netvm::abi::ABI_VERSION,
        port: netvm::abi::ioctl::ANY_PORT,
        eventfd: u32::MAX,
        ..Register::default()
    }
}

/// The bytes of an argument, and back.
pub(crate) fn with<A: Copy>(value: A) -> Argument {
    let mut argument = Argument([0; ROOM]);
    assert!(size_of::<A>() <= ROOM && align_of::<A>() <= 8);
    // SAFETY: there is room, and any integers are bytes.
    unsafe { (&raw mut argument.0).cast::<A>().write(value) };
    argument
}

/// As [`with`], the other way.
pub(crate) fn of<A: Copy>(argument: &Argument) -> A {
    assert!(size_of::<A>() <= ROOM && align_of::<A>() <= 8);
    // SAFETY: `size_of::<A>()` bytes are there, aligned; arguments are integers, which any bytes are.
    unsafe { (&raw const argument.0).cast::<A>().read() }
}

/// Mapped words.
pub(crate) struct Words {
    start: *mut u32,
    len: usize,
}

impl Words {
    pub(crate) fn count(&self) -> u64 {
        self.len as u64 / 4
    }

    fn word(&self, at: u64) -> Option<&AtomicU32> {
        if at >= self.count() {
            return None;
        }
        // SAFETY: inside of the mapping, which lasts as long as `self`; other writers are allowed, because these are
        // atomics.
        Some(unsafe { &*self.start.add(at as usize).cast::<AtomicU32>() })
    }

    pub(crate) fn store(&self, at: u64, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    pub(crate) fn load(&self, at: u64) -> u32 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Any advice, or another protection, for all of it. Whether it was refused.
    pub(crate) fn advise(&self, advice: i32) -> bool {
        // SAFETY: the range is our own mapping; nothing else relies on what it holds.
        unsafe { libc::madvise(self.start.cast(), self.len, advice) != 0 }
    }

    /// Asks for the right to write. Whether it was refused.
    pub(crate) fn make_writable(&self) -> bool {
        // SAFETY: as above.
        unsafe { libc::mprotect(self.start.cast(), self.len, libc::PROT_READ | libc::PROT_WRITE) != 0 }
    }

    /// Asks for twice the room. Whether it was refused; where it was not, the mapping has moved.
    pub(crate) fn grow(&mut self) -> bool {
        // SAFETY: as above; a process that maps more than a device has dies of the access, which is allowed here.
        let start = unsafe { libc::mremap(self.start.cast(), self.len, 2 * self.len, libc::MREMAP_MAYMOVE) };
        if start == libc::MAP_FAILED {
            return true;
        }
        self.start = start.cast();
        self.len *= 2;
        false
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; no reference to it is left.
        let _ = unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
