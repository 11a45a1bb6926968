//! What the library asks of the thing it runs on: the kernel's device, the emulator or the
//! simulator.
//!
//! Three objects, all reached through `dyn`: a [`Backend`] is one node, a [`PortBackend`] one open
//! port on it, a [`Memory`] one registered region of that port. None of them is on the fast path:
//! the words that a write touches are reached through the concrete [`Words`], and memory that is
//! really mapped through a [`View`].
//!
//! ## Where a caller may park
//!
//! A caller may be a thread (emulator, device) or a coroutine (simulator). It may *park* (block,
//! sleep, yield to another caller of the same port) only inside of
//! [`Backend::open`], the control calls of [`PortBackend`], [`PortBackend::relax`],
//! [`PortBackend::block`] and the accesses of [`Memory`]. The library holds no lock there. Access to
//! [`Words`], [`PortBackend::doorbell`], [`PortBackend::wake`], [`PortBackend::wait_token`] and
//! [`PortBackend::now`] may run others (a NIC, the host driver) but must not switch to another
//! caller of the same process: the library may be inside of a critical section.
//!
//! ## The rule for doorbells
//!
//! The NIC finds what an application stores (doorbell, fences, acknowledge counts, enable bits) by
//! polling, unless it sleeps. After the last of several such stores that the NIC should act upon,
//! the library makes a full barrier, loads
//! [`SLEEPING`](netvm_abi::shared_map::status_page::SLEEPING) and, if it is not zero, calls
//! [`PortBackend::doorbell`]. A NIC that goes to sleep stores 1 there, makes a full barrier and
//! polls once more. A back end whose NIC has no thread of its own leaves the word at 1 for ever and
//! runs the NIC in [`PortBackend::doorbell`] and [`PortBackend::relax`].
//!
//! ## The rule for interrupts
//!
//! The NIC interrupts a port ([`PortBackend::block`] returns) for a new notification whose enable
//! bit is set, and, while
//! [`WAKE_ON_QUEUE`](netvm_abi::bar::port::WAKE_ON_QUEUE) is 1, for every new entry of the
//! notification queue and of the error ring. The library stores the bit, makes a full barrier and
//! looks at the counts; the NIC stores the counts, makes a full barrier and looks at the bits: one
//! of them sees the other.

use netvm_abi::control::{Grant, Modes, Name};
use netvm_abi::lease::{LeaseId, LeaseSpec};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::{ExportId, Generation, Geometry, Nanos, NodeId, NotificationId, PortId};
use netvm_abi::{SegmentId, Status, VirtAddr};
use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

pub use crate::words::{MappedWords, Words};

/// Why a back end did not do what it was asked. Owns nothing, so that a result which might hold it costs
/// next to nothing to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A driver or NIC, here or at the other node, said no.
    Status(Status),
    /// This back end does not offer it, here or at all; says why and what to do instead.
    Unsupported(&'static str),
    /// The operating system refused.
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's reason: an `errno`, or 0 where there is none.
        errno: i32,
    },
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// One node: what [`Node`](crate::Node) wraps.
pub trait Backend: Send + Sync {
    /// The back end's name for messages: `"emulator"`, `"simulator"`, `"device"`, `"soft"`.
    fn name(&self) -> &'static str;

    /// The node.
    fn node(&self) -> NodeId;

    /// Sizes of the node's NIC: number of ports, nodes, the largest payload, queue lengths.
    fn geometry(&self) -> Geometry;

    /// Payloads up to this many bytes are cheaper inside of a descriptor than by DMA. The library
    /// clamps it to 8..=[`INLINE_BYTES`](netvm_abi::descriptor::INLINE_BYTES).
    fn inline_limit(&self) -> usize;

    /// Opens a port for the calling process: driver and NIC serve its command queue when this
    /// returns. All words of its block and area are zero but for the driver's own.
    ///
    /// # Errors
    /// [`Status::TableFull`] when no port is free, [`Status::NotAllowed`] when the number asked for
    /// is taken or reserved, [`Status::NoSuchPort`] when it is out of range,
    /// [`Status::CardGone`], or the system's reason.
    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal>;
}

/// Which port to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenRequest {
    /// This number, or any that is free. 0 belongs to the driver.
    pub port: Option<PortId>,
}

/// One open port: its words, its control calls and its way to wait.
pub trait PortBackend: Send + Sync {
    /// The port's number.
    fn port(&self) -> PortId;

    /// Which life of the port number this is: another one each time that the number is opened on a node.
    /// The library's error epochs start from it.
    fn generation(&self) -> Generation;

    /// The port's block of NIC memory; indices are relative to it ([`netvm_abi::bar::port`]). Called
    /// once. Must answer with whatever it can (never fault) after [`close`](Self::close).
    fn block_words(&self) -> Words;

    /// The port's area in host memory; indices are relative to it ([`netvm_abi::port_area`]). The
    /// library only loads. Called once; as [`block_words`](Self::block_words) after a close.
    fn area_words(&self) -> Words;

    /// The node's status pages ([`netvm_abi::shared_map::status_page`]). The library only loads.
    /// Called once; as [`block_words`](Self::block_words) after a close.
    fn status_words(&self) -> Words;

    // ---- control calls: may park ----

    /// Closes the port: revokes its exports, forgets its imports, unmaps its regions, drops its
    /// commands. Returns when no NIC access to its memory happens any more. Called once, when the
    /// program drops the port, possibly while unwinding (then it must not park, but may block the
    /// thread or finish later by itself). Memory stays readable through [`Memory`] until those
    /// objects are dropped.
    fn close(&self);

    /// Registers `len` bytes of new, zeroed, page-aligned memory as a segment. `len` is not zero
    /// and a multiple of the page size. No page of it need be resident.
    ///
    /// # Errors
    /// [`Status::NoMemory`], [`Status::TableFull`], [`Status::NoSuchPort`] after a close, or the
    /// system's reason.
    fn alloc(&self, len: u64) -> Result<Arc<dyn Memory>, Refusal>;

    /// Registers memory of the process as a segment: whole pages around `start..start + len` are
    /// the unit of mapping, but [`Memory::address`] and [`Memory::size`] are exactly the bytes asked
    /// for. Back ends that cannot say so with [`Refusal::Unsupported`].
    ///
    /// # Safety
    /// `start..start + len` is mapped for reading and writing, stays so until the memory is freed,
    /// and no Rust reference to it exists meanwhile: remote nodes write to it at any time.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`Status::OutOfRange`] when it overlaps another segment.
    unsafe fn adopt(&self, start: NonNull<u8>, len: u64) -> Result<Arc<dyn Memory>, Refusal>;

    /// Registers all memory of the process, as far as it can have any, as the port's only segment. [`Memory::address`] is where it begins.
    /// Back ends that cannot say so with [`Refusal::Unsupported`].
    ///
    /// # Safety
    /// As [`adopt`](Self::adopt), of every range that is named as a local operand.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    unsafe fn adopt_all(&self) -> Result<Arc<dyn Memory>, Refusal> {
        Err(Refusal::Unsupported(
            "only the software card can take all memory of a process at once: adopt the ranges that transfers use",
        ))
    }

    /// Gives a name to a range of a segment. Costs the same for every size: pages are mapped when
    /// they are used.
    ///
    /// # Errors
    /// [`Status::NotAllowed`] when the port already exports the name, [`Status::OutOfRange`],
    /// [`Status::TableFull`].
    fn export(&self, spec: &ExportSpec<'_>) -> Result<ExportId, Refusal>;

    /// Takes the name away and revokes every capability derived from it. Returns when DMAs that
    /// were authorised by them are done and bounced or parked ones will be refused (promise P5).
    ///
    /// # Errors
    /// [`Status::NoSuchExport`] when there is none (any more), [`Status::CardGone`].
    fn unexport(&self, export: ExportId) -> Result<(), Refusal>;

    /// Asks the other node, once, for a capability. The library repeats it where the program wants
    /// to wait.
    ///
    /// # Errors
    /// The other driver's answer ([`Status::NoSuchExport`], [`Status::NoSuchPort`],
    /// [`Status::NotAllowed`], [`Status::TableFull`]), [`Status::NoSuchNode`],
    /// [`Status::LinkLost`], or [`Status::TimedOut`] when `deadline` passes without an answer.
    fn import(&self, request: &ImportRequest<'_>, deadline: Nanos) -> Result<Grant, Refusal>;

    /// Lets go of a capability. Best effort; returns without waiting for the other node.
    fn release(&self, exporter: NodeId, grant: &Grant);

    /// Lends a part of one of the port's exports to a port of some node, for a time that its card measures.
    ///
    /// # Errors
    /// [`Status::NoSuchExport`], [`Status::OutOfRange`], [`Status::NotAllowed`], [`Status::Malformed`], [`Status::NoSuchNode`],
    /// [`Status::TableFull`], [`Status::CardGone`].
    fn lend(&self, spec: &LeaseSpec) -> Result<(LeaseId, Grant), Refusal>;

    /// Asks the card how much of a lease is left: at least so much, by [`now`](Self::now). 0: it is over for good.
    ///
    /// # Errors
    /// [`Status::CardGone`].
    fn lease_left(&self, lease: LeaseId) -> Result<Nanos, Refusal>;

    /// Takes leases back; those that are gone already are left out. Returns when nothing that they allowed is under way.
    ///
    /// # Errors
    /// The port is closed: its leases are over.
    fn recall(&self, leases: &[LeaseId]) -> Result<(), Refusal>;

    // ---- waiting ----

    /// The platform's monotonic clock (virtual time in the simulator).
    fn now(&self) -> Nanos;

    /// After words were stored that a sleeping NIC must see (see the module's rule): wakes it, or
    /// runs it. May be called from several threads at once. Never fails; a dead card shows in
    /// [`PORT_STATE`](netvm_abi::port_area::PORT_STATE).
    fn doorbell(&self);

    /// The port's event count. It changes with every interrupt for the port, every change of
    /// [`PORT_STATE`](netvm_abi::port_area::PORT_STATE) and every [`wake`](Self::wake).
    fn wait_token(&self) -> u32;

    /// Parks the caller until [`wait_token`](Self::wait_token) differs from `token` or `deadline`
    /// comes; [`Nanos::MAX`] is no deadline. May return earlier for no reason. The library reads
    /// the token first, then checks what it waits for, then blocks: so no wake-up is lost. Several
    /// callers may be blocked at once; all of them return.
    fn block(&self, token: u32, deadline: Nanos);

    /// Changes the event count and lets every blocked caller return.
    fn wake(&self);

    /// A descriptor that becomes readable with each change of the event count, for event loops: 8 bytes are read from it to
    /// empty it, and it does not block. It stays open for as long as it is kept, also after a close.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] where the back end has none, or the system's reason.
    fn descriptor(&self) -> Result<Arc<OwnedFd>, Refusal>;

    /// Called where the library would spin on the port's area, the `spins`th time in a row (from
    /// 0): a pause, a yield, a run of an inline NIC, a parked coroutine. Returns within 100 us of
    /// the platform's time, or when the area may have changed.
    fn relax(&self, spins: u32);

    /// Runs `body` beside the caller: a thread or a coroutine of the same process. It ends by
    /// itself, soon after the port has been closed; it is never joined.
    ///
    /// # Errors
    /// The system's reason.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<(), Refusal>;
}

/// One line of an export's access list. A caller may do what all lines that fit it allow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// This node, or any.
    pub node: Option<NodeId>,
    /// This port there, or any.
    pub port: Option<PortId>,
    /// Modes for these callers, at most those of the export.
    pub modes: Modes,
}

/// An export.
#[derive(Clone, Debug)]
pub struct ExportSpec<'a> {
    /// The registered segment.
    pub segment: SegmentId,
    /// The name, unique in the port.
    pub name: Name,
    /// First byte.
    pub start: VirtAddr,
    /// Number of bytes, never zero; the range lies inside of the segment.
    pub len: u64,
    /// The most that any importer may do.
    pub modes: Modes,
    /// Lowest notification number that importers may signal; 0 with `notify_last` 0: none.
    pub notify_first: NotificationId,
    /// Highest notification number that importers may signal.
    pub notify_last: NotificationId,
    /// The shared queue that the range is; without one no importer gets [`Modes::APPEND`].
    pub queue: QueueShape,
    /// The access list: a caller may do what all lines that fit it allow. An empty list lets no port import.
    pub admit: &'a [Admission],
}

/// An import.
#[derive(Clone, Copy, Debug)]
pub struct ImportRequest<'a> {
    /// The exporting node.
    pub node: NodeId,
    /// The exporting port.
    pub port: PortId,
    /// The export's name.
    pub name: &'a Name,
    /// The modes wanted; the grant has at most these.
    pub modes: Modes,
}

/// How a region's memory can be reached.
#[derive(Clone)]
pub enum View {
    /// It is mapped into this process, readable and writable at a fixed place until `owner` is
    /// dropped. An access may take a page fault, nothing worse, even after the region was freed.
    Mapped {
        /// First byte ([`Memory::address`] as a pointer).
        start: NonNull<u8>,
        /// Keeps the mapping alive.
        owner: Arc<dyn Any + Send + Sync>,
    },
    /// Every access goes through [`Memory`]: it is a model, or memory that may be gone and then ends an access in an error.
    Indirect,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped { start, .. } => write!(f, "Mapped({start:?})"),
            Self::Indirect => write!(f, "Indirect"),
        }
    }
}

/// How many bits a word operation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Word32,
    /// 64 bits.
    Word64,
}

impl Width {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Word32 => 4,
            Self::Word64 => 8,
        }
    }
}

/// One registered region: a segment of a port.
///
/// The accesses are used only where [`Memory::view`] is [`View::Indirect`]; the library has checked
/// range and alignment. They may take a modelled page fault and park. Others change the memory at
/// any time: an aligned access of 1, 2, 4 or 8 bytes is one piece, a longer one may be torn anywhere.
pub trait Memory: Send + Sync {
    /// The segment, as [`ExportSpec::segment`] names it.
    fn segment(&self) -> SegmentId;

    /// Its first address; fixed for its life.
    fn address(&self) -> VirtAddr;

    /// Its length in bytes.
    fn size(&self) -> u64;

    /// How it can be reached. Called once.
    fn view(&self) -> View;

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// What the page fault failed with: [`Status::Unmapped`], [`Status::NoMemory`],
    /// [`Status::BusError`].
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status>;

    /// Copies bytes into it; stores with release order.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Status::ReadOnly`].
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status>;

    /// Loads an aligned word, with acquire order.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn load(&self, offset: u64, width: Width) -> Result<u64, Status>;

    /// Stores an aligned word, with release order.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn store(&self, offset: u64, width: Width, value: u64) -> Result<(), Status>;

    /// Replaces an aligned word by `new` if it is `expected`, in one piece with respect to this
    /// process; gives the old value.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn compare_swap(&self, offset: u64, width: Width, expected: u64, new: u64) -> Result<u64, Status>;

    /// Unregisters the segment: unmaps its pages from the NIC (promise P1) and gives the memory
    /// back. Called once, when the last handle has gone, possibly after the port was closed and
    /// possibly while unwinding (see [`PortBackend::close`]). Transfers still under way end with an
    /// error. May park.
    fn free(&self);
}
