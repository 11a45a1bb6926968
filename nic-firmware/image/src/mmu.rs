//! Address translation and caches: every address is itself; RAM is Normal write-back memory, devices are
//! Device-nGnRnE, code can be executed and not written, everything else the other way round.

use crate::arena::Arena;
use crate::board;
use aarch64_cpu::asm::barrier;
use aarch64_cpu::registers::{MAIR_EL1, ReadWriteable, SCTLR_EL1, TCR_EL1, TTBR0_EL1, Writeable};
use aarch64_paging::Mapping;
use aarch64_paging::descriptor::{El1Attributes, PhysicalAddress};
use aarch64_paging::mair::{Mair, MairAttribute, NormalMemory};
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion, PageTable, Translation, VaRange};
use core::ptr::NonNull;

type Table = PageTable<El1Attributes>;

/// Enough for the few regions there are: one root, a level below it for each half of a terabyte in use, one below that each for
/// devices and RAM, the last at edges.
const TABLES: usize = 32;
/// Level 0 of 4 KiB pages: 48 address bits.
const ROOT_LEVEL: usize = 0;

const WRITE_BACK: NormalMemory = NormalMemory::WriteBackNonTransientReadWriteAllocate;
const MAIR: Mair = Mair::EMPTY
    .with_attribute(0, MairAttribute::DEVICE_NGNRNE)
    .with_attribute(1, MairAttribute::normal(WRITE_BACK, WRITE_BACK));

/// Tables out of the arena; the map is made once and stays.
struct Tables {
    free: &'static mut [Table],
}

impl Translation<El1Attributes> for Tables {
    fn allocate_table(&mut self) -> (NonNull<Table>, PhysicalAddress) {
        let Some((first, rest)) = core::mem::take(&mut self.free).split_first_mut() else {
            panic!("more than {TABLES} translation tables are needed");
        };
        self.free = rest;
        let first = NonNull::from(first);
        (first, PhysicalAddress(first.as_ptr() as usize))
    }

    unsafe fn deallocate_table(&mut self, _table: NonNull<Table>) {
        // Only a map that changes gives tables back; this one does not.
    }

    fn physical_to_virtual(&self, address: PhysicalAddress) -> NonNull<Table> {
        let Some(table) = NonNull::new(address.0 as *mut Table) else {
            panic!("a translation table at address 0");
        };
        table
    }
}

unsafe extern "C" {
    static __text_start: [u8; 0];
    static __text_end: [u8; 0];
    static __rodata_start: [u8; 0];
    static __rodata_end: [u8; 0];
    static __data_start: [u8; 0];
    static __guard: [u8; 0];
    static __stack_bottom: [u8; 0];
    static __arena_end: [u8; 0];
}

/// The map in use.
pub(crate) struct Map(Mapping<Tables, El1And0>);

impl Map {
    /// Maps `range`, so far not mapped, as memory for data: pages of whole devices, which hold what RAM would.
    pub(crate) fn memory(&mut self, range: &core::ops::Range<usize>) {
        let flags = El1Attributes::VALID
            | El1Attributes::ACCESSED
            | El1Attributes::UXN
            | El1Attributes::PXN
            | El1Attributes::ATTRIBUTE_INDEX_1
            | El1Attributes::INNER_SHAREABLE;
        let region = MemoryRegion::new(range.start, range.end);
        let place = PhysicalAddress(range.start);
        if let Err(error) = self.0.map_range(&region, place, flags, Constraints::empty()) {
            panic!("mapping {range:x?}: {error}");
        }
        // The walker sees the new entries, and nothing that follows was fetched without them. What was not mapped is in
        // no TLB.
        barrier::dsb(barrier::ISHST);
        barrier::isb(barrier::SY);
    }
}

/// Switches translation and caches on.
pub(crate) fn start(arena: &mut Arena) -> Map {
    let free = arena.slice(TABLES, 4096, |_| Table::EMPTY);
    let mut map = Mapping::with_asid_and_va_range(Tables { free }, 0, ROOT_LEVEL, El1And0, VaRange::Lower);
    let valid = El1Attributes::VALID | El1Attributes::ACCESSED | El1Attributes::UXN;
    let memory = valid | El1Attributes::ATTRIBUTE_INDEX_1 | El1Attributes::INNER_SHAREABLE;
    let data = memory | El1Attributes::PXN;
    let at = |symbol: *const [u8; 0]| symbol as usize;
    // Only the addresses of linker symbols are taken, nothing is read.
    let text = at(&raw const __text_start)..at(&raw const __text_end);
    let rodata = at(&raw const __rodata_start)..at(&raw const __rodata_end);
    let ram = at(&raw const __data_start)..at(&raw const __guard);
    let stack = at(&raw const __stack_bottom)..at(&raw const __arena_end);
    let device = valid | El1Attributes::ATTRIBUTE_INDEX_0 | El1Attributes::PXN;
    for (range, flags) in [
        (board::DEVICES, device),
        (board::PCI_REGISTERS, device),
        (board::PCI_CONFIG, device),
        (board::BOOT_PAGE, data | El1Attributes::READ_ONLY),
        (text, memory | El1Attributes::READ_ONLY),
        (rodata, data | El1Attributes::READ_ONLY),
        (ram, data),
        (stack, data),
    ] {
        let region = MemoryRegion::new(range.start, range.end);
        if let Err(error) = map.map_range(&region, PhysicalAddress(range.start), flags, Constraints::empty())
        {
            panic!("mapping {range:x?}: {error}");
        }
    }
    MAIR_EL1.set(MAIR.0);
    TCR_EL1.write(
        TCR_EL1::T0SZ.val(16)
            + TCR_EL1::TG0::KiB_4
            + TCR_EL1::SH0::Inner
            + TCR_EL1::ORGN0::WriteBack_ReadAlloc_WriteAlloc_Cacheable
            + TCR_EL1::IRGN0::WriteBack_ReadAlloc_WriteAlloc_Cacheable
            + TCR_EL1::EPD1::DisableTTBR1Walks
            + TCR_EL1::IPS::Bits_40,
    );
    // The register is written here and not by `Mapping::activate`, which counts with an exclusive
    // access: with translation off, memory is Device and exclusives need not work.
    TTBR0_EL1.set(map.root_address().0 as u64);
    // SAFETY: invalidates translations of before, of which there are none that anyone uses.
    unsafe {
        core::arch::asm!(
            "dsb sy",
            "tlbi vmalle1",
            "ic iallu",
            "dsb sy",
            "isb",
            options(nostack)
        )
    };
    // No alignment checks: copies of payload go at any alignment.
    SCTLR_EL1.modify(
        SCTLR_EL1::M::Enable + SCTLR_EL1::A::Disable + SCTLR_EL1::C::Cacheable + SCTLR_EL1::I::Cacheable,
    );
    barrier::isb(barrier::SY);
    Map(map)
}
