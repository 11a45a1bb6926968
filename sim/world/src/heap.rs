//! Tables of the cores on the heap of the simulating process.

use netvm_abi::storage::{MakeTable, Storage};

/// Boxed tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heap;

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        (0..len).map(make).collect()
    }
}
