//! Tables of the cores on the heap of the simulating process.

use crate::effort::Meter;
use netvm_abi::storage::{MakeTable, Storage};
use std::ops::{Deref, DerefMut};

/// Boxed tables, and what they take.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Of each table: the type of its entries, and its bytes.
    pub(crate) made: Vec<(&'static str, u64)>,
    /// Counts each look at a table.
    pub(crate) meter: Meter,
}

/// A table that counts how often its core looks at it.
pub(crate) struct Table<T> {
    entries: Box<[T]>,
    meter: Meter,
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.meter.count();
        &self.entries
    }
}

impl<T> DerefMut for Table<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.meter.count();
        &mut self.entries
    }
}

impl Storage for Heap {
    type Table<T: 'static> = Table<T>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Table<T> {
        self.made
            .push((std::any::type_name::<T>(), (len * size_of::<T>()) as u64));
        Table {
            entries: (0..len).map(make).collect(),
            meter: self.meter.clone(),
        }
    }
}
