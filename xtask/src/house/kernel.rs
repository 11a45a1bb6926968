//! Headers of Linux that its own rules keep from drivers.

use super::tree::Tree;

const MODULE: &str = "kernel-driver/module/";

/// Each says so of itself. They make a physical address of a bus address, which is wrong behind an IOMMU that translates;
/// in the rig the two are the same, so no scenario would see it.
const INTERNAL: [&str; 2] = ["linux/dma-direct.h", "linux/dma-map-ops.h"];

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let ours = tree.files.iter().filter(|file| file.path.starts_with(MODULE));
    let lines = ours.flat_map(|file| file.text.lines().zip(1..).map(move |(line, at)| (file, line, at)));
    let includes = lines.filter(|(_, line, _)| line.trim_start().starts_with("#include"));
    includes
        .filter_map(|(file, line, at)| {
            let header = INTERNAL.iter().find(|header| line.contains(**header))?;
            Some(format!(
                "{}:{at}: <{header}> is for the kernel's own DMA code; a driver keeps what it needs",
                file.path
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_is_not_for_drivers_is_found() {
        let tree = Tree::of(&[
            (
                "kernel-driver/module/shim/pci.c",
                "#include <linux/dma-mapping.h>\n# no\n#include <linux/dma-direct.h>\n/* linux/dma-direct.h */\n",
            ),
            ("docs/x.md", "#include <linux/dma-direct.h>\n"),
        ]);
        let wrong = check(&tree);
        assert!(
            wrong.len() == 1 && wrong[0].starts_with("kernel-driver/module/shim/pci.c:3:"),
            "{wrong:?}"
        );
    }
}
