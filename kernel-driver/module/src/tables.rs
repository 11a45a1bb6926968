// SPDX-License-Identifier: GPL-2.0

//! Tables that the module lends to the host core: kernel memory, perhaps not contiguous.

use core::ops::{Deref, DerefMut};
use kernel::prelude::*;
use netvm_abi::storage::{MakeTable, Storage};

/// A table.
pub(crate) struct Table<T>(KVVec<T>);

impl<T> Deref for Table<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.as_slice()
    }
}

impl<T> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_mut_slice()
    }
}

impl<T> Table<T> {
    /// A table of `len` entries.
    pub(crate) fn new(len: usize, mut make: impl FnMut(usize) -> T) -> Result<Self> {
        let mut entries = KVVec::with_capacity(len, GFP_KERNEL)?;
        for index in 0..len {
            // There is room: nothing is allocated here.
            entries.push(make(index), GFP_KERNEL)?;
        }
        Ok(Self(entries))
    }
}

impl<T> Table<Option<T>> {
    /// The same table, if every entry is there.
    pub(crate) fn complete(self) -> Option<Table<T>> {
        let mut entries = KVVec::with_capacity(self.0.len(), GFP_KERNEL).ok()?;
        for entry in self.0 {
            entries.push(entry?, GFP_KERNEL).ok()?;
        }
        Some(Table(entries))
    }
}

/// Makes tables. The core's way to ask for one cannot fail; where there is no memory, the table is
/// empty, and [`failed`](Self::failed) says so to the code that asked the core.
#[derive(Default)]
pub(crate) struct Tables {
    failed: bool,
}

impl Tables {
    /// Whether a table could not be had.
    pub(crate) const fn failed(&self) -> bool {
        self.failed
    }
}

impl Storage for Tables {
    type Table<T: 'static> = Table<T>;
}

impl MakeTable for Tables {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Table<T> {
        Table::new(len, make).unwrap_or_else(|_| {
            self.failed = true;
            Table(KVVec::new())
        })
    }
}
