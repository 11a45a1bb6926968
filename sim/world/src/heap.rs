//! Tables of the cores on the heap of the simulating process.

use netvm_abi::storage::{MakeTable, Storage};

/// Boxed tables, and what they take.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Of each table: the type of its entries, and its bytes.
    pub(crate) made: Vec<(&'static str, u64)>,
}

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        self.made
            .push((std::any::type_name::<T>(), (len * size_of::<T>()) as u64));
        (0..len).map(make).collect()
    }
}
