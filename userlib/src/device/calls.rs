//! The device's calls, as functions.
//!
//! A call that fails says why twice: by errno, and by a status in its argument where NetVM has a better word for it.

use super::Counted;
use crate::backend::Refusal;
use netvm_abi::Status;
use netvm_abi::ioctl::{self, StatScope};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Updater};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The most counters that are read: more than a driver or a card has.
const MOST_COUNTERS: usize = 512;

/// An open file of the device.
pub(super) struct Calls(OwnedFd);

/// What the system said.
pub(super) fn system(what: &'static str, errno: Errno) -> Refusal {
    Refusal::System {
        what,
        errno: errno.raw_os_error(),
    }
}

/// The status of a call that failed, where it has one.
fn refusal(what: &'static str, errno: Errno, status: u32) -> Refusal {
    match u8::try_from(status).map(Status::from_code) {
        Ok(Status::Ok) | Err(_) => match errno {
            Errno::NODEV => Refusal::Status(Status::CardGone),
            Errno::TIMEDOUT => Refusal::Status(Status::TimedOut),
            errno => system(what, errno),
        },
        Ok(status) => Refusal::Status(status),
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:ident, $argument:ident, $what:literal;)*) => { impl Calls {$(
        $(#[$doc])*
        pub(super) fn $name(&self, argument: &mut ioctl::$argument) -> Result<(), Refusal> {
            // SAFETY: the number says the argument's size and direction; all of it are integers, so the driver may write
            // anything.
            let called = unsafe {
                rustix::ioctl::ioctl(&self.0, Updater::<{ ioctl::$number }, ioctl::$argument>::new(argument))
            };
            called.map_err(|errno| refusal($what, errno, argument.status))
        }
    )*}};
}

calls! {
    /// Makes the file a port.
    register = REGISTER, Register, "open a port";
    /// Makes a range of the process a segment.
    adopt = ADOPT, Adopt, "register memory";
    /// Ends a segment.
    disown = DISOWN, Disown, "let go of memory";
    /// Names a part of a segment.
    export = EXPORT, Export, "export";
    /// Ends an export.
    unexport = UNEXPORT, Unexport, "end an export";
    /// Binds to a remote export.
    import = IMPORT, Import, "import";
    /// Lets go of an import.
    unimport = UNIMPORT, Unimport, "let go of an import";
    /// Lends a part of an export.
    lend = LEND, Lend, "lend memory";
    /// Asks how much of a lease is left.
    lease_left = LEASE_LEFT, LeaseLeft, "ask for a lease";
    /// Takes leases back.
    recall = RECALL, Recall, "take leases back";
}

impl Calls {
    /// Opens the device to make it a port.
    pub(super) fn open(path: &Path) -> Result<Self, Refusal> {
        Self::open_for(path, OFlags::RDWR)
    }

    /// Opens the device to ask only: such a file cannot become a port.
    pub(super) fn open_to_read(path: &Path) -> Result<Self, Refusal> {
        Self::open_for(path, OFlags::RDONLY)
    }

    fn open_for(path: &Path, mode: OFlags) -> Result<Self, Refusal> {
        let flags = mode | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty());
        file.map(Self)
            .map_err(|errno| system("open the card's device", errno))
    }

    /// Describes the card.
    pub(super) fn query(&self, query: &mut ioctl::Query) -> Result<(), Refusal> {
        let called =
            // SAFETY: as for the other calls.
            unsafe { rustix::ioctl::ioctl(&self.0, Updater::<{ ioctl::QUERY }, ioctl::Query>::new(query)) };
        called.map_err(|errno| system("ask the card's driver", errno))
    }

    /// What driver or card have counted.
    pub(super) fn counters(&self, scope: StatScope) -> Result<Counted, Refusal> {
        Ok(self.counted(scope, 0)?.1)
    }

    /// What was counted for each port, segment or peer, by its number.
    pub(super) fn each(&self, scope: StatScope) -> Result<Vec<(u32, Counted)>, Refusal> {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            let (which, counters) = self.counted(scope, from)?;
            // A driver that does not get on has said all it can.
            if which == ioctl::NOBODY || which < from {
                return Ok(all);
            }
            all.push((which, counters));
            from = which + 1;
        }
    }

    fn counted(&self, scope: StatScope, which: u32) -> Result<(u32, Counted), Refusal> {
        let mut found = vec![ioctl::Counter::default(); MOST_COUNTERS];
        let mut stat = ioctl::Stat {
            counters: found.as_mut_ptr().expose_provenance() as u64,
            count: found.len() as u32,
            scope: scope as u32,
            which,
            ..ioctl::Stat::default()
        };
        let called =
            // SAFETY: as for the other calls; the array has as many entries as the argument says.
            unsafe { rustix::ioctl::ioctl(&self.0, Updater::<{ ioctl::STAT }, ioctl::Stat>::new(&mut stat)) };
        called.map_err(|errno| system("read counters", errno))?;
        found.truncate(stat.count as usize);
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
        };
        let counters = found.iter().map(|counter| (text(&counter.name), counter.value));
        Ok((stat.which, counters.collect()))
    }

    /// Sleeps until the port area has news. False: it did not, for a signal, the time, or a driver that is gone.
    pub(super) fn wait(&self, wait: &mut ioctl::Wait) -> bool {
        // SAFETY: as for the other calls.
        unsafe { rustix::ioctl::ioctl(&self.0, Updater::<{ ioctl::WAIT }, ioctl::Wait>::new(wait)) }.is_ok()
    }

    /// Wakes a card that sleeps. It cannot fail but for a card that is gone, which the port's state tells.
    pub(super) fn wake(&self) {
        // SAFETY: no argument.
        let _ = unsafe { rustix::ioctl::ioctl(&self.0, NoArg::<{ ioctl::WAKE }>::new()) };
    }

    /// Has all waiting calls return.
    pub(super) fn nudge(&self) {
        // SAFETY: no argument.
        let _ = unsafe { rustix::ioctl::ioctl(&self.0, NoArg::<{ ioctl::NUDGE }>::new()) };
    }
}

impl AsFd for Calls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
