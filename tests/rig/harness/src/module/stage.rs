//! The folder that Kbuild builds in: the module's sources as links, so that nothing that is built lands in the checkout,
//! the crates' objects, and `crates.mk`, which tells the module's `Kbuild` of them:
//!
//! - `$(netvm-crates)`: their objects, to be linked into the module;
//! - `$(netvm-externs)`: what the compiler of the module's own sources must be told.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::crates::Crate;

/// Where the objects go.
const OBJECTS: &str = "crates";

/// Lays `stage` out for `sources` and `crates`. What has not changed is not touched: make goes by times.
pub(super) fn lay(sources: &Path, stage: &Path, crates: &[Crate]) -> Result<()> {
    if !sources.join("Kbuild").is_file() {
        bail!("{} is not there", sources.join("Kbuild").display());
    }
    std::fs::create_dir_all(stage)?;
    let mut wanted = BTreeSet::new();
    link(sources, stage, &mut wanted)?;
    sweep(stage, &wanted)?;
    objects(stage, crates)
}

/// Links every file below `from` into `to`, whose folders are real ones.
fn link(from: &Path, to: &Path, wanted: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (source, at) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            std::fs::create_dir_all(&at)?;
            link(&source, &at, wanted)?;
        } else {
            if std::fs::read_link(&at).ok().as_ref() != Some(&source) {
                // Whatever else has the name is in the way.
                let _ = std::fs::remove_file(&at);
                std::os::unix::fs::symlink(&source, &at)
                    .with_context(|| format!("linking {}", at.display()))?;
            }
            wanted.insert(at);
        }
    }
    Ok(())
}

/// Removes links to sources that are gone.
fn sweep(folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sweep(&entry.path(), wanted)?;
        } else if kind.is_symlink() && !wanted.contains(&entry.path()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Puts the crates' objects where Kbuild takes objects that it has not made itself (`*.o_shipped`).
fn objects(stage: &Path, crates: &[Crate]) -> Result<()> {
    let folder = stage.join(OBJECTS);
    std::fs::create_dir_all(&folder)?;
    let mut text = String::from("# Written by `cargo xtask module`.\n");
    for one in crates {
        let archive = std::fs::read(&one.rlib).with_context(|| format!("reading {}", one.rlib.display()))?;
        let members = members(&archive).with_context(|| format!("reading {}", one.rlib.display()))?;
        for (number, object) in members.into_iter().enumerate() {
            let name = format!("{}-{number}.o", one.name);
            write(&folder.join(format!("{name}_shipped")), object)?;
            writeln!(text, "netvm-crates += {OBJECTS}/{name}")?;
        }
        writeln!(
            text,
            "netvm-externs += --extern {}={}",
            one.name,
            one.rlib.display()
        )?;
    }
    let folders: BTreeSet<&Path> = crates.iter().filter_map(|one| one.rlib.parent()).collect();
    for folder in folders {
        writeln!(text, "netvm-externs += -L dependency={}", folder.display())?;
    }
    write(&stage.join("crates.mk"), text.as_bytes())
}

/// Writes a file unless it holds that already.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// The objects in an archive of ar(5), in the form of GNU: a magic line, then members of a header of 60 bytes and a
/// body, on even places. Names of more than 15 characters stand in a member of their own (`//`), at a given place.
fn members(archive: &[u8]) -> Result<Vec<&[u8]>> {
    const HEADER: usize = 60;
    let mut rest = archive.strip_prefix(b"!<arch>\n").context("not an archive")?;
    let mut names: &[u8] = &[];
    let mut objects = Vec::new();
    while !rest.is_empty() {
        let (header, after) = rest.split_at_checked(HEADER).context("cut off")?;
        let field = |range| {
            header
                .get(range)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
        };
        let name = field(0..16).context("a name that is no text")?.trim_end();
        let size: usize = field(48..58)
            .and_then(|size| size.trim_end().parse().ok())
            .context("a size that is no number")?;
        let (body, after) = after.split_at_checked(size).context("cut off")?;
        rest = after.get(size % 2..).unwrap_or_default();
        let full = match name.strip_prefix('/') {
            Some("/") => {
                names = body;
                continue;
            }
            Some(place) if !place.is_empty() => place
                .parse()
                .ok()
                .and_then(|place: usize| names.get(place..)?.split(|byte| *byte == b'\n').next())
                .context("a name that is not there")?,
            // The archive's own index of symbols.
            Some(_) => continue,
            None => name.as_bytes(),
        };
        if full.strip_suffix(b"/").unwrap_or(full).ends_with(b".o") {
            objects.push(body);
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = format!("{name:<16}{:<32}{:<10}`\n", "", body.len()).into_bytes();
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(2), b'\n');
        bytes
    }

    #[test]
    fn objects_are_found_in_an_archive() {
        let mut archive = b"!<arch>\n".to_vec();
        for (name, body) in [
            ("/", &b"index"[..]),
            ("//", b"a-name-that-is-long.o/\nlib.rmeta-and-more/\n"),
            ("/0", b"first"),
            ("/23", b"no object"),
            ("short.o/", b"second!"),
            ("lib.rmeta/", b"nor this"),
        ] {
            archive.extend(member(name, body));
        }
        assert_eq!(members(&archive).unwrap(), [&b"first"[..], b"second!"]);
        assert!(members(&archive[..archive.len() - 3]).is_err());
        assert!(members(b"something").is_err());
    }
}
