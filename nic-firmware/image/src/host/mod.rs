//! The host, as the card reaches it: its pages through a window, and the words that both share.

pub(crate) mod copy;
pub(crate) mod ivshmem;
mod window;

pub(crate) use window::Window;

use crate::arena::Arena;
use core::sync::atomic::AtomicU32;
use netvm_abi::Geometry;
use netvm_abi::bar::BarMap;
use netvm_abi::shared_map::SharedMap;

/// How the card calls its host.
pub(crate) enum Call {
    /// The host is inside of this image and looks by itself.
    Unneeded,
    /// By a doorbell.
    Bell(ivshmem::Bell),
}

impl Call {
    /// Interrupts the host.
    pub(crate) fn interrupt(&mut self) {
        match self {
            Self::Unneeded => {}
            Self::Bell(bell) => bell.ring(),
        }
    }

    /// From now on the host ends a sleep. Interrupts are masked.
    pub(crate) fn arm(&self) {
        match self {
            Self::Unneeded => {}
            Self::Bell(bell) => bell.arm(),
        }
    }
}

/// What the card and its host both use.
pub(crate) type Shared = netvm_fw_common::host::Shared<Window>;

/// A host inside of this image, with `pages` pages of application memory: all of it static memory of the image.
pub(crate) fn inside(arena: &mut Arena, geometry: &Geometry, pages: usize) -> Shared {
    let mut words =
        |count: u32| -> &'static [AtomicU32] { arena.slice(count as usize, 4096, |_| AtomicU32::new(0)) };
    let bar = words(BarMap::new(geometry).words);
    let shared = words(SharedMap::new(geometry).words);
    Shared {
        bar,
        words: shared,
        pages: Window::inside(arena, pages),
        bounce: Window::inside(arena, geometry.bounce_slots() as usize),
    }
}
