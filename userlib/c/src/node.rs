//! Nodes.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use netvm::{NodeId, Timeout};
use netvm_process::soft::ClusterKey;
use netvm_process::{Opened, SoftNode};

use crate::argument::{Led, copy_text, flags, out, structure, text, text_if_any, timeout};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, Used, handles};

/// A node of the network, which this process works on.
pub struct netvm_node;

handles! {
    netvm_node = 1: Opened;
}

/// `number` counts, also if it is 0.
pub const NETVM_NODE_NUMBER: u32 = 1;
/// UDP may be bound to an address that other machines reach, though there is no key and nothing is encrypted.
pub const NETVM_NODE_INSECURE: u32 = 2;

/// What a software card is to be like. What is 0 or NULL is left to the library.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_node_options {
    /// `sizeof(struct netvm_node_options)`.
    pub size: usize,
    /// NETVM_NODE_...
    pub flags: u32,
    /// The node's number, with NETVM_NODE_NUMBER.
    pub number: u16,
    /// Node numbers are below this.
    pub nodes: u16,
    /// A name that others on this machine find the node by.
    pub name: *const c_char,
    /// An address for links by UDP, such as "127.0.0.1:4800"; port 0: any.
    pub udp: *const c_char,
    /// A file with the key that encrypts UDP; `netvm key new` makes one.
    pub key_file: *const c_char,
    /// Ports of the node.
    pub ports: u16,
    /// Messages that may be under way to a node at once.
    pub window: u16,
    /// With how many nodes messages may be under way at once.
    pub windows: u16,
    /// Not used; 0.
    pub reserved: u16,
    /// Largest payload of a message in bytes.
    pub payload: u32,
    /// Milliseconds of silence after which a peer is lost.
    pub peer_timeout_ms: u32,
    /// Milliseconds that a page may take to come.
    pub page_timeout_ms: u32,
    /// Not used; 0.
    pub reserved2: u32,
}

// SAFETY: integers, and pointers that are looked at only as the header says.
unsafe impl Led for netvm_node_options {
    const FIRST: usize = 64;
    const ZERO: Self = Self {
        size: 0,
        flags: 0,
        number: 0,
        nodes: 0,
        name: std::ptr::null(),
        udp: std::ptr::null(),
        key_file: std::ptr::null(),
        ports: 0,
        window: 0,
        windows: 0,
        reserved: 0,
        payload: 0,
        peer_timeout_ms: 0,
        page_timeout_ms: 0,
        reserved2: 0,
    };
}

const _: () = assert!(size_of::<netvm_node_options>() == netvm_node_options::FIRST);

/// Opens a node by its choice: "auto", "soft", "soft:NAME" for one that others find, "soft://ADDRESS:PORT" for one with UDP,
/// "soft://ADDRESS:PORT?key-file=FILE", "device:0" for the kernel's card. NULL is "auto": what the variable NETVM_NODE says, or the
/// kernel's card if there is one, or the software card.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_node_open(choice: *const c_char, node: *mut *mut netvm_node) -> c_int {
    call(|| {
        let place = out(node, "node")?;
        // SAFETY: the header asks for such arguments, here and below.
        let choice = unsafe { text_if_any(choice) }?.unwrap_or("auto");
        let opened = netvm_process::open(choice)?;
        let made = handle::make(opened)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Starts a software card, and so makes this process a node. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_node_start(
    options: *const netvm_node_options,
    node: *mut *mut netvm_node,
) -> c_int {
    call(|| {
        let place = out(node, "node")?;
        // SAFETY: the header asks for such arguments, here and below.
        let started = unsafe { start(&structure(options)?) }?;
        let made = handle::make(Opened::Soft(started))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// # Safety
/// The texts are texts.
unsafe fn start(options: &netvm_node_options) -> Result<SoftNode> {
    let given = flags(options.flags, NETVM_NODE_NUMBER | NETVM_NODE_INSECURE)?;
    if options.reserved != 0 || options.reserved2 != 0 {
        return Err(Fault::argument(
            libc::EINVAL,
            "what is not used of a structure must be 0",
        ));
    }
    // SAFETY: the caller's.
    let [name, udp, key_file] = unsafe {
        [
            text_if_any(options.name)?,
            text_if_any(options.udp)?,
            text_if_any(options.key_file)?,
        ]
    };
    let mut builder = SoftNode::builder();
    if given & NETVM_NODE_NUMBER != 0 {
        builder = builder.number(options.number);
    }
    if given & NETVM_NODE_INSECURE != 0 {
        builder = builder.insecure();
    }
    if let Some(name) = name {
        builder = builder.name(name);
    }
    if let Some(udp) = udp {
        builder = builder.udp(udp);
    }
    if let Some(file) = key_file {
        let key = ClusterKey::read_file(file)
            .map_err(|error| Fault::Node(libc::EKEYREJECTED, error.to_string()))?;
        builder = builder.key(key);
    }
    if options.nodes > 0 {
        builder = builder.nodes(options.nodes);
    }
    if options.ports > 0 {
        builder = builder.ports(options.ports);
    }
    if options.window > 0 {
        builder = builder.window(options.window);
    }
    if options.windows > 0 {
        builder = builder.windows(options.windows);
    }
    if options.payload > 0 {
        builder = builder.payload(options.payload);
    }
    if options.peer_timeout_ms > 0 {
        builder = builder.peer_timeout(Duration::from_millis(options.peer_timeout_ms.into()));
    }
    if options.page_timeout_ms > 0 {
        builder = builder.page_timeout(Duration::from_millis(options.page_timeout_ms.into()));
    }
    Ok(builder.start()?)
}

/// The software card of a node.
fn soft(node: &Used<Opened>) -> Result<&SoftNode> {
    node.soft().ok_or(Fault::argument(
        libc::EOPNOTSUPP,
        "the kernel's driver links this node to others: only a software card is linked by its program",
    ))
}

/// Links a software card to another one: of this machine by its name or by "#" and its number, or anywhere by the address of its
/// UDP, such as "udp://10.0.0.7:4800". `peer` gets the other node's number; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_node_connect(
    node: *mut netvm_node,
    name: *const c_char,
    timeout_ns: i64,
    peer: *mut u16,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such arguments, here and below.
        let name = unsafe { text(name, "name") }?;
        let patience = match timeout(timeout_ns) {
            Timeout::Now => Duration::ZERO,
            Timeout::After(span) => span,
            // A hundred years: no longer than a clock can count.
            Timeout::Never => Duration::from_secs(100 * 366 * 24 * 3600),
        };
        let linked = soft(&handle::get(node)?)?.connect(name, patience)?;
        // SAFETY: as above.
        unsafe { crate::argument::set(peer, linked.0) };
        Ok(())
    })
}

/// The node's number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_node_id(node: *mut netvm_node, id: *mut u16) -> c_int {
    call(|| {
        let place = out(id, "id")?;
        let number = handle::get(node)?.node().id();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(number.0) };
        Ok(())
    })
}

/// Whether the link of a software card to a node is up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_node_is_up(node: *mut netvm_node, peer: u16, up: *mut bool) -> c_int {
    call(|| {
        let place = out(up, "up")?;
        let is_up = soft(&handle::get(node)?)?.is_up(NodeId(peer));
        // SAFETY: the header asks for such a place.
        unsafe { place.set(is_up) };
        Ok(())
    })
}

/// The address that the UDP of a software card is bound to, into `address`, which has room for `size` bytes; 64 are enough. -ENOENT
/// if it has no UDP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_node_udp_address(
    node: *mut netvm_node,
    address: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        let bound = soft(&handle::get(node)?)?.udp_address();
        let bound = bound.ok_or(Fault::argument(libc::ENOENT, "the node has no UDP"))?;
        // SAFETY: the header asks for such a place.
        unsafe { copy_text(&bound.to_string(), address, size) }
    })
}

/// Lets go of a node. It goes on until everything that was made from it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_node_close(node: *mut netvm_node) -> c_int {
    call(|| handle::close(node))
}
