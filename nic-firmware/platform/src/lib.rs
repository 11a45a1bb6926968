//! NetVM.
