//! Boards: one folder each; everything that differs between machines is in there.

mod qemu_virt;

pub(crate) use qemu_virt::*;
