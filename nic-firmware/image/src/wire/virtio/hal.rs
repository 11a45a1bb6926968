//! What the virtio crate asks of the machine: memory for its queues, and addresses. Every address is itself, and devices
//! see what caches hold.

use crate::board;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

const PAGE: usize = 4096;
/// Two queues of 256 take six, one of 8 two.
const PAGES: usize = 8;

/// Memory of queues, all zeroes at the start.
#[repr(C, align(4096))]
struct Pool(UnsafeCell<[[u8; PAGE]; PAGES]>);

// SAFETY: only addresses of it are taken; each page is given out once.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(UnsafeCell::new([[0; PAGE]; PAGES]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// This machine.
pub(crate) struct Machine;

// SAFETY: pages come from a pool of this image, each once, aligned and zeroed; register addresses are checked against
// the range that is mapped for them.
unsafe impl Hal for Machine {
    fn dma_alloc(pages: usize, _direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let first = USED.fetch_add(pages, Ordering::Relaxed);
        let place = POOL.0.get().cast::<u8>().wrapping_add(first * PAGE);
        match NonNull::new(place).filter(|_| first + pages <= PAGES) {
            Some(place) => (place.addr().get() as PhysAddr, place),
            // Address 0 is the crate's word for "none".
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(_address: PhysAddr, _place: NonNull<u8>, _pages: usize) -> i32 {
        // Queues stay for ever. The pool never gives a page out twice.
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, size: usize) -> NonNull<u8> {
        let start = address as usize;
        let mapped = board::PCI_REGISTERS;
        match NonNull::new(start as *mut u8) {
            Some(place) if start >= mapped.start && start.saturating_add(size) <= mapped.end => place,
            _ => panic!("a device's registers are at {address:#x}, which is not mapped"),
        }
    }

    unsafe fn share(buffer: NonNull<[u8]>, _direction: BufferDirection) -> PhysAddr {
        buffer.addr().get() as PhysAddr
    }

    unsafe fn unshare(_address: PhysAddr, _buffer: NonNull<[u8]>, _direction: BufferDirection) {}
}
