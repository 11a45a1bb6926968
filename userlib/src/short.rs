//! The short way to post: a write that is one message, on mapped words of a live port, with nothing to
//! report and room in the queue. Nearly every write.
//!
//! Each function here gives nothing, and has done nothing, where that is not so. The caller then goes
//! the general way (`write.rs`, `posting.rs`), which cuts, waits, or finds out what is wrong. So this
//! way makes all the checks of the other, but needs no words for what they find: most are one
//! comparison with something that was worked out when the segment was imported. What a write costs is
//! counted (`cargo xtask bench path`).

use crate::import::{RemoteInner, RemoteSegment};
use crate::port::PortInner;
use crate::region::{RegionIdentity, RegionSlice, across_pages};
use crate::words::{Entry, FastWords};
use netvm_abi::descriptor::{FlagTag, HEAD_WORDS, WriteFields};
use netvm_abi::port_area::PORT_STATE;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{ByteLen, NotificationId, OpId, VirtAddr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of an operation that was posted in the short way. Not zero, so that it comes back in one
/// register, whether or not there is one.
pub(crate) type Number = NonZeroU32;

/// What a short write takes its bytes from.
enum Payload<'a> {
    /// The descriptor.
    Inline(&'a [u8]),
    /// A region, from this address on.
    Local(VirtAddr, RegionIdentity),
}

/// What differs from one short write to another.
struct Message<'a> {
    how: FlagTag,
    len: u64,
    remote: VirtAddr,
    payload: Payload<'a>,
    notification: NotificationId,
}

/// Posts a write of bytes that fit a descriptor. `how` says that they stand there. With `more` the card is not called for it.
#[inline(always)]
pub(crate) fn bytes(
    to: &RemoteSegment,
    offset: u64,
    bytes: &[u8],
    how: FlagTag,
    (notification, more): (NotificationId, bool),
) -> Option<Number> {
    // The caller knows which it is when it is compiled, so neither pays for the other.
    if more {
        post_bytes::<true>(to, offset, bytes, how, notification)
    } else {
        post_bytes::<false>(to, offset, bytes, how, notification)
    }
}

/// Posts a write of a region's slice that is too long for a descriptor. With `more` the card is not called for it.
#[inline(always)]
pub(crate) fn slice(
    to: &RemoteSegment,
    offset: u64,
    slice: &RegionSlice,
    how: FlagTag,
    (notification, more): (NotificationId, bool),
) -> Option<Number> {
    if more {
        post_slice::<true>(to, offset, slice, how, notification)
    } else {
        post_slice::<false>(to, offset, slice, how, notification)
    }
}

#[inline(never)]
fn post_bytes<const MORE: bool>(
    to: &RemoteSegment,
    offset: u64,
    bytes: &[u8],
    how: FlagTag,
    notification: NotificationId,
) -> Option<Number> {
    let to = to.inner();
    let (port, fast) = (&*to.port, to.fast.as_ref()?);
    let len = bytes.len() as u64;
    let last = len.wrapping_sub(1);
    // Some bytes, and they fit. Every path carries the largest inline payload.
    if last >= port.inline_limit {
        return None;
    }
    let remote = to.writable(offset, len, notification)?;
    if across_pages(remote, last) {
        return None;
    }
    let message = Message {
        how,
        len,
        remote,
        payload: Payload::Inline(bytes),
        notification,
    };
    post::<MORE>(to, port, fast, message)
}

#[inline(never)]
fn post_slice<const MORE: bool>(
    to: &RemoteSegment,
    offset: u64,
    slice: &RegionSlice,
    how: FlagTag,
    notification: NotificationId,
) -> Option<Number> {
    let to = to.inner();
    let (port, fast) = (&*to.port, to.fast.as_ref()?);
    // Known when the slice was made, so that it is not asked again whether it crosses a page.
    let (local, last) = (slice.address(), slice.reach());
    if last < port.inline_limit || last >= u64::from(fast.payload()) {
        return None;
    }
    let len = last + 1;
    let remote = to.writable(offset, len, notification)?;
    if across_pages(remote, last) {
        return None;
    }
    let message = Message {
        how,
        len,
        remote,
        payload: Payload::Local(local, slice.region().identity()),
        notification,
    };
    post::<MORE>(to, port, fast, message)
}

/// Posts a message that crosses no page and that grant and path allow.
#[inline(always)]
fn post<const MORE: bool>(
    to: &RemoteInner,
    port: &PortInner,
    fast: &FastWords,
    message: Message<'_>,
) -> Option<Number> {
    let area = fast.area();
    if area.load_acquire(PORT_STATE) != 0 {
        return None;
    }
    let mut guard = port.poster();
    let poster = &mut *guard;
    let posted = poster.queue.commands();
    let command = posted + 1;
    // As `Poster::next_op`, which has another number where this is 0.
    let number = Number::new(command as u32)?;
    if !poster.has_room(area) || !poster.failures.quiet(area) {
        return None;
    }
    let entry = fast.entry(posted as u32);
    let local = match message.payload {
        Payload::Inline(bytes) => {
            poster.stats.inline_bytes += message.len;
            store_payload(entry, bytes);
            VirtAddr(0)
        }
        Payload::Local(local, region) => {
            // Held before: so it is this port's.
            if !poster.holds(region) {
                return None;
            }
            poster.stats.zero_copy_bytes += message.len;
            local
        }
    };
    let head = to.template.fill(&WriteFields {
        how: message.how,
        len: ByteLen(message.len as u32),
        remote: message.remote,
        local,
        notification: message.notification,
        op: OpId(number.get()),
        stream: to.stream.tag(),
    });
    // Relaxed: the entry is this thread's until the doorbell word is stored, with release order; the card has
    // let go of it with the count that was loaded, with acquire order, when the entry became free.
    for (pair, value) in entry.iter().zip(head) {
        pair.store(value, Ordering::Relaxed);
    }
    poster.queue.ring(fast.block(), command);
    to.stream.wrote(command);
    drop(guard);
    if MORE {
        port.owes_call.store(true, Ordering::Relaxed);
        return Some(number);
    }
    // As `PortInner::ring`.
    fast.block().full_barrier();
    if fast.status().load_acquire(status_page::SLEEPING) != 0 {
        port.backend.doorbell();
    }
    Some(number)
}

/// Stores inline payload into an entry.
#[inline(always)]
fn store_payload(entry: &Entry, bytes: &[u8]) {
    let (_, room) = entry.split_at(HEAD_WORDS / 2);
    let store = |pair: &AtomicU64, eight: [u8; 8]| pair.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    if let ([pair, ..], &[a, b, c, d, e, f, g, h]) = (room, bytes) {
        return store(pair, [a, b, c, d, e, f, g, h]);
    }
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut pairs = room.iter();
    for (eight, pair) in whole.iter().zip(pairs.by_ref()) {
        store(pair, *eight);
    }
    if !rest.is_empty()
        && let Some(pair) = pairs.next()
    {
        let last = rest
            .iter()
            .rev()
            .fold(0, |last, &byte| last << 8 | u64::from(byte));
        pair.store(last, Ordering::Relaxed);
    }
}
