//! Where a core under test keeps its tables: on the heap.

use netvm_abi::storage::{MakeTable, Storage};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Tables on the heap, and how many bytes they take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// The sum of all tables made here.
    pub bytes: usize,
}

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        self.bytes += len * size_of::<T>();
        (0..len).map(make).collect()
    }
}

/// Tables on the heap that count how often they are looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingHeap;

/// A table that counts how often it is looked at: see [`looks`].
#[derive(Debug)]
pub struct Counted<T>(Box<[T]>);

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has looked at any counted table so far: a measure of a step's work.
#[must_use]
pub fn looks() -> u64 {
    LOOKS.get()
}

impl<T> Deref for Counted<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        LOOKS.set(LOOKS.get() + 1);
        &self.0
    }
}

impl<T> DerefMut for Counted<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        LOOKS.set(LOOKS.get() + 1);
        &mut self.0
    }
}

impl Storage for CountingHeap {
    type Table<T: 'static> = Counted<T>;
}

impl MakeTable for CountingHeap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Counted<T> {
        Counted((0..len).map(make).collect())
    }
}
