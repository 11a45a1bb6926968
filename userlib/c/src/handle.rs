//! Handles: numbers that look like pointers.
//!
//! A handle is never followed. Its upper bits say of which kind it is, the rest is a key of that kind's table, with a
//! generation. So a handle that was closed, is of another kind, was never made, or was made before a `fork`, is told from
//! one that is in use, and a call with it answers `-EBADF`. An object that is closed during a call lives until the call returns.
//!
//! The tables are sharded by thread and need no lock.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_process::Life;
use sharded_slab::{Config, DefaultConfig, Entry, Slab};

use crate::fault::{Fault, Result};

/// Upper bits, for the kind.
const KIND_BITS: usize = 6;

/// How the bits of a key are divided: what is left to the generation is at least 27 bits.
#[derive(Debug)]
struct Keys;

impl Config for Keys {
    const MAX_THREADS: usize = DefaultConfig::MAX_THREADS;
    const INITIAL_PAGE_SIZE: usize = DefaultConfig::INITIAL_PAGE_SIZE;
    // 131,040 objects of a kind for each thread that makes some.
    const MAX_PAGES: usize = 12;
    const RESERVED_BITS: usize = KIND_BITS;
}

/// An object, and the process that it was made in.
struct Made<T> {
    life: Life,
    /// A thread has ended its handle. Of several that try, one has.
    closed: AtomicBool,
    object: T,
}

/// The objects of one kind.
pub(crate) struct Table<T: 'static>(LazyLock<Slab<Made<T>, Keys>>);

impl<T: Send + Sync> Table<T> {
    /// Of none.
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Slab::new_with_config::<Keys>))
    }
}

/// What a handle of C stands for.
pub(crate) trait Handle: Sized {
    /// What lives behind it.
    type Object: Send + Sync + 'static;
    /// Tells the kinds apart: 1 to 63.
    const KIND: usize;
    /// What the header calls it.
    const NAME: &'static str;

    /// Where its objects are.
    fn table() -> &'static Table<Self::Object>;
}

/// An object in use: it is not destroyed meanwhile.
pub(crate) struct Used<T: 'static>(Entry<'static, Made<T>, Keys>);

impl<T> std::ops::Deref for Used<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.object
    }
}

const KEY_MASK: usize = usize::MAX >> KIND_BITS;

/// Gives an object a handle.
pub(crate) fn make<H: Handle>(object: H::Object) -> Result<*mut H> {
    let life = Life::present()?;
    match H::table().0.insert(Made {
        life,
        closed: AtomicBool::new(false),
        object,
    }) {
        Some(key) => Ok(std::ptr::without_provenance_mut(
            key | H::KIND << (usize::BITS as usize - KIND_BITS),
        )),
        None => Err(Fault::argument(
            libc::EMFILE,
            "this thread has made all the handles of this kind that there may be: close some",
        )),
    }
}

/// The key of a handle of this process.
fn key<H: Handle>(handle: *const H) -> Result<usize> {
    let bits = handle.addr();
    if bits == 0 {
        return Err(Fault::null(H::NAME));
    }
    if bits >> (usize::BITS as usize - KIND_BITS) != H::KIND {
        return Err(Fault::stale(H::NAME));
    }
    Ok(bits & KEY_MASK)
}

/// The object of a handle.
#[inline]
pub(crate) fn get<H: Handle>(handle: *const H) -> Result<Used<H::Object>> {
    let used = H::table().0.get(key(handle)?).ok_or(Fault::stale(H::NAME))?;
    if used.life.is_present() {
        Ok(Used(used))
    } else {
        Err(Fault::argument(
            libc::EBADF,
            "the handle was made by the parent of this process, before a fork: open a node of this process's own",
        ))
    }
}

/// Ends a handle. The object is destroyed here, or by the last of the calls that use it now.
pub(crate) fn close<H: Handle>(handle: *mut H) -> Result<()> {
    // Looks whether it is this process's, which alone may destroy it.
    let used = get(handle)?;
    if used.0.closed.swap(true, Ordering::AcqRel) {
        return Err(Fault::stale(H::NAME));
    }
    H::table().0.remove(key(handle)?);
    drop(used);
    Ok(())
}

/// Makes types of C into handles.
macro_rules! handles {
    ($($name:ident = $kind:literal: $object:ty;)*) => {$(
        impl crate::handle::Handle for $name {
            type Object = $object;
            const KIND: usize = $kind;
            const NAME: &'static str = stringify!($name);

            fn table() -> &'static crate::handle::Table<$object> {
                static TABLE: crate::handle::Table<$object> = crate::handle::Table::new();
                &TABLE
            }
        }
    )*};
}

pub(crate) use handles;
