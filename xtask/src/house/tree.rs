//! The text files of the workspace, read once.

use std::path::Path;

use anyhow::{Context as _, Result};

/// One text file.
pub(crate) struct File {
    /// Path from the workspace's root, with `/` between.
    pub(crate) path: String,
    /// What it holds.
    pub(crate) text: String,
}

impl File {
    /// Lines with their numbers from 1, up to the test module at the end of a Rust file.
    pub(crate) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]\nmod ").unwrap_or(self.text.len());
        self.text
            .get(..end)
            .unwrap_or_default()
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line))
    }

    /// The part from the test module on, or everything in a file of tests.
    pub(crate) fn test_text(&self) -> &str {
        if self.is_test() {
            return &self.text;
        }
        self.text
            .find("#[cfg(test)]")
            .and_then(|at| self.text.get(at..))
            .unwrap_or_default()
    }

    /// Is this a file of tests (and not shipped code)? Benchmarks and the rig's machinery are none: what they
    /// show, they do not check.
    pub(crate) fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let folder = self.path.split('/').any(|part| part == "tests");
        (folder && !self.path.starts_with("tests/rig/harness/")) || name.ends_with("tests.rs")
    }

    /// Is this Rust?
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// All of them.
pub(crate) struct Tree {
    /// Sorted by path.
    pub(crate) files: Vec<File>,
}

impl Tree {
    /// Reads every file below `root` that could be ours: no build output, no hidden folders but `.ci`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        walk(root, root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// Does a file or folder of this path exist?
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.iter().any(|file| {
            file.path == path
                || file
                    .path
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/'))
        })
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<()> {
    for entry in folder
        .read_dir()
        .with_context(|| format!("cannot list {}", folder.display()))?
    {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            let ours = !name.starts_with('.') || name == ".ci";
            if ours && !name.starts_with("target") && name != "corpus" {
                walk(root, &path, files)?;
            }
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            // Files that are no text (pictures) have no rules.
            let relative = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            files.push(File { path: relative, text });
        }
    }
    Ok(())
}
