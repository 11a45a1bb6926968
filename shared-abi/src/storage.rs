//! Where a core keeps its tables: lent by the platform, sized by the [`Geometry`](crate::Geometry).

use core::ops::DerefMut;

/// A way to hold a table of fixed length: boxed slices on a platform with a heap, `&'static mut`
/// slices in a firmware image.
pub trait Storage {
    /// The holder of a table of `T`.
    type Table<T: 'static>: DerefMut<Target = [T]>;
}

/// Tables that live in static memory.
#[derive(Clone, Copy, Debug)]
pub struct Static;

impl Storage for Static {
    type Table<T: 'static> = &'static mut [T];
}

/// Makes tables; a platform implements it together with [`Storage`].
pub trait MakeTable: Storage {
    /// A table of `len` entries, each made by `make`.
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Self::Table<T>;
}
