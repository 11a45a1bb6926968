//! Names and rights of memory: exports and imports.

use std::ffi::{c_char, c_int, c_void};

use netvm::{Access, Export, Modes, RemoteSegment, VirtAddr};

use crate::argument::{Led, fill, out, structure, text, timeout};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};
use crate::memory::netvm_region;
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;

/// Memory of a port that others may use.
pub struct netvm_export;
/// Memory of another port, which this port may use.
pub struct netvm_remote;

handles! {
    netvm_export = 4: Export;
    netvm_remote = 5: RemoteSegment;
}

/// The memory may be read.
pub const NETVM_READ: u32 = 1;
/// It may be written.
pub const NETVM_WRITE: u32 = 2;
/// Its words may be changed by atomics.
pub const NETVM_ATOMIC: u32 = 4;
/// The exporting port may be notified.
pub const NETVM_NOTIFY: u32 = 8;
/// The shared queue in it may be appended to.
pub const NETVM_APPEND: u32 = 16;

const _: () = {
    assert!(NETVM_READ == Modes::READ.bits() as u32);
    assert!(NETVM_WRITE == Modes::WRITE.bits() as u32);
    assert!(NETVM_ATOMIC == Modes::ATOMIC.bits() as u32);
    assert!(NETVM_NOTIFY == Modes::NOTIFY.bits() as u32);
    assert!(NETVM_APPEND == Modes::APPEND.bits() as u32);
};

/// A line of an access list: a node or a port, and what it may do.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_admission {
    /// The node.
    pub node: u32,
    /// Its port, or NETVM_ANY.
    pub port: u32,
    /// What it may do: NETVM_READ, NETVM_WRITE, NETVM_ATOMIC, NETVM_APPEND.
    pub modes: u32,
}

/// What each importer of an export may do. All zeroes: nothing.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_access {
    /// `sizeof(struct netvm_access)`.
    pub size: usize,
    /// What every port may do; 0: only those with a line may import. NETVM_NOTIFY: signal the notifications below.
    pub modes: u32,
    /// The first notification that a port which may import may also signal; 0: none.
    pub notify_first: u32,
    /// The last one.
    pub notify_last: u32,
    /// How many lines there are, at most 16.
    pub count: u32,
    /// What single nodes and ports may do beside that. NULL if there are no lines.
    pub admissions: *const netvm_admission,
}

// SAFETY: integers, and a pointer that is looked at only as the header says.
unsafe impl Led for netvm_access {
    const FIRST: usize = 32;
    const ZERO: Self = Self {
        size: 0,
        modes: 0,
        notify_first: 0,
        notify_last: 0,
        count: 0,
        admissions: std::ptr::null(),
    };
}

const _: () = assert!(size_of::<netvm_access>() == netvm_access::FIRST);

/// Modes of the header.
fn modes(bits: u32) -> Result<Modes> {
    let known = u16::try_from(bits).ok().and_then(Modes::from_bits);
    known.ok_or(Fault::argument(libc::EINVAL, "there is no such mode"))
}

/// A list of the header. NULL: every port may read, write and do atomics.
///
/// # Safety
/// `list` is NULL or such a structure, with as many lines as it says.
pub(crate) unsafe fn access(list: *const netvm_access) -> Result<Access> {
    if list.is_null() {
        return Ok(Access::everyone());
    }
    // SAFETY: the caller's, here and below.
    let list = unsafe { structure(list) }?;
    let mut access = Access::nobody();
    if list.modes != 0 {
        access = access.modes(modes(list.modes)?);
    }
    if list.notify_first != 0 || list.notify_last != 0 {
        access = access.notify(list.notify_first..=list.notify_last);
    }
    if list.count > 0 && list.admissions.is_null() {
        return Err(Fault::Null("admissions"));
    }
    if list.count > 16 {
        return Err(Fault::argument(
            libc::ENOSPC,
            "an access list has at most 16 lines",
        ));
    }
    for line in 0..list.count as usize {
        // SAFETY: as above.
        let line = unsafe { list.admissions.add(line).read_unaligned() };
        let number = |number: u32| {
            u16::try_from(number).map_err(|_| {
                Fault::argument(
                    libc::EINVAL,
                    "a line of an access list names a node, and a port of it or NETVM_ANY",
                )
            })
        };
        let (node, may) = (number(line.node)?, modes(line.modes)?);
        access = match line.port {
            crate::NETVM_ANY => access.and_node(node.into(), may),
            port => access.and_port(node.into(), number(port)?.into(), may),
        };
    }
    Ok(access)
}

/// Gives a name to a range of a region, so that others can import it. `len` 0 means to the end of the region. `access` NULL: every
/// port may read, write and do atomics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_export_open(
    port: *mut netvm_port,
    name: *const c_char,
    region: *mut netvm_region,
    offset: u64,
    len: u64,
    access: *const netvm_access,
    export: *mut *mut netvm_export,
) -> c_int {
    call(|| {
        let place = out(export, "export")?;
        // SAFETY: the header asks for such arguments, here and below.
        let (name, access) = unsafe { (text(name, "name")?, self::access(access)?) };
        let (port, memory) = (handle::get(port)?, handle::get(region)?);
        let end = match len {
            0 => memory.region().len(),
            len => offset.saturating_add(len),
        };
        let made = handle::make(port.export(name, memory.region(), offset..end, access)?)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Ends an export. When this returns no remote operation that it allowed touches the memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_export_close(export: *mut netvm_export) -> c_int {
    call(|| {
        let ended = handle::get(export)?.unexport();
        handle::close(export)?;
        match ended {
            // The port's end was the export's as well.
            Ok(()) | Err(netvm::Error::PortClosed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}

/// The export that holds this address of the process, and the offset in it. The handle is another one of the same export, to be closed
/// by netvm_export_release(). -ENOENT if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_export_find(
    port: *mut netvm_port,
    address: u64,
    export: *mut *mut netvm_export,
    offset: *mut u64,
) -> c_int {
    call(|| {
        let place = out(export, "export")?;
        let found = handle::get(port)?.locate(VirtAddr(address));
        let (found, at) = found.ok_or(Fault::argument(
            libc::ENOENT,
            "no export of the port holds this address",
        ))?;
        let made = handle::make(found)?;
        // SAFETY: the header asks for such places.
        unsafe {
            place.set(made);
            crate::argument::set(offset, at);
        }
        Ok(())
    })
}

/// Lets go of a handle. The export ends with the last handle of it.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_export_release(export: *mut netvm_export) -> c_int {
    call(|| handle::close(export))
}

/// Binds to a name that a port exports. `modes`: the most that is asked for, or 0 for all that is granted. Waits until the name is there;
/// with a time-out of 0 it asks once, which is a round trip. The error is that of the last attempt: -ENOENT if there is no such name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_import(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    modes: u32,
    timeout_ns: i64,
    remote: *mut *mut netvm_remote,
) -> c_int {
    call(|| {
        let place = out(remote, "remote")?;
        // SAFETY: the header asks for such arguments, here and below.
        let name = unsafe { text(name, "name") }?;
        let modes = import_modes(modes)?;
        let port = handle::get(port)?;
        let bound = port.import_with(node.into(), exporter.into(), name, modes, timeout(timeout_ns))?;
        drop(port);
        let made = handle::make(bound)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Begins an import and does not wait. netvm_pending_remote() gives what it has bound to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_begin_import(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    modes: u32,
    timeout_ns: i64,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        // SAFETY: the header asks for such arguments, here and below.
        let name = unsafe { text(name, "name") }?;
        let modes = import_modes(modes)?;
        let begun = handle::get(port)?.begin_import(
            node.into(),
            exporter.into(),
            name,
            modes,
            timeout(timeout_ns),
        )?;
        // SAFETY: as above.
        unsafe { place.set(Under::Import(begun).handle(context)?) };
        Ok(())
    })
}

/// The most that an import is to have.
fn import_modes(bits: u32) -> Result<Modes> {
    match bits {
        0 => Ok(Modes::all()),
        bits => modes(bits),
    }
}

/// What an import is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_remote_info {
    /// `sizeof(struct netvm_remote_info)`.
    pub size: usize,
    /// Its length in bytes.
    pub len: u64,
    /// Its first address at the exporter.
    pub address: u64,
    /// What the exporter allows.
    pub modes: u32,
    /// The exporting node.
    pub node: u16,
    /// The exporting port.
    pub port: u16,
}

// SAFETY: integers.
unsafe impl Led for netvm_remote_info {
    const FIRST: usize = 32;
    const ZERO: Self = Self {
        size: 0,
        len: 0,
        address: 0,
        modes: 0,
        node: 0,
        port: 0,
    };
}

const _: () = assert!(size_of::<netvm_remote_info>() == netvm_remote_info::FIRST);

/// What an import is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_remote_get_info(
    remote: *mut netvm_remote,
    info: *mut netvm_remote_info,
) -> c_int {
    call(|| {
        let remote = handle::get(remote)?;
        let value = netvm_remote_info {
            size: 0,
            len: remote.len(),
            address: remote.address().0,
            modes: remote.modes().bits().into(),
            node: remote.node().0,
            port: remote.port().0,
        };
        // SAFETY: the header asks for such a structure.
        unsafe { fill(info, &value, "info") }
    })
}

/// The import that holds this address of another port, and the offset in it. The handle is another one of the same import. -ENOENT if
/// there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_remote_find(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    address: u64,
    remote: *mut *mut netvm_remote,
    offset: *mut u64,
) -> c_int {
    call(|| {
        let place = out(remote, "remote")?;
        let found = handle::get(port)?.locate_remote(node.into(), exporter.into(), VirtAddr(address));
        let (found, at) = found.ok_or(Fault::argument(
            libc::ENOENT,
            "no import of the port holds this address",
        ))?;
        let made = handle::make(found)?;
        // SAFETY: the header asks for such places.
        unsafe {
            place.set(made);
            crate::argument::set(offset, at);
        }
        Ok(())
    })
}

/// Lets go of an import. With its last handle it ends, once everything that was written to that node has landed or failed.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_remote_close(remote: *mut netvm_remote) -> c_int {
    call(|| handle::close(remote))
}
