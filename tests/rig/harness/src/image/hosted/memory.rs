//! Memory that a host in this process and a card in QEMU share: files, mapped by both.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use netvm_abi::attach::DriverPlace;
use netvm_abi::bar::BarMap;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{Geometry, PAGE_SIZE, PageOffset, Ppn};
use netvm_fw_common::host::Pages;
use rustix::mm::{MapFlags, ProtFlags, mmap};

const PAGE: usize = PAGE_SIZE as usize;
/// Bytes of the host's RAM.
pub(super) const RAM: u64 = 16 << 20;
/// Where in it the driver's memory and the bounce pages are: page numbers. Applications' pages are from 0 on.
const PLACE: DriverPlace = DriverPlace {
    memory: Ppn(256),
    bounce: Ppn(1024),
};

/// Pages. Copies of it name the same ones.
#[derive(Clone, Copy)]
pub(super) struct Window {
    bytes: &'static [AtomicU8],
}

impl Window {
    fn place(&self, page: u64, offset: PageOffset, len: usize) -> Option<&'static [AtomicU8]> {
        let page = self.bytes.chunks_exact(PAGE).nth(usize::try_from(page).ok()?)?;
        page.get(offset.index()..)?.get(..len)
    }
}

impl Pages for Window {
    fn write(&self, page: u64, offset: PageOffset, from: &[u8]) -> bool {
        let Some(place) = self.place(page, offset, from.len()) else {
            return false;
        };
        for (to, &byte) in place.iter().zip(from) {
            to.store(byte, Ordering::Relaxed);
        }
        true
    }

    fn read(&self, page: u64, offset: PageOffset, into: &mut [u8]) -> bool {
        let Some(place) = self.place(page, offset, into.len()) else {
            return false;
        };
        for (byte, from) in into.iter_mut().zip(place) {
            *byte = from.load(Ordering::Relaxed);
        }
        true
    }
}

/// What a card and the host in this process both use.
pub(super) type Shared = netvm_fw_common::host::Shared<Window>;

/// Over both files. The driver's place is not told yet.
pub(super) fn share(nic: &File, ram: &File, geometry: &Geometry) -> Result<Shared> {
    let map = SharedMap::new(geometry);
    let pages = map_file(ram)?;
    let start = |place: Ppn| place.0 as usize * PAGE;
    let bounce = start(PLACE.bounce);
    let bounce = bounce..bounce + geometry.bounce_slots() as usize * PAGE;
    let driver = pages.get(start(PLACE.memory)..).unwrap_or_default();
    Ok(Shared {
        bar: words(map_file(nic)?, BarMap::new(geometry).words)?,
        words: words(driver, map.words)?,
        pages: Window { bytes: pages },
        bounce: Window {
            bytes: pages
                .get(bounce)
                .context("RAM is too small for the bounce pages")?,
        },
    })
}

/// Tells the card of places that are not there: it must go on waiting.
pub(super) fn mislead(shared: &Shared) {
    let beyond = DriverPlace {
        memory: Ppn(RAM / PAGE as u64 - 1),
        bounce: Ppn(u64::MAX),
    };
    beyond.publish(shared.bar);
}

/// Tells the card where the driver's memory is.
pub(super) fn tell(shared: &Shared) {
    PLACE.publish(shared.bar);
}

/// A file of zeroes, and so long.
pub(crate) fn file(path: &Path, len: u64) -> Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.with_context(|| format!("making {}", path.display()))?;
    file.set_len(len)?;
    Ok(file)
}

/// Maps all of a file, for as long as this process runs.
fn map_file(file: &File) -> Result<&'static [AtomicU8]> {
    let len = usize::try_from(file.metadata()?.len())?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) };
    let start = start.context("mapping a file")?;
    // SAFETY: never unmapped; atomics may be changed by others at any time, and the file never shrinks.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// The first `count` words.
fn words(bytes: &'static [AtomicU8], count: u32) -> Result<&'static [AtomicU32]> {
    let count = count as usize;
    let len = count * size_of::<AtomicU32>();
    let bytes = bytes.get(..len).context("a file is too small for its words")?;
    // SAFETY: starts on a page, holds `count` words, stays for ever; any bytes are a word.
    Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), count) })
}
