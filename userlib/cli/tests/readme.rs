//! The commands of README and of the guide, as they are written there: for an ordinary user, with no capability and no memory that may
//! be locked.
//!
//! As root, they run in a network of their own, so that no port and no name is taken; else beside what the user runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// README, and the pages of the guide.
fn documents() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = root.join("docs/guide/src");
    let entries = std::fs::read_dir(&guide).expect("the guide");
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.expect("a page").path()).collect();
    pages.sort();
    pages.insert(0, root.join("README.md"));
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a document");
    pages.iter().map(read).collect()
}

/// Ends at the first command that fails.
const RULES: &str = "set -eu\nexport PATH=\"$PWD:$PATH\" TMPDIR=\"$PWD/files\"\nmkdir files\n";

/// Gives up what an ordinary user does not have.
const POWERLESS: &str = "prlimit --memlock=0:0 setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
                         --bounding-set=-all --no-new-privs";

/// The commands of each block of shell that run `netvm`, or clean up behind it.
fn blocks(document: &str) -> Vec<Vec<String>> {
    let blocks = document.split("```sh\n").skip(1);
    let commands = blocks.map(|rest| {
        let (block, _) = rest.split_once("```").expect("a block ends");
        let lines = block.lines().map(|line| {
            let (command, _) = line.split_once('#').unwrap_or((line, ""));
            command
                .trim()
                .replace("cargo run --release --bin netvm --", "netvm")
                .replace("10.0.0.1", "127.0.0.1")
        });
        let ours = |line: &String| ["netvm ", "rm "].iter().any(|begin| line.starts_with(begin));
        lines.filter(ours).collect()
    });
    commands.filter(|block: &Vec<_>| !block.is_empty()).collect()
}

/// A script that runs them block by block. What serves goes on until its block is over, and then leaves nothing.
fn script(blocks: &[Vec<String>]) -> String {
    let mut script = RULES.to_owned();
    for block in blocks {
        script.push_str("(\ntrap 'kill $(jobs -p) || true; wait' EXIT\n");
        for command in block {
            let _ = if command.contains(" serve ") || command.contains(" relay ") {
                writeln!(
                    script,
                    "echo '$ {command} &'; : > said; {command} > said & until [ -s said ]; do kill -0 $!; sleep 0.05; done"
                )
            } else {
                writeln!(script, "echo '$ {command}'; {command}")
            };
        }
        script.push_str(")\n");
    }
    script.push_str("rmdir files\necho all was well\n");
    script
}

/// A folder that every user may write to, with the program.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("netvm-readme-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        let folder = Self(path);
        // The folder of the build may be closed to others.
        std::fs::copy(env!("CARGO_BIN_EXE_netvm"), folder.0.join("netvm")).expect("a copy of netvm");
        let open = Command::new("chmod").args(["-R", "777"]).arg(&folder.0).status();
        assert!(open.expect("chmod starts").success());
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What runs a script for an ordinary user.
fn ordinary() -> Vec<String> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    if !rustix::process::geteuid().is_root() {
        return words("prlimit --memlock=0:0");
    }
    let own = Command::new("unshare").args(["--net", "true"]).output();
    if !own.is_ok_and(|made| made.status.success()) {
        eprintln!("no network of their own may be made: the commands run beside what this machine runs");
        return words(POWERLESS);
    }
    let inside = format!("ip link set lo up && exec {POWERLESS} \"$@\"");
    [words("unshare --net sh -c"), vec![inside, "sh".into()]].concat()
}

#[test]
fn every_command_works_for_an_ordinary_user() {
    let documents = documents();
    let of_readme = blocks(&documents[0]);
    let count: usize = of_readme.iter().map(Vec::len).sum();
    assert!(
        of_readme.len() >= 5 && count >= 10,
        "README has other commands: {of_readme:?}"
    );
    let blocks: Vec<_> = documents.iter().flat_map(|document| blocks(document)).collect();
    assert!(
        blocks.len() >= of_readme.len() + 6,
        "the guide has other commands: {blocks:?}"
    );
    let folder = Folder::new();
    let mut runner = ordinary();
    runner.extend(["timeout", "400", "bash", "-c"].map(str::to_owned));
    let (program, words) = runner.split_first().expect("a program");
    let output = Command::new(program)
        .args(words)
        .arg(script(&blocks))
        .current_dir(&folder.0)
        .output()
        .expect("prlimit, setpriv and unshare are of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.ends_with("all was well\n"),
        "{}\n{said}\n{complained}",
        output.status
    );
    println!("{said}");
}
