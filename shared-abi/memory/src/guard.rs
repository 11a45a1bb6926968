//! Copies from and to memory that may not be there.
//!
//! A program may hand over memory and then unmap it, take its write permission, or truncate the file behind it. A copy that
//! meets this must end in an error, not in a signal that ends the process. The copies of this module are a few instructions
//! in one place of the program. A handler for SIGSEGV and SIGBUS looks whether a signal was raised by one of them; then the copy returns
//! the signal's number. Every other signal goes to the handler that was there before, so Rust's message for an overflown
//! stack, and a program's own handlers, work as they did.
//!
//! [`install`] puts the handler in place, once a process, for good. It is called where a port gets memory: memory that a program
//! hands over may be gone at any time, and other memory while a worker still has work for it in hand. A handler that a program installs
//! later without calling the earlier one takes the guard away.
//!
//! The handler uses no lock and no memory but the interrupted thread's registers, so threads may fault at the same time.

use std::io;

/// Why a copy could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGSEGV: nothing is mapped there, or not for this.
    Segment,
    /// SIGBUS: there is no memory behind the mapping, as beyond the end of a truncated file.
    Bus,
}

/// Puts the handler in place.
///
/// # Errors
/// The kernel's refusal; [`io::ErrorKind::Unsupported`] on a processor that this module does not know.
pub fn install() -> io::Result<()> {
    imp::install()
}

/// Copies `len` bytes. An aligned copy of 1, 2, 4 or 8 bytes is a single load and a single store; others are torn anywhere. On a fault some of
/// the bytes may have been copied.
///
/// # Errors
/// The fault.
///
/// # Safety
/// [`install`] was called, unless both ranges are mapped. What lies in them is memory that others may change, and no reference to
/// it exists. The two ranges do not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { imp::copy(from, to, len) }
}

/// Reads a byte, so that its page is there.
///
/// # Errors
/// The fault.
///
/// # Safety
/// As [`copy`].
pub unsafe fn touch_to_read(at: *const u8) -> Result<(), Fault> {
    let mut byte = 0u8;
    // SAFETY: the caller's promise; `byte` is this function's own.
    unsafe { copy(at, &raw mut byte, 1) }
}

/// Writes a byte without changing it, so that its page is there and the process' own.
///
/// # Errors
/// The fault.
///
/// # Safety
/// As [`copy`].
pub unsafe fn touch_to_write(at: *mut u8) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { imp::touch(at) }
}

/// Stores `new` if the aligned value of 1, 2, 4 or 8 bytes is `expected`; gives the value that was there. Values are little-endian, in
/// the lowest bytes; what stands above is ignored. Of any other length nothing is changed, and the answer is not `expected`.
///
/// # Errors
/// As [`compare_swap_4`].
///
/// # Safety
/// As [`copy`].
pub unsafe fn compare_swap(at: *mut u8, len: usize, expected: u64, new: u64) -> Result<u64, Fault> {
    macro_rules! by {
        ($swap:path, $word:ty) => {{
            let mut value = (expected as $word).to_le();
            // SAFETY: the caller's promise; `value` is this function's own.
            unsafe { $swap(at.cast(), (new as $word).to_le(), &mut value) }?;
            Ok(<$word>::from_le(value).into())
        }};
    }
    match len {
        1 => by!(imp::compare_swap_1, u8),
        2 => by!(imp::compare_swap_2, u16),
        4 => by!(imp::compare_swap_4, u32),
        8 => by!(imp::compare_swap_8, u64),
        _ => Ok(!expected),
    }
}

/// Stores `new` if the aligned word is `expected`; gives the old value.
///
/// # Errors
/// The fault. A word that may only be read is one, whatever its value.
///
/// # Safety
/// As [`copy`].
pub unsafe fn compare_swap_4(at: *mut u32, mut expected: u32, new: u32) -> Result<u32, Fault> {
    // SAFETY: the caller's promise; `expected` is this function's own.
    unsafe { imp::compare_swap_4(at, new, &mut expected) }.map(|()| expected)
}

/// The same for a word of 64 bits.
///
/// # Errors
/// As [`compare_swap_4`].
///
/// # Safety
/// As [`copy`].
pub unsafe fn compare_swap_8(at: *mut u64, mut expected: u64, new: u64) -> Result<u64, Fault> {
    // SAFETY: the caller's promise; `expected` is this function's own.
    unsafe { imp::compare_swap_8(at, new, &mut expected) }.map(|()| expected)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod imp {
    use super::Fault;
    use std::io;
    use std::sync::{Mutex, OnceLock, PoisonError};

    // The copies take (to, from, len) as the ABI passes them, the swaps (at, new, the value before). Each uses the stack for
    // nothing but the return address, and returns 0 or the number of a signal. So the handler can leave any of them by going
    // to `netvm_guard_end`, which only returns.
    core::arch::global_asm!(
        ".pushsection .text.netvm_guard,\"ax\",@progbits",
        ".p2align 4",
        ".hidden netvm_guard_begin, netvm_guard_bytes, netvm_guard_1, netvm_guard_2, netvm_guard_4, netvm_guard_8",
        ".hidden netvm_guard_touch, netvm_guard_swap_1, netvm_guard_swap_2, netvm_guard_swap_4, netvm_guard_swap_8",
        ".hidden netvm_guard_end",
        ".globl netvm_guard_begin, netvm_guard_bytes, netvm_guard_1, netvm_guard_2, netvm_guard_4, netvm_guard_8",
        ".globl netvm_guard_touch, netvm_guard_swap_1, netvm_guard_swap_2, netvm_guard_swap_4, netvm_guard_swap_8",
        ".globl netvm_guard_end",
        "netvm_guard_begin:",
        "netvm_guard_bytes:",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "netvm_guard_1:",
        "mov cl, [rsi]",
        "mov [rdi], cl",
        "xor eax, eax",
        "ret",
        "netvm_guard_2:",
        "mov cx, [rsi]",
        "mov [rdi], cx",
        "xor eax, eax",
        "ret",
        "netvm_guard_4:",
        "mov ecx, [rsi]",
        "mov [rdi], ecx",
        "xor eax, eax",
        "ret",
        "netvm_guard_8:",
        "mov rcx, [rsi]",
        "mov [rdi], rcx",
        "xor eax, eax",
        "ret",
        "netvm_guard_touch:",
        "lock or byte ptr [rdi], 0",
        "xor eax, eax",
        "ret",
        "netvm_guard_swap_1:",
        "mov al, [rdx]",
        "lock cmpxchg [rdi], sil",
        "mov [rdx], al",
        "xor eax, eax",
        "ret",
        "netvm_guard_swap_2:",
        "mov ax, [rdx]",
        "lock cmpxchg [rdi], si",
        "mov [rdx], ax",
        "xor eax, eax",
        "ret",
        "netvm_guard_swap_4:",
        "mov eax, [rdx]",
        "lock cmpxchg [rdi], esi",
        "mov [rdx], eax",
        "xor eax, eax",
        "ret",
        "netvm_guard_swap_8:",
        "mov rax, [rdx]",
        "lock cmpxchg [rdi], rsi",
        "mov [rdx], rax",
        "xor eax, eax",
        "ret",
        "netvm_guard_end:",
        "ret",
        ".popsection",
    );

    type Copy = unsafe extern "sysv64" fn(*mut u8, *const u8, usize) -> i32;

    unsafe extern "sysv64" {
        fn netvm_guard_begin();
        fn netvm_guard_bytes(to: *mut u8, from: *const u8, len: usize) -> i32;
        fn netvm_guard_1(to: *mut u8, from: *const u8, len: usize) -> i32;
        fn netvm_guard_2(to: *mut u8, from: *const u8, len: usize) -> i32;
        fn netvm_guard_4(to: *mut u8, from: *const u8, len: usize) -> i32;
        fn netvm_guard_8(to: *mut u8, from: *const u8, len: usize) -> i32;
        fn netvm_guard_touch(at: *mut u8) -> i32;
        fn netvm_guard_swap_1(at: *mut u8, new: u8, value: *mut u8) -> i32;
        fn netvm_guard_swap_2(at: *mut u16, new: u16, value: *mut u16) -> i32;
        fn netvm_guard_swap_4(at: *mut u32, new: u32, value: *mut u32) -> i32;
        fn netvm_guard_swap_8(at: *mut u64, new: u64, value: *mut u64) -> i32;
        fn netvm_guard_end();
    }

    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
        let aligned =
            |to_what: usize| from.addr().is_multiple_of(to_what) && to.addr().is_multiple_of(to_what);
        let copy: Copy = match len {
            1 => netvm_guard_1,
            2 if aligned(2) => netvm_guard_2,
            4 if aligned(4) => netvm_guard_4,
            8 if aligned(8) => netvm_guard_8,
            _ => netvm_guard_bytes,
        };
        // SAFETY: the instructions touch the two ranges alone; what is not mapped there ends in the handler.
        told(unsafe { copy(to, from, len) })
    }

    pub(super) unsafe fn touch(at: *mut u8) -> Result<(), Fault> {
        // SAFETY: as above; the byte keeps its value.
        told(unsafe { netvm_guard_touch(at) })
    }

    /// `value` is what is expected, and then what was there.
    pub(super) unsafe fn compare_swap_1(at: *mut u8, new: u8, value: &mut u8) -> Result<(), Fault> {
        // SAFETY: as above.
        told(unsafe { netvm_guard_swap_1(at, new, value) })
    }

    /// The same for 16 bits.
    pub(super) unsafe fn compare_swap_2(at: *mut u16, new: u16, value: &mut u16) -> Result<(), Fault> {
        // SAFETY: as above.
        told(unsafe { netvm_guard_swap_2(at, new, value) })
    }

    /// The same for 32 bits.
    pub(super) unsafe fn compare_swap_4(at: *mut u32, new: u32, value: &mut u32) -> Result<(), Fault> {
        // SAFETY: as above.
        told(unsafe { netvm_guard_swap_4(at, new, value) })
    }

    /// The same for 64 bits.
    pub(super) unsafe fn compare_swap_8(at: *mut u64, new: u64, value: &mut u64) -> Result<(), Fault> {
        // SAFETY: as above.
        told(unsafe { netvm_guard_swap_8(at, new, value) })
    }

    const fn told(signal: i32) -> Result<(), Fault> {
        match signal {
            0 => Ok(()),
            libc::SIGBUS => Err(Fault::Bus),
            _ => Err(Fault::Segment),
        }
    }

    /// What handled the two signals before. A signal handler belongs to the process, so this does as well.
    static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

    pub(super) fn install() -> io::Result<()> {
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if *installed {
            return Ok(());
        }
        let mut before: [libc::sigaction; 2] =
            // SAFETY: all zeros are a valid `sigaction`.
            unsafe { std::mem::zeroed() };
        for (signal, before) in SIGNALS.iter().zip(&mut before) {
            // SAFETY: asks only.
            if unsafe { libc::sigaction(*signal, std::ptr::null(), before) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // Set already only if an earlier call failed half-way.
        let _ = BEFORE.set(before);
        // SAFETY: all zeros are a valid `sigaction`: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        for signal in SIGNALS {
            // SAFETY: the handler is of the form that the flags say, and safe in a signal's context.
            if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        *installed = true;
        Ok(())
    }

    extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes the interrupted thread's context, which it restores from there.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = registers[libc::REG_RIP as usize] as usize;
        let (begin, end) = (
            netvm_guard_begin as *const () as usize,
            netvm_guard_end as *const () as usize,
        );
        if (begin..end).contains(&at) {
            registers[libc::REG_RIP as usize] = end as i64;
            registers[libc::REG_RAX as usize] = i64::from(signal);
            return;
        }
        let index = usize::from(signal == libc::SIGBUS);
        let Some(before) = BEFORE.get().and_then(|before| before.get(index)) else {
            return;
        };
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // The instruction runs again, and the signal then ends the process as it would have.
                // SAFETY: puts back what was there.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the flags say that it is of this form.
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: the flags say that it is of this form.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod imp {
    use super::Fault;
    use std::io;
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    pub(super) fn install() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: without a handler the caller promises that both ranges are mapped.
        unsafe { crate::copy::copy_shared(from, to, len) };
        Ok(())
    }

    pub(super) unsafe fn touch(at: *mut u8) -> Result<(), Fault> {
        // SAFETY: as above; the byte keeps its value.
        unsafe { (*at.cast::<AtomicU8>()).fetch_or(0, Ordering::Relaxed) };
        Ok(())
    }

    pub(super) unsafe fn compare_swap_1(at: *mut u8, new: u8, value: &mut u8) -> Result<(), Fault> {
        // SAFETY: as above.
        let word = unsafe { AtomicU8::from_ptr(at) };
        let before = word.compare_exchange(*value, new, Ordering::AcqRel, Ordering::Acquire);
        *value = before.unwrap_or_else(|other| other);
        Ok(())
    }

    pub(super) unsafe fn compare_swap_2(at: *mut u16, new: u16, value: &mut u16) -> Result<(), Fault> {
        // SAFETY: as above.
        let word = unsafe { AtomicU16::from_ptr(at) };
        let before = word.compare_exchange(*value, new, Ordering::AcqRel, Ordering::Acquire);
        *value = before.unwrap_or_else(|other| other);
        Ok(())
    }

    pub(super) unsafe fn compare_swap_4(at: *mut u32, new: u32, value: &mut u32) -> Result<(), Fault> {
        // SAFETY: as above.
        let word = unsafe { AtomicU32::from_ptr(at) };
        let before = word.compare_exchange(*value, new, Ordering::AcqRel, Ordering::Acquire);
        *value = before.unwrap_or_else(|other| other);
        Ok(())
    }

    pub(super) unsafe fn compare_swap_8(at: *mut u64, new: u64, value: &mut u64) -> Result<(), Fault> {
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(at) };
        let before = word.compare_exchange(*value, new, Ordering::AcqRel, Ordering::Acquire);
        *value = before.unwrap_or_else(|other| other);
        Ok(())
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;

    /// A mapping of this test's own.
    fn map(len: usize, prot: i32, file: i32) -> *mut u8 {
        let flags = if file < 0 {
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        } else {
            libc::MAP_SHARED
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_for_the_copy_alone() {
        install().unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let (good, read_only, gone) = (
            map(8192, both, -1),
            map(4096, libc::PROT_READ, -1),
            map(4096, 0, -1),
        );
        // SAFETY: the mappings are this test's own; the file is too.
        unsafe {
            let file = libc::memfd_create(c"t".as_ptr(), 0);
            libc::ftruncate(file, 4096);
            let cut = map(8192, both, file);
            for len in [1, 2, 4, 8, 9, 4096] {
                assert_eq!(copy(good, good.add(4096), len), Ok(()));
                assert_eq!(copy(good, gone, len), Err(Fault::Segment));
                assert_eq!(copy(gone, good, len), Err(Fault::Segment));
                assert_eq!(copy(good, read_only, len), Err(Fault::Segment));
                assert_eq!(copy(read_only, good, len), Ok(()));
                assert_eq!(copy(cut.add(4096), good, len), Err(Fault::Bus));
                assert_eq!(copy(good, cut, len), Ok(()));
            }
            assert_eq!(touch_to_write(read_only), Err(Fault::Segment));
            assert_eq!(touch_to_read(read_only), Ok(()));
            assert_eq!(touch_to_write(cut.add(4096)), Err(Fault::Bus));
        }
    }

    #[test]
    fn a_swap_swaps_what_is_there_and_fails_where_nothing_is() {
        install().unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let word = map(4096, both, -1);
        let (read_only, gone) = (map(4096, libc::PROT_READ, -1), map(4096, 0, -1));
        // SAFETY: the mappings are this test's own, and aligned.
        unsafe {
            let eight = word.cast::<u64>();
            assert_eq!(compare_swap_8(eight, 0, u64::MAX - 1), Ok(0));
            assert_eq!(compare_swap_8(eight, 0, 7), Ok(u64::MAX - 1));
            assert_eq!(eight.read(), u64::MAX - 1);
            assert_eq!(compare_swap_4(word.cast(), u32::MAX - 1, 5), Ok(u32::MAX - 1));
            assert_eq!(compare_swap_4(word.cast(), 4, 6), Ok(5));
            assert_eq!(eight.read().to_le_bytes(), [5, 0, 0, 0, 255, 255, 255, 255]);
            for nothing in [read_only, gone] {
                assert_eq!(compare_swap_4(nothing.cast(), 1, 2), Err(Fault::Segment));
                assert_eq!(compare_swap_8(nothing.cast(), 1, 2), Err(Fault::Segment));
                assert_eq!(compare_swap(nothing, 1, 1, 2), Err(Fault::Segment));
                assert_eq!(compare_swap(nothing, 2, 1, 2), Err(Fault::Segment));
            }
        }
    }

    #[test]
    fn threads_may_fault_at_the_same_time() {
        install().unwrap();
        let at = map(4096, 0, -1).addr();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let mut word = 0u64;
                    for _ in 0..10_000 {
                        let from = core::ptr::without_provenance(at);
                        // SAFETY: nothing may be read there; `word` is this thread's own.
                        let result = unsafe { copy(from, (&raw mut word).cast(), 8) };
                        assert_eq!(result, Err(Fault::Segment));
                    }
                });
            }
        });
    }

    #[test]
    fn other_faults_end_the_process_as_before() {
        if std::env::var_os("NETVM_GUARD_SCENE").is_some() {
            install().unwrap();
            // SAFETY: it is not: the test wants the signal.
            unsafe { core::ptr::without_provenance_mut::<u8>(8).write_volatile(1) };
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "guard::tests::other_faults_end_the_process_as_before"]);
        let child = child.env("NETVM_GUARD_SCENE", "1").output().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&child.status),
            Some(libc::SIGSEGV)
        );
    }
}
