//! A thin wrapper over userfaultfd(2): numbers and structures from `linux-raw-sys`, calls through `rustix`.
//!
//! Two facts of the kernel shape the pager. *Reading* an event is what acknowledges it: the thread in `madvise`, `munmap` or
//! `mremap` goes on as soon as the pager has read its message. And while such an event is unread, `UFFDIO_COPY` and
//! `UFFDIO_WRITEPROTECT` answer `EAGAIN` ([`Refusal::Again`]): the caller must let go of whatever keeps the pager from reading.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general::{
    _UFFDIO_API, _UFFDIO_CONTINUE, _UFFDIO_COPY, _UFFDIO_REGISTER, _UFFDIO_WRITEPROTECT, UFFD_API,
    UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP, UFFD_FEATURE_EVENT_REMAP,
    UFFD_FEATURE_EVENT_REMOVE, UFFD_FEATURE_EVENT_UNMAP, UFFD_FEATURE_MINOR_SHMEM,
    UFFD_FEATURE_MISSING_SHMEM, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
    UFFD_PAGEFAULT_FLAG_MINOR, UFFD_PAGEFAULT_FLAG_WP, UFFD_PAGEFAULT_FLAG_WRITE, UFFD_USER_MODE_ONLY,
    UFFDIO_COPY_MODE_WP, UFFDIO_REGISTER_MODE_MINOR, UFFDIO_REGISTER_MODE_MISSING, UFFDIO_REGISTER_MODE_WP,
    uffd_msg, uffdio_api, uffdio_continue, uffdio_copy, uffdio_range, uffdio_register, uffdio_writeprotect,
    uffdio_zeropage,
};
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_CONTINUE, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE,
    UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE,
};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, Updater, ioctl};
use rustix::mm::UserfaultfdFlags;
use zerocopy::{FromBytes, FromZeros as _, IntoBytes};

use super::PAGE_SIZE;
use crate::error::EmulatorError;

/// `UFFDIO_WRITEPROTECT_MODE_WP`; `linux-raw-sys` does not carry this enum's bits.
const WRITEPROTECT_MODE_WP: u64 = 1;
/// `UFFDIO_CONTINUE_MODE_DONTWAKE`; likewise.
const CONTINUE_MODE_DONTWAKE: u64 = 1;
/// `UFFDIO_CONTINUE_MODE_WP`, since Linux 6.4.
const CONTINUE_MODE_WP: u64 = 2;
/// `USERFAULTFD_IOC_NEW` on /dev/userfaultfd: `_IO(0xAA, 0)`.
const IOC_NEW: Opcode = 0xAA00;

/// What a userfaultfd is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The application's mapping: missing pages, pages that are there and that it does not show, write protection, and the events
    /// of mapping changes. So no page appears in it but by the pager.
    App,
    /// The alias that NIC and pager use: missing pages only, each of which is a broken promise.
    Alias,
}

impl Purpose {
    fn features(self) -> u64 {
        let features = match self {
            Self::App => {
                UFFD_FEATURE_PAGEFAULT_FLAG_WP
                    | UFFD_FEATURE_MISSING_SHMEM
                    | UFFD_FEATURE_MINOR_SHMEM
                    | UFFD_FEATURE_WP_HUGETLBFS_SHMEM
                    | UFFD_FEATURE_EVENT_REMOVE
                    | UFFD_FEATURE_EVENT_UNMAP
                    | UFFD_FEATURE_EVENT_REMAP
            }
            Self::Alias => UFFD_FEATURE_MISSING_SHMEM,
        };
        u64::from(features)
    }
}

/// One message from the kernel. Addresses are virtual addresses of this process, ranges are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread touched a page and sleeps until it is woken.
    Fault {
        /// The touched page's address.
        addr: usize,
        /// It wants to write.
        write: bool,
        /// Why it cannot go on.
        lack: Lack,
    },
    /// `madvise` is about to remove pages; the caller goes on now that this was read.
    Remove {
        /// First byte.
        start: usize,
        /// Behind the last byte.
        end: usize,
    },
    /// `munmap` has taken the range away.
    Unmap {
        /// First byte.
        start: usize,
        /// Behind the last byte.
        end: usize,
    },
    /// `mremap` has moved the range.
    Remap {
        /// Where it was.
        from: usize,
        /// Where it is.
        to: usize,
        /// How many bytes.
        len: usize,
    },
}

/// What a thread that faults is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// There is no such page in memory.
    Page,
    /// The page is in memory, and the mapping does not show it: an `madvise` took it from there.
    Mapping,
    /// The page is shown write-protected.
    Permission,
}

/// Why the kernel did not change a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An event is waiting to be read: read it, then try again.
    Again,
    /// The page is already there.
    Exists,
    /// The range is not (or no longer) registered here.
    Gone,
    /// Anything else.
    Other(Errno),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::Again,
            Errno::EXIST => Self::Exists,
            Errno::NOENT | Errno::INVAL => Self::Gone,
            other => Self::Other(other),
        }
    }
}

/// An open userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    kernel_faults: bool,
}

impl Uffd {
    /// Opens a userfaultfd, in the first way that the kernel allows: the system call (root, CAP_SYS_PTRACE, or
    /// `vm.unprivileged_userfaultfd`), /dev/userfaultfd (its permissions decide), or for faults of user code only (every user).
    ///
    /// # Errors
    /// [`EmulatorError::UserfaultfdRefused`] where none works, [`EmulatorError::UserfaultfdTooOld`] where features are missing.
    pub fn open(purpose: Purpose) -> Result<Self, EmulatorError> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let user_only = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: the new descriptor reaches no memory before a range is registered.
        let full = unsafe { rustix::mm::userfaultfd(flags) };
        let uffd = match full {
            Ok(fd) => Self {
                fd,
                kernel_faults: true,
            },
            Err(refused) => match Self::open_device(flags) {
                Ok(fd) => Self {
                    fd,
                    kernel_faults: true,
                },
                // SAFETY: as above.
                Err(_) => match unsafe { rustix::mm::userfaultfd(flags | user_only) } {
                    Ok(fd) => Self {
                        fd,
                        kernel_faults: false,
                    },
                    Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                        return Err(EmulatorError::UserfaultfdRefused(refused));
                    }
                    Err(errno) => {
                        return Err(EmulatorError::Os {
                            what: "userfaultfd",
                            errno,
                        });
                    }
                },
            },
        };
        uffd.handshake(purpose)?;
        Ok(uffd)
    }

    fn open_device(flags: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
        use rustix::fs::{Mode, OFlags};
        let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: USERFAULTFD_IOC_NEW takes the flags of userfaultfd(2) by value and returns a new descriptor.
        unsafe { ioctl(&device, NewDescriptor(flags)) }
    }

    fn handshake(&self, purpose: Purpose) -> Result<(), EmulatorError> {
        let wanted = purpose.features();
        let mut api = uffdio_api {
            api: u64::from(UFFD_API),
            features: wanted,
            ioctls: 0,
        };
        let need = (1u64 << _UFFDIO_API) | (1 << _UFFDIO_REGISTER);
        match self.update::<UFFDIO_API, _>(&mut api) {
            Ok(()) if api.ioctls & need == need && api.features & wanted == wanted => Ok(()),
            // With an unknown feature the kernel answers EINVAL and zeroes the structure, so ask a fresh one what there is.
            Ok(()) | Err(Errno::INVAL) => Err(EmulatorError::UserfaultfdTooOld {
                missing: wanted & !supported_features(),
            }),
            Err(errno) => Err(EmulatorError::Os {
                what: "userfaultfd handshake",
                errno,
            }),
        }
    }

    /// True where faults that the kernel itself takes (a `read(2)` into registered memory) are served too. An ordinary user's
    /// userfaultfd cannot: such a call fails with EFAULT there.
    #[must_use]
    pub fn serves_kernel_faults(&self) -> bool {
        self.kernel_faults
    }

    /// Registers a mapped range: from now on this descriptor hears of its missing pages, and for an application mapping of writes
    /// to protected pages.
    ///
    /// # Errors
    /// The kernel's refusal.
    ///
    /// # Safety
    /// The range must be a mapping of the caller's, and faults in it must be answered until it is unregistered.
    pub unsafe fn register(&self, start: usize, len: usize, purpose: Purpose) -> Result<(), Errno> {
        let mode = match purpose {
            Purpose::App => {
                UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP
            }
            Purpose::Alias => UFFDIO_REGISTER_MODE_MISSING,
        };
        let mut request = uffdio_register {
            range: range(start, len),
            mode: u64::from(mode),
            ioctls: 0,
        };
        self.update::<UFFDIO_REGISTER, _>(&mut request)?;
        let need = match purpose {
            Purpose::App => (1u64 << _UFFDIO_COPY) | (1 << _UFFDIO_CONTINUE) | (1 << _UFFDIO_WRITEPROTECT),
            Purpose::Alias => 1 << _UFFDIO_COPY,
        };
        if request.ioctls & need == need {
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }

    /// Takes a range back from this descriptor; threads that sleep in it wake and fault natively.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: UFFDIO_UNREGISTER reads a uffdio_range.
        unsafe {
            ioctl(
                &self.fd,
                Setter::<{ UFFDIO_UNREGISTER as Opcode }, _>::new(range(start, len)),
            )
        }
    }

    /// Puts pages with the given contents at `dst` and the addresses after it, write-protected if asked, and wakes
    /// threads that wait for them. Returns how many; fewer than given if one of them could not be put there.
    ///
    /// # Errors
    /// See [`Refusal`], for the first page.
    pub fn copy_pages(
        &self,
        dst: usize,
        contents: &[[u8; PAGE_SIZE]],
        protect: bool,
    ) -> Result<usize, Refusal> {
        let mode = if protect {
            u64::from(UFFDIO_COPY_MODE_WP)
        } else {
            0
        };
        let src = contents.as_ptr().expose_provenance();
        let mut request = uffdio_copy {
            dst: dst as u64,
            src: src as u64,
            len: size_of_val(contents) as u64,
            mode,
            copy: 0,
        };
        match self.update::<UFFDIO_COPY, _>(&mut request) {
            Ok(()) => Ok(contents.len()),
            // `copy` has the bytes that were put there, or again the error.
            Err(errno) => match usize::try_from(request.copy) {
                Ok(bytes) if bytes >= PAGE_SIZE => Ok(bytes / PAGE_SIZE),
                _ => Err(Refusal::from(errno)),
            },
        }
    }

    /// Shows a page at `addr` that is in memory already. Wakes no thread. Returns whether it is write-protected there: kernels
    /// before 6.4 cannot do that in one step, and then it is not.
    ///
    /// # Errors
    /// See [`Refusal`]; [`Errno::FAULT`] where no such page is in memory.
    pub fn show_page(&self, addr: usize) -> Result<bool, Refusal> {
        let show = |mode| {
            let mut request = uffdio_continue {
                range: range(addr, PAGE_SIZE),
                mode,
                mapped: 0,
            };
            self.update::<UFFDIO_CONTINUE, _>(&mut request)
        };
        match show(CONTINUE_MODE_DONTWAKE | CONTINUE_MODE_WP) {
            Err(Errno::INVAL) => show(CONTINUE_MODE_DONTWAKE).map(|()| false),
            shown => shown.map(|()| true),
        }
        .map_err(Refusal::from)
    }

    /// Puts a page of zeros at `dst` and wakes the threads that wait for it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn zero_page(&self, dst: usize) -> Result<(), Refusal> {
        let mut request = uffdio_zeropage {
            range: range(dst, PAGE_SIZE),
            mode: 0,
            zeropage: 0,
        };
        self.update::<UFFDIO_ZEROPAGE, _>(&mut request)
            .map_err(Refusal::from)
    }

    /// Sets or lifts write protection of `pages` pages from `start` on. When setting returns, no thread is writing to them any more;
    /// lifting wakes the threads that wait to write.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn write_protect(&self, start: usize, pages: usize, protect: bool) -> Result<(), Refusal> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        let mut request = uffdio_writeprotect {
            range: range(start, pages * PAGE_SIZE),
            mode,
        };
        self.update::<UFFDIO_WRITEPROTECT, _>(&mut request)
            .map_err(Refusal::from)
    }

    /// Wakes the threads that sleep on the page, to try again.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn wake(&self, start: usize) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE reads a uffdio_range.
        unsafe {
            ioctl(
                &self.fd,
                Setter::<{ UFFDIO_WAKE as Opcode }, _>::new(range(start, PAGE_SIZE)),
            )
        }
    }

    /// Reads the next message, without waiting. One at a time: reading it lets an `madvise` go on, so it must be dealt with at
    /// once.
    ///
    /// # Errors
    /// The kernel's refusal; nothing to read is not an error.
    pub fn read_event(&self) -> Result<Option<Event>, Errno> {
        const SIZE: usize = size_of::<Message>();
        let mut message = Message::new_zeroed();
        loop {
            match rustix::io::read(&self.fd, message.as_mut_bytes()) {
                Ok(SIZE) => {}
                Ok(_) | Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            if let Some(event) = message.event() {
                return Ok(Some(event));
            }
        }
    }

    fn update<const OPCODE: Opcode, T>(&self, request: &mut T) -> Result<(), Errno> {
        // SAFETY: every caller in this file pairs the opcode with the structure that its definition names.
        unsafe { ioctl(&self.fd, Updater::<OPCODE, T>::new(request)) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// USERFAULTFD_IOC_NEW: flags by value, a descriptor back.
struct NewDescriptor(UserfaultfdFlags);

// SAFETY: the number takes its argument by value and returns a descriptor that belongs to the caller.
unsafe impl Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        IOC_NEW
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        core::ptr::without_provenance_mut(self.0.bits() as usize)
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut core::ffi::c_void) -> rustix::io::Result<OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: a successful call returns a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

/// `uffd_msg`. Its arguments are a union there: addresses, lengths and flags of 64 bits, by the event.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == size_of::<uffd_msg>());

fn range(start: usize, len: usize) -> uffdio_range {
    uffdio_range {
        start: start as u64,
        len: len as u64,
    }
}

/// The features of this kernel, asked of a descriptor opened for the question; 0 where even that fails.
fn supported_features() -> u64 {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
    // SAFETY: nothing is registered with this descriptor.
    let Ok(fd) = (unsafe { rustix::mm::userfaultfd(flags) }) else {
        return 0;
    };
    let probe = Uffd {
        fd,
        kernel_faults: false,
    };
    let mut api = uffdio_api {
        api: u64::from(UFFD_API),
        features: 0,
        ioctls: 0,
    };
    match probe.update::<UFFDIO_API, _>(&mut api) {
        Ok(()) => api.features,
        Err(_) => 0,
    }
}

impl Message {
    /// What it says; `None`: nothing that this process asked for.
    fn event(&self) -> Option<Event> {
        let [first, second, third] = self.arguments.map(|word| word as usize);
        Some(match u32::from(self.event) {
            UFFD_EVENT_PAGEFAULT => {
                let flags = self.arguments[0];
                let has = |flag| flags & u64::from(flag) != 0;
                Event::Fault {
                    addr: second & !(PAGE_SIZE - 1),
                    write: has(UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP),
                    lack: if has(UFFD_PAGEFAULT_FLAG_WP) {
                        Lack::Permission
                    } else if has(UFFD_PAGEFAULT_FLAG_MINOR) {
                        Lack::Mapping
                    } else {
                        Lack::Page
                    },
                }
            }
            UFFD_EVENT_REMOVE => Event::Remove {
                start: first,
                end: second,
            },
            UFFD_EVENT_UNMAP => Event::Unmap {
                start: first,
                end: second,
            },
            UFFD_EVENT_REMAP => Event::Remap {
                from: first,
                to: second,
                len: third,
            },
            _ => return None,
        })
    }
}
