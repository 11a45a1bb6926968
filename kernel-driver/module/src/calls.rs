// SPDX-License-Identifier: GPL-2.0

//! Calls to `/dev/netvmN` (docs/ABI.md, chapter 14), each a call of the host core, or a few with a sleep
//! between.
//!
//! An argument is copied in once, then checked, and copied back whole, with its status, whatever came of
//! it. What is not zero where it must be is refused: it may mean something one day.

use crate::errno::{self, Errno, Failure};
use crate::event::Woken;
use crate::host_card::{now, HostCard, Import as Entry};
use crate::notices::import_index;
use crate::pages::page_gone;
use crate::port::{Port, STEP_PAGES};
use crate::{shim, stat};
use core::ffi::{c_int, c_long};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::uaccess::UserSlice;
use netvm_abi::bar::{port as block, BarMap};
use netvm_abi::control::{Grant, Modes, Name};
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::ioctl::{self, mmap_offset, MapRegion};
use netvm_abi::port_area::{AREA_WORDS, ERROR_WRITE, NOTIFICATION_WRITE, PORT_EVENTS, PORT_STATE};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::words::SharedWords;
use netvm_abi::{
    CapabilitySlot, ExportId, Nanos, NodeId, NotificationId, PortId, SegmentId, Status, Token, VirtAddr,
    ABI_VERSION, PAGE_SIZE,
};
use netvm_host::counters::Counters;
use netvm_host::exports::{Allow, ExportSpec, ALLOW_ENTRIES};
use netvm_host::imports::ImportSpec;

/// How long the answer to an import is waited for that must not wait for anything else, in nanoseconds.
const ANSWER: u64 = 2_000_000_000;
/// Regions of `mmap` lie so far from each other.
const REGION_SHIFT: u32 = 32;

/// An open file of the device; a port once it has registered.
pub(crate) struct File {
    card: Arc<HostCard>,
    /// Opened for writing: only such a file becomes a port.
    writable: bool,
    /// From `Arc::into_raw`, or null.
    port: AtomicPtr<Port>,
}

/// An argument: integers without padding, for which any bytes are a value.
///
/// # Safety
/// That is so.
unsafe trait Argument: Copy + Default {
    fn set_status(&mut self, status: Status);
    fn reserved_is_zero(&self) -> bool;
}

macro_rules! arguments {
    ($($name:ident $(status $status:ident)? zero $($zero:ident)*;)*) => {$(
        // SAFETY: `netvm_abi::ioctl` asserts that there is no padding; all fields are integers.
        unsafe impl Argument for ioctl::$name {
            #[allow(unused_variables)]
            fn set_status(&mut self, status: Status) {
                $(self.$status = u32::from(status.code());)?
            }
            fn reserved_is_zero(&self) -> bool {
                true $(&& self.$zero == 0)*
            }
        }
    )*};
}

arguments! {
    Query zero reserved0 reserved1 reserved2;
    Register status status zero flags reserved0 reserved1;
    Adopt status status zero flags reserved;
    Disown status status zero reserved;
    Export status status zero reserved1;
    Unexport status status zero reserved;
    Import status status zero reserved0 reserved1;
    Unimport status status zero reserved0 reserved1;
    Wait zero reserved;
    Stat zero reserved;
    Lend status status zero reserved;
    LeaseLeft status status zero reserved;
    Recall status status zero reserved;
}

/// A call with its argument.
fn with<A: Argument>(at: usize, call: impl FnOnce(&mut A) -> Result<(), Failure>) -> c_long {
    let mut argument = A::default();
    let bytes = ptr::from_mut(&mut argument).cast::<u8>();
    let (mut reader, mut writer) = UserSlice::new(at, size_of::<A>()).reader_writer();
    if reader
        // SAFETY: all bytes of `argument`, which any bytes may be, and to which no other reference exists meanwhile.
        .read_slice(unsafe { core::slice::from_raw_parts_mut(bytes, size_of::<A>()) })
        .is_err()
    {
        return -c_long::from(errno::FAULT.0);
    }
    let result = if argument.reserved_is_zero() {
        call(&mut argument)
    } else {
        Err(Status::Malformed.into())
    };
    argument.set_status(result.map_or_else(|failure| failure.status, |()| Status::Ok));
    let bytes = ptr::from_ref(&argument).cast::<u8>();
    // SAFETY: as above; without padding, all bytes are there.
    let written = writer.write_slice(unsafe { core::slice::from_raw_parts(bytes, size_of::<A>()) });
    match result {
        Err(failure) => -c_long::from(failure.errno.0),
        Ok(()) if written.is_err() => -c_long::from(errno::FAULT.0),
        Ok(()) => 0,
    }
}

/// An ioctl.
pub(crate) fn call(file: &File, number: u32, at: usize) -> c_long {
    match number {
        ioctl::QUERY => with(at, |query| file.query(query)),
        ioctl::REGISTER => with(at, |register| file.register(register)),
        ioctl::ADOPT => with(at, |adopt| file.adopt(adopt)),
        ioctl::DISOWN => with(at, |disown| file.disown(disown)),
        ioctl::EXPORT => with(at, |export| file.export(export)),
        ioctl::UNEXPORT => with(at, |unexport| file.unexport(unexport)),
        ioctl::IMPORT => with(at, |import| file.import(import)),
        ioctl::UNIMPORT => with(at, |unimport| file.unimport(unimport)),
        ioctl::WAIT => with(at, |wait| file.wait(wait)),
        ioctl::LEND => with(at, |lend| file.lend(lend)),
        ioctl::LEASE_LEFT => with(at, |left| file.lease_left(left)),
        ioctl::RECALL => with(at, |recall| file.recall(recall)),
        ioctl::STAT => with(at, |argument| stat::stat(&file.card, argument)),
        ioctl::WAKE => match file.own_port() {
            Ok(port) => {
                port.card.with(|_, glue, _| glue.bar.ring());
                0
            }
            Err(failure) => -c_long::from(failure.errno.0),
        },
        ioctl::NUDGE => match file.own_port() {
            Ok(port) => {
                file.card.tell(port.number());
                0
            }
            Err(failure) => -c_long::from(failure.errno.0),
        },
        _ => -c_long::from(errno::NOTTY.0),
    }
}

/// The time at which a timeout of this many nanoseconds, counted from now, is over.
fn deadline(timeout: u64) -> Nanos {
    match timeout {
        ioctl::NO_TIMEOUT => Nanos::MAX,
        nanos => Nanos(now().0.saturating_add(nanos)),
    }
}

fn left(deadline: Nanos) -> u64 {
    match deadline {
        Nanos::MAX => u64::MAX,
        deadline => deadline.0.saturating_sub(now().0),
    }
}

pub(crate) fn modes(bits: u32) -> Result<Modes, Failure> {
    let bits = u16::try_from(bits).map_err(|_| Status::Malformed)?;
    Modes::from_bits(bits).ok_or(Status::Malformed.into())
}

fn name(bytes: &[u8]) -> Result<Name, Failure> {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(len);
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Status::Malformed.into());
    }
    let text = core::str::from_utf8(text).map_err(|_| Status::Malformed)?;
    Ok(Name::new(text)?)
}

impl File {
    pub(crate) fn new(card: Arc<HostCard>, writable: bool) -> Result<KBox<Self>> {
        let file = Self {
            card,
            writable,
            port: AtomicPtr::new(ptr::null_mut()),
        };
        Ok(KBox::new(file, GFP_KERNEL_ACCOUNT)?)
    }

    /// The last user has gone.
    pub(crate) fn close(&self) {
        let port = self.port.swap(ptr::null_mut(), Ordering::AcqRel);
        if !port.is_null() {
            // SAFETY: from `register`, and taken out here once.
            let port = unsafe { Arc::from_raw(port.cast_const()) };
            port.close();
        }
    }

    /// The card goes: so does the port, if there is one, before its file does.
    pub(crate) fn end(&self) {
        if let Ok(port) = self.port() {
            port.end();
        }
    }

    fn port(&self) -> Result<&Port, Failure> {
        // SAFETY: null, or from `Arc::into_raw`; that reference is given back by `close`, after all calls.
        unsafe { self.port.load(Ordering::Acquire).as_ref() }.ok_or(Failure {
            errno: errno::INVAL,
            status: Status::NoSuchPort,
        })
    }

    pub(crate) fn card(&self) -> &HostCard {
        &self.card
    }

    /// The port, for its own process only.
    pub(crate) fn own_port(&self) -> Result<&Port, Failure> {
        let port = self.port()?;
        if !port.is_ours() {
            Err(Failure {
                errno: errno::PERM,
                status: Status::NotAllowed,
            })
        } else if port.is_closed() {
            // Its process lives: it ended with the card.
            Err(Status::CardGone.into())
        } else {
            Ok(port)
        }
    }

    fn query(&self, query: &mut ioctl::Query) -> Result<(), Failure> {
        let (geometry, node, pinned, bounce) = self.card.with(|host, glue, _| {
            let bounce = glue.bounce.bytes() as u64;
            (
                *host.geometry(),
                host.node(),
                glue.shared.bytes() as u64 + bounce,
                bounce,
            )
        });
        *query = ioctl::Query {
            version: ABI_VERSION,
            node: node.0,
            nodes: geometry.nodes,
            ports: geometry.ports,
            page_size: PAGE_SIZE,
            payload: geometry.payload,
            window: geometry.window,
            inline_bytes: INLINE_BYTES as u16,
            status_bytes: SharedMap::new(&geometry).nic_events.0 * 4,
            pinned_bytes: pinned,
            bounce_bytes: bounce,
            counters: Counters::NAMES.len() as u32,
            ..ioctl::Query::default()
        };
        Ok(())
    }

    fn register(&self, register: &mut ioctl::Register) -> Result<(), Failure> {
        if !self.writable {
            return Err(Failure::plain(errno::BADF));
        }
        if register.version != ABI_VERSION {
            return Err(Status::VersionMismatch.into());
        }
        let entries = self.card.with(|host, _, _| host.geometry().notification_queue);
        if register.notification_queue > entries {
            return Err(Status::Unsupported.into());
        }
        let wanted = (register.port != ioctl::ANY_PORT).then_some(PortId(register.port));
        let eventfd = match register.eventfd {
            u32::MAX => None,
            fd => Some(i32::try_from(fd).map_err(|_| Status::Malformed)?),
        };
        let busy = Failure::plain(errno::BUSY);
        if self.port().is_ok() {
            return Err(busy);
        }
        let port = Port::open(&self.card, wanted, eventfd)?;
        (register.port, register.generation) = (port.number().0, port.generation().0);
        let raw = Arc::into_raw(port).cast_mut();
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        if self
            .port
            .compare_exchange(ptr::null_mut(), raw, set, get)
            .is_err()
        {
            // Another thread was faster.
            // SAFETY: from `into_raw` just now.
            let port = unsafe { Arc::from_raw(raw.cast_const()) };
            port.close();
            return Err(busy);
        }
        register.notification_queue = entries;
        register.block_offset = mmap_offset(MapRegion::Block);
        register.area_offset = mmap_offset(MapRegion::Area);
        register.status_offset = mmap_offset(MapRegion::Status);
        Ok(())
    }

    fn adopt(&self, adopt: &mut ioctl::Adopt) -> Result<(), Failure> {
        let port = self.own_port()?.number();
        let (start, len) = (VirtAddr(adopt.address), adopt.len);
        let end = start
            .checked_add(len)
            .filter(|end| end.0 <= shim::nv_task_size() as u64);
        let end = end.ok_or(Status::OutOfRange)?;
        // SAFETY: the range lies in the calling process' part of the address space (just checked).
        match Errno(-unsafe { shim::nv_memory_fits(start.0 as usize, end.0 as usize) }) {
            Errno(0) => {}
            errno::OPNOTSUPP => return Err(Status::Unsupported.into()),
            errno => return Err(errno.into()),
        }
        let segment = self.card.with(|host, _, _| host.register(port, start, len))?;
        adopt.segment = segment.0;
        Ok(())
    }

    fn disown(&self, disown: &mut ioctl::Disown) -> Result<(), Failure> {
        let (card, port) = (&*self.card, self.own_port()?);
        let segment = SegmentId(disown.segment);
        let (mut unregister, first, pages) = card.with(|host, _, _| {
            let (first, pages) = host.segment(segment).unwrap_or_default();
            let unregister = host.unregister_begin(port.number(), segment)?;
            Ok::<_, Failure>((unregister, first, pages))
        })?;
        card.drive(|host, glue, now| {
            host.unregister_step(glue, &mut unregister, now, STEP_PAGES, &mut |gone| {
                page_gone(card, gone)
            })
        });
        port.unwatch(first, pages);
        Ok(())
    }

    fn export(&self, export: &mut ioctl::Export) -> Result<(), Failure> {
        let port = self.own_port()?.number();
        if export.lease != 0 {
            return Err(Status::Unsupported.into());
        }
        let modes = modes(export.modes)?;
        let mut allow = [Allow {
            node: None,
            port: None,
            modes,
        }; ALLOW_ENTRIES];
        // An empty list allows no one: an export is open to all only by an entry that says so.
        let count = export.allow_count as usize;
        let given = allow.get_mut(..count).ok_or(Status::TableFull)?;
        read_allowed(export.allow as usize, given)?;
        let start = VirtAddr(export.address);
        let spec = ExportSpec {
            name: name(&export.name)?,
            start,
            len: export.len,
            modes,
            notify_first: NotificationId(export.notify_first),
            notify_last: NotificationId(export.notify_last),
            queue: QueueShape::from_word(export.queue),
            allow: allow.get(..count).unwrap_or_default(),
        };
        let id = self.card.with(|host, _, _| match host.locate(port, start) {
            Some((segment, _)) if segment.0 == export.segment => {
                host.export(port, &spec).map_err(Failure::from)
            }
            _ => Err(Status::OutOfRange.into()),
        })?;
        export.export = id.0;
        Ok(())
    }

    fn unexport(&self, unexport: &mut ioctl::Unexport) -> Result<(), Failure> {
        let (card, port) = (&*self.card, self.own_port()?.number());
        let export = ExportId(unexport.export);
        let mut ending = card.with(|host, _, _| host.unexport_begin(port, export))?;
        card.drive(|host, glue, now| host.unexport_step(glue, &mut ending, now));
        Ok(())
    }

    fn import(&self, import: &mut ioctl::Import) -> Result<(), Failure> {
        let (card, port) = (&*self.card, self.own_port()?.number());
        let node = NodeId(import.node);
        let spec = ImportSpec {
            node,
            port: PortId(import.port),
            name: name(&import.name)?,
            modes: modes(import.modes)?,
            deadline: deadline(import.timeout.max(ANSWER)),
            wait: import.timeout != 0,
        };
        let token = {
            let mut core = card.lock();
            let core = &mut *core;
            let token = core.host.import(&mut core.glue, port, &spec, now())?;
            // Under the same lock: its end cannot come before this thread waits for it.
            if let Some(entry) = core.imports.get_mut(import_index(token)) {
                *entry = Entry {
                    token: Some(token),
                    port,
                    node,
                    result: None,
                };
            }
            token
        };
        // A link that is still coming up makes the core ask again later: there is a new deadline.
        card.interrupt.signal();
        match wait_for_import(card, token, spec.deadline) {
            Ok(grant) => {
                import.modes = u32::from(grant.modes.bits());
                import.address = grant.start.0;
                import.len = grant.len;
                import.secret = grant.secret;
                import.capability = grant.capability.0;
                import.notify_first = grant.notify_first.0;
                import.notify_last = grant.notify_last.0;
                import.queue = grant.queue.word();
                Ok(())
            }
            Err(failure) => {
                let_go(card, port, token);
                Err(failure)
            }
        }
    }

    fn unimport(&self, unimport: &mut ioctl::Unimport) -> Result<(), Failure> {
        let (card, port) = (&*self.card, self.own_port()?.number());
        let (node, slot) = (NodeId(unimport.node), CapabilitySlot(unimport.capability));
        let ours = |entry: &Entry| {
            entry.port == port
                && entry.node == node
                && matches!(entry.result, Some(Ok(grant)) if grant.capability == slot && grant.secret == unimport.secret)
        };
        let token = {
            let core = card.lock();
            let found = core.imports.iter().filter(|entry| ours(entry));
            found.filter_map(|entry| entry.token).next()
        };
        match token {
            Some(token) => {
                let_go(card, port, token);
                Ok(())
            }
            // Revoked meanwhile, perhaps.
            None => Err(Status::CapabilityRefused.into()),
        }
    }

    fn wait(&self, wait: &mut ioctl::Wait) -> Result<(), Failure> {
        let (card, port) = (&*self.card, self.own_port()?.number());
        let news = card.news.get(port.index()).ok_or(Status::NoSuchPort)?;
        let until = deadline(wait.timeout);
        loop {
            let seen = news.count();
            // The end of a port signals after it has closed it: a thread that looks before that is woken.
            self.own_port()?;
            let words = card.with(|host, glue, _| {
                let area = SharedMap::new(host.geometry()).port_area(port);
                [NOTIFICATION_WRITE, ERROR_WRITE, PORT_STATE, PORT_EVENTS]
                    .map(|word| glue.shared.load_acquire(area.plus(word.0)))
            });
            let before = [wait.notifications, wait.errors, wait.state, wait.events];
            if words != before {
                [wait.notifications, wait.errors, wait.state, wait.events] = words;
                return Ok(());
            }
            match news.wait(seen, left(until), true) {
                Woken::News => {}
                Woken::Late => return Err(Failure::plain(errno::TIMEDOUT)),
                Woken::Signal => return Err(Failure::plain(errno::INTR)),
            }
        }
    }

    /// Maps the port's block, its area or the status pages.
    ///
    /// # Safety
    /// `vma` is being mapped by the calling process.
    pub(crate) unsafe fn map(&self, vma: *mut shim::Vma, offset: u64, len: u64) -> c_int {
        // SAFETY: as promised.
        match unsafe { self.map_region(vma, offset, len) } {
            Ok(()) => 0,
            Err(Errno(number)) => -number,
        }
    }

    /// # Safety
    /// As [`map`](Self::map).
    unsafe fn map_region(&self, vma: *mut shim::Vma, offset: u64, len: u64) -> Result<(), Errno> {
        let port = self.own_port().map_err(|failure| failure.errno)?.number();
        let (region, inside) = (offset >> REGION_SHIFT, offset & ((1 << REGION_SHIFT) - 1));
        let (bar, shared, memory) = self.card.with(|host, glue, _| {
            let geometry = host.geometry();
            let bar = (!glue.bar.is_gone()).then(|| BarMap::new(geometry).port(port));
            (bar, SharedMap::new(geometry), glue.shared.place())
        });
        // In words: where the region begins, how long it is.
        let (start, words, block) = match region {
            0 => (bar.ok_or(errno::NODEV)?.0, block::BLOCK_WORDS, true),
            1 => (shared.port_area(port).0, AREA_WORDS, false),
            2 => (0, shared.nic_events.0, false),
            _ => return Err(errno::INVAL),
        };
        let end = inside.checked_add(len).ok_or(errno::INVAL)?;
        let (is_shared, wants_write) =
            // SAFETY: the caller's; so below.
            unsafe { (shim::nv_vma_is_shared(vma), shim::nv_vma_wants_write(vma)) };
        if end > u64::from(words) * 4 || !is_shared {
            return Err(errno::INVAL);
        }
        if wants_write && !block {
            return Err(errno::ACCES);
        }
        let at = u64::from(start) * 4 + inside;
        // SAFETY: the range lies inside of the BAR, which is taken out of all mappings before it goes, or of the driver's
        // memory, which stays while the file is open, as it does as long as the mapping.
        unsafe {
            if block {
                shim::nv_map_bar(self.card.shim.as_ptr(), vma, at);
            } else {
                shim::nv_map_memory(vma, memory, at);
            }
        }
        Ok(())
    }
}

/// Reads an allow-list.
fn read_allowed(at: usize, into: &mut [Allow]) -> Result<(), Failure> {
    let mut reader = UserSlice::new(
        at,
        size_of_val(into) / size_of::<Allow>() * size_of::<ioctl::AllowEntry>(),
    )
    .reader();
    for allow in into {
        let mut bytes = [0; size_of::<ioctl::AllowEntry>()];
        reader
            .read_slice(&mut bytes)
            .map_err(|_| Failure::plain(errno::FAULT))?;
        let [n0, n1, p0, p1, m0, m1, r0, r1] = bytes;
        let (node, port) = (u16::from_ne_bytes([n0, n1]), u16::from_ne_bytes([p0, p1]));
        if [r0, r1] != [0, 0] {
            return Err(Status::Malformed.into());
        }
        *allow = Allow {
            node: (node != ioctl::ANY_NODE).then_some(NodeId(node)),
            port: (port != ioctl::ANY_PORT).then_some(PortId(port)),
            modes: modes(u32::from(u16::from_ne_bytes([m0, m1])))?,
        };
    }
    Ok(())
}

fn wait_for_import(card: &HostCard, token: Token, until: Nanos) -> Result<Grant, Failure> {
    loop {
        let seen = card.steps.count();
        {
            let core = card.lock();
            let entry = core.imports.get(import_index(token)).copied();
            match entry.filter(|entry| entry.token == Some(token)) {
                // Taken back as soon as it was given.
                None => return Err(Status::Revoked.into()),
                Some(entry) => {
                    if let Some(result) = entry.result {
                        return Ok(result?);
                    }
                }
            }
        }
        // The core has the same deadline, and reports it. This wait ends a little later all the same.
        match card
            .steps
            .wait(seen, left(until).saturating_add(50_000_000), true)
        {
            Woken::News => {}
            Woken::Late => return Err(Status::TimedOut.into()),
            Woken::Signal => return Err(Failure::plain(errno::INTR)),
        }
    }
}

/// Lets go of an import, and of the entry of its waiter.
fn let_go(card: &HostCard, port: PortId, token: Token) {
    let mut core = card.lock();
    let core = &mut *core;
    if let Some(entry) = core.imports.get_mut(import_index(token)) {
        if entry.token == Some(token) {
            entry.token = None;
        }
    }
    // Over already, perhaps: revoked meanwhile.
    let _ = core.host.unimport(&mut core.glue, port, token, now());
}
