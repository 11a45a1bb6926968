//! Memory whose page faults are never answered: registered with a userfaultfd that is never read.

use std::io;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

use netvm::{Access, NodeId, Port, PortConfig, Region, device};
use netvm_rig::meeting::{self, Trouble};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
/// The port of the exporter, and what is exported.
const PORT: u16 = 61;
const NAME: &str = "trap";
/// Between two tries: tries that are refused at once would only fill the log of errors.
const PACE: Duration = Duration::from_millis(1);
const IMPORT: Duration = Duration::from_secs(2);

/// Numbers and structures of `linux/userfaultfd.h`.
mod uffd {
    pub(super) const USER_MODE_ONLY: i32 = 1;
    pub(super) const API: u64 = 0xC018_AA3F;
    pub(super) const REGISTER: u64 = 0xC020_AA00;
    pub(super) const VERSION: u64 = 0xAA;
    pub(super) const MISSING: u64 = 1;
}

/// Makes such memory; it stays until the process ends.
pub(crate) fn memory(pages: u64) -> io::Result<NonNull<u8>> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: no pointers.
    let open = |flags: i32| unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    // The kernel's own faults, too, where that is allowed.
    let mut fd = open(flags);
    if fd < 0 {
        fd = open(flags | uffd::USER_MODE_ONLY);
    }
    let fd = i32::try_from(fd).unwrap_or(-1);
    let mut api = [uffd::VERSION, 0, 0];
    let len = (pages * PAGE) as usize;
    // SAFETY: at an address of the kernel's choice; the arguments are as large as the calls say.
    unsafe {
        if fd < 0 || libc::ioctl(fd, uffd::API, &raw mut api) != 0 {
            return Err(io::Error::last_os_error());
        }
        let start = libc::mmap(
            null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut register = [start.addr() as u64, len as u64, uffd::MISSING, 0];
        if libc::ioctl(fd, uffd::REGISTER, &raw mut register) != 0 {
            return Err(io::Error::last_os_error());
        }
        // Never closed, never read.
        NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)
    }
}

fn port(number: u16) -> Result<Port, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = match number {
        0 => Port::open(&node, PortConfig::default())?,
        number => Port::open(&node, PortConfig::number(number))?,
    };
    Ok(port)
}

/// Exports it, and sends out of it to itself: that fails, each time.
pub(crate) fn live(end: Instant) -> Result<String, Trouble> {
    let port = port(PORT)?;
    // SAFETY: mapped for as long as the process lives; only the region reaches it.
    let trap = unsafe { port.adopt(memory(PAGES)?, PAGES * PAGE)? };
    let _export = port.export(NAME, &trap, .., Access::everyone())?;
    let own = port.alloc(PAGES * PAGE)?;
    let _own_export = port.export("own", &own, .., Access::everyone())?;
    let remote = port.import(NodeId(0), PORT.into(), "own", IMPORT)?;
    tries(end, &port, NodeId(0), |at| {
        remote.write(at, &trap.slice(at..at + PAGE)?).post()?;
        Ok(())
    })
}

/// Writes to such memory of the other host, and reads from it: that fails, each time.
pub(crate) fn bait(end: Instant) -> Result<String, Trouble> {
    let port = port(0)?;
    let own: Region = port.alloc(PAGES * PAGE)?;
    let (mut tried, mut refused) = (0, 0);
    while Instant::now() < end {
        // The exporter comes and goes.
        let Ok(remote) = port.import(NodeId(0), PORT.into(), NAME, IMPORT) else {
            continue;
        };
        let until = end.min(Instant::now() + Duration::from_secs(1));
        let said = tries(until, &port, NodeId(0), |at| {
            let slice = own.slice(at..at + PAGE)?;
            if (at / PAGE).is_multiple_of(2) {
                remote.write(at, &slice).post()?;
            } else {
                remote.read(at, &slice).post()?;
            }
            Ok(())
        })?;
        let mut counts = said.split(' ').filter_map(|word| word.parse::<u64>().ok());
        tried += counts.next().unwrap_or_default();
        refused += counts.next().unwrap_or_default();
    }
    Ok(format!("{tried} {refused}"))
}

/// One operation after another, each to its end.
fn tries(
    end: Instant,
    port: &Port,
    to: NodeId,
    mut operation: impl FnMut(u64) -> netvm::Result<()>,
) -> Result<String, Trouble> {
    let (mut tried, mut refused) = (0_u64, 0_u64);
    while Instant::now() < end {
        let at = tried % PAGES * PAGE;
        let ended = operation(at)
            .and_then(|()| port.flush())
            .and_then(|()| port.flush_remote(to));
        tried += 1;
        refused += u64::from(ended.is_err());
        std::thread::sleep(PACE);
    }
    Ok(format!("{tried} {refused}"))
}
