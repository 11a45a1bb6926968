//! How large the image is, section by section: read out of its ELF file.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

/// A section that takes memory.
#[derive(Serialize)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) loaded: bool,
}

/// What the image takes.
#[derive(Serialize)]
pub(super) struct Sizes {
    pub(super) image: PathBuf,
    pub(super) loaded_bytes: u64,
    pub(super) static_bytes: u64,
    pub(super) sections: Vec<Section>,
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.image.display())?;
        writeln!(f, "{:<18}{:>12}  in the image", "section", "bytes")?;
        for section in &self.sections {
            let loaded = if section.loaded { "yes" } else { "no" };
            writeln!(f, "{:<18}{:>12}  {loaded}", section.name, section.bytes)?;
        }
        writeln!(
            f,
            "loaded: {} bytes; static memory in all: {} bytes",
            self.loaded_bytes, self.static_bytes
        )
    }
}

/// Sections that take memory, out of a 64-bit little-endian ELF file.
pub(super) fn measure(elf: &[u8]) -> Result<Sizes> {
    let number = |at: usize, len: usize| -> Result<u64> {
        let bytes = elf
            .get(at..at + len)
            .context("the image's ELF file is cut short")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |sum, &byte| (sum << 8) | u64::from(byte)))
    };
    let place = |at: usize, len: usize| Ok::<_, anyhow::Error>(usize::try_from(number(at, len)?)?);
    if elf.get(..4) != Some(b"\x7fELF") {
        bail!("the image is no ELF file");
    }
    let (table, size, count, names) = (place(0x28, 8)?, place(0x3A, 2)?, place(0x3C, 2)?, place(0x3E, 2)?);
    let strings = place(table + names * size + 0x18, 8)?;
    let mut sections = Vec::new();
    for index in 0..count {
        let at = table + index * size;
        // SHF_ALLOC: it takes memory. SHT_NOBITS: but no room in the file.
        let (kind, flags, bytes) = (number(at + 4, 4)?, number(at + 8, 8)?, number(at + 0x20, 8)?);
        if flags & 2 == 0 || bytes == 0 {
            continue;
        }
        let name = elf.get(strings + place(at, 4)?..).unwrap_or_default();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        sections.push(Section {
            name: String::from_utf8_lossy(name).into_owned(),
            bytes,
            loaded: kind != 8,
        });
    }
    Ok(Sizes {
        image: super::image(),
        loaded_bytes: sections
            .iter()
            .filter(|section| section.loaded)
            .map(|section| section.bytes)
            .sum(),
        static_bytes: sections.iter().map(|section| section.bytes).sum(),
        sections,
    })
}
