//! What the provider offers, for `fi_getinfo(3)`.

use core::ffi::{c_char, c_int};

use crate::address::{ADDRESS_BYTES, FORMAT};
use crate::ffi::{call, given, string};
use crate::fi::*;
use crate::log;
use crate::ops::atomic::MOST_BYTES;
use crate::service::{Named, Service};
use crate::wire::INJECT_BYTES;

/// The provider's name, and that of its fabric and its domain.
pub(crate) const NAME: &core::ffi::CStr = c"netvm";
/// The provider's version: for equal names the higher one wins.
pub(crate) const VERSION: u32 = version(0, 1);

/// The newest libfabric whose programs are offered it. Its headers are those of 1.17, as Debian has it. What a provider shares with libfabric has
/// only grown at the ends since then: tables of calls say how long they are, and parts of an answer of `fi_getinfo` have [`ROOM`]. An older
/// libfabric takes a newer provider.
pub(crate) const API: u32 = version(2, 5);
/// Bytes of each part of an answer of `fi_getinfo`, zeros behind what it has here: a newer libfabric copies longer ones.
const ROOM: usize = 512;

/// What may be done to remote endpoints and memory.
const PRIMARY: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
const TX_ONLY: u64 = FI_SEND | FI_READ | FI_WRITE;
const RX_ONLY: u64 =
    FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
/// What a domain may do.
const REACH: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const CAPS: u64 = PRIMARY | TX_ONLY | RX_ONLY | REACH;
/// Flags that operations may have by default.
pub(crate) const TX_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;
/// Flags that receives may have by default.
pub(crate) const RX_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;
/// Messages to one endpoint match in the order in which they were sent. Reads and writes have no order, and completions have none.
const ORDER: u64 = FI_ORDER_SAS;
/// Atomics have an order if the program asks for it: each then waits until everything before it has landed.
pub(crate) const ATOMIC_ORDER: u64 =
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
/// Bits of `mr_mode` that are about what programs do; none of them is asked for.
const MR_BITS: u32 = FI_MR_LOCAL
    | FI_MR_RAW
    | FI_MR_VIRT_ADDR
    | FI_MR_ALLOCATED
    | FI_MR_PROV_KEY
    | FI_MR_MMU_NOTIFY
    | FI_MR_RMA_EVENT
    | FI_MR_ENDPOINT
    | FI_MR_HMEM
    | FI_MR_COLLECTIVE;

/// Places for operations under way of an endpoint.
pub(crate) const QUEUE: usize = 1024;
/// Elements of a scattered buffer.
pub(crate) const IOV: usize = 4;
/// The longest message.
pub(crate) const MAX_MESSAGE: usize = 1 << 40;
/// The format of a tag: all bits are the program's.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Endpoints of a domain, each of which has a port.
const ENDPOINTS: usize = 32;

/// `getinfo` of the provider.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    call(|| {
        if info.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric passes the program's hints on; each part is null or valid.
        let (hints, node, service) = unsafe { (Hints::of(hints), string(node), string(service)) };
        hints.check()?;
        let found = Service::find(node, service, flags)?.map(Named::Service);
        let addresses = hints.addresses(found, flags)?;
        let made = hints.offer(version, addresses)?;
        // SAFETY: checked above.
        unsafe { *info = made };
        Ok(())
    })
}

/// What a program asks for.
#[derive(Clone, Copy)]
struct Hints<'a> {
    info: Option<&'a fi_info>,
    tx: Option<&'a fi_tx_attr>,
    rx: Option<&'a fi_rx_attr>,
    ep: Option<&'a fi_ep_attr>,
    domain: Option<&'a fi_domain_attr>,
    fabric: Option<&'a fi_fabric_attr>,
}

/// Where an endpoint is to be found, and where the other one is, if that is known.
struct Addresses {
    source: Named,
    target: Option<Named>,
}

/// What the hints ask for is here. Else no answer is given, and a log says why: the program learns no more than that there is none.
fn need(holds: bool, what: &str) -> Answer {
    if holds {
        return Ok(());
    }
    log::trace(|| format!("fi_getinfo: no endpoint has what the hints ask for: {what}"));
    Err(Errno::NODATA)
}

impl<'a> Hints<'a> {
    /// # Safety
    /// The pointer, and those in what it points to, are null or valid.
    unsafe fn of(hints: *const fi_info) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let info: Option<&'a fi_info> = given(hints);
            Self {
                info,
                tx: info.and_then(|info| given(info.tx_attr)),
                rx: info.and_then(|info| given(info.rx_attr)),
                ep: info.and_then(|info| given(info.ep_attr)),
                domain: info.and_then(|info| given(info.domain_attr)),
                fabric: info.and_then(|info| given(info.fabric_attr)),
            }
        }
    }

    fn check(&self) -> Answer {
        if let Some(info) = self.info {
            need(info.caps & !CAPS == 0, "caps")?;
            let format = info.addr_format;
            need(format == FI_FORMAT_UNSPEC || format == FORMAT, "addr_format")?;
        }
        if let Some(ep) = self.ep {
            let type_ = ep.type_;
            need(type_ == FI_EP_UNSPEC || type_ == FI_EP_RDM, "ep_attr->type")?;
            let protocol = ep.protocol;
            let known = protocol == FI_PROTO_UNSPEC || protocol == PROTOCOL;
            need(known, "ep_attr->protocol")?;
            need(ep.max_msg_size <= MAX_MESSAGE, "ep_attr->max_msg_size")?;
            need(ep.msg_prefix_size == 0, "ep_attr->msg_prefix_size")?;
            need(ep.tx_ctx_cnt <= 1, "ep_attr->tx_ctx_cnt")?;
            need(ep.rx_ctx_cnt <= 1, "ep_attr->rx_ctx_cnt")?;
            need(ep.auth_key_size == 0, "ep_attr->auth_key_size")?;
            let most = self.order_bytes();
            need(ep.max_order_raw_size <= most, "ep_attr->max_order_raw_size")?;
            need(ep.max_order_war_size <= most, "ep_attr->max_order_war_size")?;
            need(ep.max_order_waw_size <= most, "ep_attr->max_order_waw_size")?;
        }
        if let Some(tx) = self.tx {
            need(tx.caps & !(PRIMARY | TX_ONLY | REACH) == 0, "tx_attr->caps")?;
            need(tx.op_flags & !TX_FLAGS == 0, "tx_attr->op_flags")?;
            need(tx.msg_order & !(ORDER | ATOMIC_ORDER) == 0, "tx_attr->msg_order")?;
            need(tx.comp_order == 0, "tx_attr->comp_order")?;
            need(tx.inject_size <= INJECT_BYTES, "tx_attr->inject_size")?;
            need(tx.size <= QUEUE, "tx_attr->size")?;
            need(tx.iov_limit <= IOV, "tx_attr->iov_limit")?;
            need(tx.rma_iov_limit <= 1, "tx_attr->rma_iov_limit")?;
        }
        if let Some(rx) = self.rx {
            need(rx.caps & !(PRIMARY | RX_ONLY | REACH) == 0, "rx_attr->caps")?;
            need(rx.op_flags & !RX_FLAGS == 0, "rx_attr->op_flags")?;
            need(rx.msg_order & !(ORDER | ATOMIC_ORDER) == 0, "rx_attr->msg_order")?;
            need(rx.comp_order == 0, "rx_attr->comp_order")?;
            need(rx.iov_limit <= IOV, "rx_attr->iov_limit")?;
            need(rx.size <= QUEUE, "rx_attr->size")?;
        }
        if let Some(fabric) = self.fabric {
            // SAFETY: the name is null or a string of the program's.
            let named = unsafe { string(fabric.name) }.is_none_or(|name| name == NAME);
            need(named, "fabric_attr->name")?;
        }
        if let Some(domain) = self.domain {
            // SAFETY: as above.
            let named = unsafe { string(domain.name) }.is_none_or(|name| name == NAME);
            need(named, "domain_attr->name")?;
            need(domain.cq_data_size <= 8, "domain_attr->cq_data_size")?;
            need(domain.mr_key_size <= 8, "domain_attr->mr_key_size")?;
            need(domain.caps & !REACH == 0, "domain_attr->caps")?;
            need(domain.auth_key_size == 0, "domain_attr->auth_key_size")?;
            need(domain.max_ep_tx_ctx <= 1, "domain_attr->max_ep_tx_ctx")?;
            need(domain.max_ep_rx_ctx <= 1, "domain_attr->max_ep_rx_ctx")?;
            need(domain.max_ep_stx_ctx == 0, "domain_attr->max_ep_stx_ctx")?;
            need(domain.max_ep_srx_ctx == 0, "domain_attr->max_ep_srx_ctx")?;
            need(domain.mr_iov_limit <= 1, "domain_attr->mr_iov_limit")?;
            need(domain.ep_cnt <= ENDPOINTS, "domain_attr->ep_cnt")?;
            need(domain.max_err_data == 0, "domain_attr->max_err_data")?;
        }
        Ok(())
    }

    /// The order of operations: atomics have one if it is asked for.
    fn order(&self) -> u64 {
        let asked = self.tx.map_or(0, |tx| tx.msg_order) | self.rx.map_or(0, |rx| rx.msg_order);
        ORDER | (asked & ATOMIC_ORDER)
    }

    /// Bytes of the longest operations that have an order.
    fn order_bytes(&self) -> usize {
        if self.order() & ATOMIC_ORDER == 0 {
            0
        } else {
            MOST_BYTES
        }
    }

    /// The addresses of the answer: what was looked up goes before what the hints have.
    fn addresses(&self, found: Option<Named>, flags: u64) -> Answer<Addresses> {
        let of_hints = |address: *const core::ffi::c_void, len: usize| {
            // SAFETY: the program says that the address is so long.
            let bytes = unsafe { crate::ffi::array(address.cast::<u8>(), len) };
            let given = bytes.ok().filter(|bytes| !bytes.is_empty());
            // One of another provider's is none that this one can have.
            given.map(|bytes| Named::read(bytes).map_err(|_| Errno::NODATA))
        };
        let (found_source, found_target) = if flags & FI_SOURCE == 0 {
            (None, found)
        } else {
            (found, None)
        };
        let hinted =
            |found: Option<Named>, hinted: Option<Answer<Named>>| found.map(Ok).or(hinted).transpose();
        let (source, target) = self.info.map_or((None, None), |info| {
            (
                of_hints(info.src_addr, info.src_addrlen),
                of_hints(info.dest_addr, info.dest_addrlen),
            )
        });
        Ok(Addresses {
            source: hinted(found_source, source)?.unwrap_or_else(|| Named::Service(Service::any())),
            target: hinted(found_target, target)?,
        })
    }

    /// What is asked for and may be had; what the program gets for nothing beside it.
    fn caps(&self) -> u64 {
        let asked = self.info.map_or(0, |info| info.caps);
        if asked & !REACH == 0 {
            return CAPS;
        }
        let primary = if asked & PRIMARY == 0 {
            PRIMARY
        } else {
            asked & PRIMARY
        };
        let mut caps = primary | REACH | (asked & (FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE));
        let directions = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if asked & directions != 0 {
            return caps | (asked & directions);
        }
        if caps & (FI_MSG | FI_TAGGED) != 0 {
            caps |= FI_SEND | FI_RECV;
        }
        if caps & (FI_RMA | FI_ATOMIC) != 0 {
            caps |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        }
        caps
    }

    /// `mr_mode` of the answer: as old as it was asked.
    fn mr_mode(&self, version: u32) -> c_int {
        let asked = self.domain.map_or(0, |domain| domain.mr_mode).cast_unsigned();
        let answer = match asked {
            FI_MR_BASIC => FI_MR_BASIC,
            FI_MR_SCALABLE => FI_MR_SCALABLE,
            _ if version < crate::fi::version(1, 5) && asked & MR_BITS == 0 => FI_MR_SCALABLE,
            _ => FI_MR_UNSPEC,
        };
        answer.cast_signed()
    }

    fn offer(&self, version: u32, addresses: Addresses) -> Answer<*mut fi_info> {
        let info = Made::new()?;
        let caps = self.caps();
        let named = |from: Option<u64>, all: u64| match from {
            Some(asked) if asked != 0 => asked,
            _ => caps & all,
        };
        // SAFETY: `Made` has all parts.
        let (tx, rx, ep, domain, fabric) = unsafe { info.parts() };
        info.set(|info| {
            info.caps = caps;
            info.addr_format = FORMAT;
        });
        *tx = fi_tx_attr {
            caps: named(self.tx.map(|tx| tx.caps), PRIMARY | TX_ONLY),
            mode: 0,
            op_flags: self.tx.map_or(0, |tx| tx.op_flags),
            msg_order: self.order(),
            comp_order: 0,
            inject_size: INJECT_BYTES,
            size: QUEUE,
            iov_limit: IOV,
            rma_iov_limit: 1,
            tclass: 0,
        };
        *rx = fi_rx_attr {
            caps: named(self.rx.map(|rx| rx.caps), PRIMARY | RX_ONLY),
            mode: 0,
            op_flags: self.rx.map_or(0, |rx| rx.op_flags),
            msg_order: self.order(),
            comp_order: 0,
            total_buffered_recv: usize::MAX,
            size: QUEUE,
            iov_limit: IOV,
        };
        let tag_format = self.ep.map_or(0, |ep| ep.mem_tag_format);
        ep.type_ = FI_EP_RDM;
        ep.protocol = PROTOCOL;
        ep.protocol_version = 1;
        ep.max_msg_size = MAX_MESSAGE;
        ep.max_order_raw_size = self.order_bytes();
        ep.max_order_war_size = self.order_bytes();
        ep.max_order_waw_size = self.order_bytes();
        ep.mem_tag_format = if tag_format == 0 { TAG_FORMAT } else { tag_format };
        ep.tx_ctx_cnt = 1;
        ep.rx_ctx_cnt = 1;
        let asked = self.domain;
        let or = |asked: Option<u32>, unspecified: u32, usual: u32| {
            asked.filter(|&asked| asked != unspecified).unwrap_or(usual)
        };
        domain.threading = or(
            asked.map(|asked| asked.threading),
            FI_THREAD_UNSPEC,
            FI_THREAD_SAFE,
        );
        domain.control_progress = or(
            asked.map(|asked| asked.control_progress),
            FI_PROGRESS_UNSPEC,
            FI_PROGRESS_AUTO,
        );
        domain.data_progress = or(
            asked.map(|asked| asked.data_progress),
            FI_PROGRESS_UNSPEC,
            FI_PROGRESS_MANUAL,
        );
        domain.resource_mgmt = or(
            asked.map(|asked| asked.resource_mgmt),
            FI_RM_UNSPEC,
            FI_RM_ENABLED,
        );
        domain.av_type = or(asked.map(|asked| asked.av_type), FI_AV_UNSPEC, FI_AV_UNSPEC);
        domain.mr_mode = self.mr_mode(version);
        domain.mr_key_size = 8;
        domain.cq_data_size = 8;
        domain.cq_cnt = 1024;
        domain.ep_cnt = ENDPOINTS;
        domain.tx_ctx_cnt = ENDPOINTS;
        domain.rx_ctx_cnt = ENDPOINTS;
        domain.max_ep_tx_ctx = 1;
        domain.max_ep_rx_ctx = 1;
        domain.cntr_cnt = 1024;
        domain.mr_iov_limit = 1;
        domain.caps = REACH;
        domain.mr_cnt = 1 << 10;
        domain.name = text(NAME)?;
        fabric.name = text(NAME)?;
        fabric.prov_version = VERSION;
        fabric.api_version = version;
        info.give(addresses)?;
        Ok(info.done())
    }
}

/// A protocol of its own.
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x4e56;

/// A string that `fi_freeinfo` gives back.
fn text(text: &core::ffi::CStr) -> Answer<*mut c_char> {
    // SAFETY: the string is one.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        Err(Errno::NOMEM)
    } else {
        Ok(copy)
    }
}

/// A part of an answer, all zeros, that `fi_freeinfo` gives back.
fn zeroed<T>() -> Answer<*mut T> {
    const { assert!(size_of::<T>() <= ROOM) };
    // SAFETY: any size may be asked for.
    let part = unsafe { libc::calloc(1, ROOM) };
    if part.is_null() {
        Err(Errno::NOMEM)
    } else {
        Ok(part.cast())
    }
}

/// An answer in the making. What is lost half-way, where there is no memory, stays allocated.
struct Made(*mut fi_info);

type Parts<'a> = (
    &'a mut fi_tx_attr,
    &'a mut fi_rx_attr,
    &'a mut fi_ep_attr,
    &'a mut fi_domain_attr,
    &'a mut fi_fabric_attr,
);

impl Made {
    fn new() -> Answer<Self> {
        let info: *mut fi_info = zeroed()?;
        // SAFETY: allocated above, and zeros are a valid value of it.
        let made = unsafe { &mut *info };
        made.tx_attr = zeroed()?;
        made.rx_attr = zeroed()?;
        made.ep_attr = zeroed()?;
        made.domain_attr = zeroed()?;
        made.fabric_attr = zeroed()?;
        Ok(Self(info))
    }

    fn set(&self, change: impl FnOnce(&mut fi_info)) {
        // SAFETY: `new` allocated it, and no other reference to the outer structure is alive.
        change(unsafe { &mut *self.0 });
    }

    /// # Safety
    /// Called once.
    unsafe fn parts<'a>(&self) -> Parts<'a> {
        // SAFETY: `new` allocated each of them, zeros are valid values, and the caller asks once.
        unsafe {
            let info = &*self.0;
            (
                &mut *info.tx_attr,
                &mut *info.rx_attr,
                &mut *info.ep_attr,
                &mut *info.domain_attr,
                &mut *info.fabric_attr,
            )
        }
    }

    /// Gives the program the addresses.
    fn give(&self, addresses: Addresses) -> Answer {
        let copy = |named: &Named| -> Answer<*mut core::ffi::c_void> {
            let room = zeroed::<[u8; ADDRESS_BYTES]>()?.cast::<u8>();
            // SAFETY: it was allocated for as many bytes.
            unsafe { core::ptr::copy_nonoverlapping(named.bytes().as_ptr(), room, ADDRESS_BYTES) };
            Ok(room.cast())
        };
        let source = copy(&addresses.source)?;
        self.set(|info| (info.src_addr, info.src_addrlen) = (source, ADDRESS_BYTES));
        if let Some(target) = &addresses.target {
            let target = copy(target)?;
            self.set(|info| (info.dest_addr, info.dest_addrlen) = (target, ADDRESS_BYTES));
        }
        Ok(())
    }

    const fn done(self) -> *mut fi_info {
        self.0
    }
}
