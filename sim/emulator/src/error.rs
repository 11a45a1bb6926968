//! What can go wrong when an emulator is built, in words that say what to do.

use rustix::io::Errno;

/// Why the emulator could not be started or could not serve a request.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The kernel refuses userfaultfd to this process, so page faults cannot be emulated.
    #[error(
        "the kernel refuses userfaultfd ({0}). Any one of these helps: run `sysctl vm.unprivileged_userfaultfd=1`; run as root or \
         with CAP_SYS_PTRACE; make /dev/userfaultfd readable and writable for this user; in a container, allow the `userfaultfd` \
         system call in its seccomp profile"
    )]
    UserfaultfdRefused(Errno),
    /// The kernel has userfaultfd but not all that the pager needs of it.
    #[error(
        "this kernel's userfaultfd lacks features {missing:#x} (write-protection and minor faults of shared memory, unmap events): Linux 5.19 or \
         newer with CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP is needed"
    )]
    UserfaultfdTooOld {
        /// The `UFFD_FEATURE_*` bits that are missing.
        missing: u64,
    },
    /// The machine's page size is not the one that NetVM's first release takes.
    #[error("this machine's page size is {0} bytes; NetVM takes 4096 only")]
    PageSize(usize),
    /// A number in the configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// The operating system refused something else.
    #[error("{what}: {errno}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A thread or file could not be made.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

impl EmulatorError {
    /// True where a setting of the machine must change before any emulator can run: a command line tool exits with 3.
    #[must_use]
    pub fn is_unsupported_here(&self) -> bool {
        matches!(
            self,
            Self::UserfaultfdRefused(_) | Self::UserfaultfdTooOld { .. } | Self::PageSize(_)
        )
    }

    pub(crate) fn os(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { what, errno }
    }
}
