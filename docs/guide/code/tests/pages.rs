//! The guide's pages against the code: blocks of Rust, errors, sizes, numbers of measurements.

use std::path::{Path, PathBuf};

use netvm::Status;
use netvm::abi::bar::BarMap;
use netvm::abi::shared_map::SharedMap;
use netvm::abi::{Geometry, PAGE_SIZE, control, descriptor, notification, port_area};
use netvm_process::soft::{DEFAULT_NODES, DEFAULT_UDP_WINDOW, PAGE_TIMEOUT_MILLIS, PEER_TIMEOUT_MILLIS};

/// Files outside of this crate of which pages show pieces.
const SHOWN: [&str; 2] = [
    "userlib/process/tests/conformance.rs",
    "nic-firmware/platform/src/lib.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages: their names and texts.
fn pages() -> Vec<(String, String)> {
    let folder = root().join("docs/guide/src");
    let mut pages: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| (name.clone(), text(&format!("docs/guide/src/{name}"))))
        .collect();
    pages.sort();
    pages
}

fn page(name: &str) -> String {
    text(&format!("docs/guide/src/{name}.md"))
}

/// Every Rust file below a folder.
fn sources(folder: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(bare(&std::fs::read_to_string(path).unwrap()));
        }
    }
}

/// Lines without what they are indented by.
fn bare(code: &str) -> String {
    code.lines().map(|line| line.trim().to_owned() + "\n").collect()
}

/// The cells of the rows of a page's tables, without those that head them.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| {
        let row = row.trim_start_matches("| ").trim_end().trim_end_matches('|');
        row.split(" | ").map(str::trim).collect()
    })
    .collect()
}

/// The table whose first head is this name.
fn table<'a>(page: &'a str, name: &str) -> &'a str {
    let (_, rest) = page
        .split_once(&format!("| `{name}` |"))
        .unwrap_or_else(|| panic!("no table of {name}"));
    rest.split("\n\n").next().unwrap_or_default()
}

/// The texts in backquotes in the first cells of rows.
fn named(page: &str) -> Vec<String> {
    let first = |cell: &str| {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    rows(page).iter().flat_map(|row| first(row[0])).collect()
}

/// The variants of an enum in a file that rustfmt has written.
fn variants(path: &str, name: &str) -> Vec<String> {
    let file = text(path);
    let (_, body) = file.split_once(&format!("pub enum {name} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let variants = body.lines().filter_map(|line| line.strip_prefix("    "));
    let variants = variants.filter(|line| line.starts_with(char::is_uppercase));
    variants
        .map(|line| {
            line.split(|c: char| !c.is_alphanumeric())
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

#[test]
fn every_block_of_rust_is_a_piece_of_a_tested_file() {
    let mut code = Vec::new();
    sources(Path::new(env!("CARGO_MANIFEST_DIR")), &mut code);
    code.extend(SHOWN.iter().map(|path| bare(&text(path))));
    let mut blocks = 0;
    for (name, page) in pages() {
        for rest in page.split("```rust\n").skip(1) {
            let (block, _) = rest.split_once("```").expect("a block ends");
            let wanted = bare(block);
            assert!(
                code.iter().any(|file| file.contains(&wanted)),
                "{name} shows what no file of docs/guide/code has:\n{block}"
            );
            blocks += 1;
        }
        assert!(
            !page.contains("```rust,"),
            "{name}: a block of Rust that is not held"
        );
    }
    assert!(blocks > 10, "{blocks}");
}

#[test]
fn the_summary_lists_every_page() {
    let summary = page("SUMMARY");
    for (name, _) in pages().iter().filter(|(name, _)| name != "SUMMARY.md") {
        assert!(summary.contains(&format!("({name})")), "{name} is in no chapter");
    }
}

#[test]
fn every_error_is_explained() {
    let page = page("errors");
    let mut missing = Vec::new();
    for (path, name) in [
        ("userlib/src/error.rs", "Error"),
        ("userlib/process/src/choice.rs", "OpenError"),
        ("userlib/process/src/soft/mod.rs", "SoftError"),
        ("nic-firmware/soft/src/link_error.rs", "LinkError"),
        ("nic-firmware/soft/src/udp/key_file.rs", "KeyFileError"),
    ] {
        let variants = variants(path, name);
        assert!(variants.len() > 5, "{name}: {variants:?}");
        let named = named(table(&page, name));
        missing.extend(variants.into_iter().filter(|variant| !named.contains(variant)));
    }
    assert_eq!(missing, Vec::<String>::new(), "not in docs/guide/src/errors.md");
    // The statuses, in their order and their own words.
    let said: Vec<_> = rows(table(&page, "Status"))
        .into_iter()
        .map(|row| (row[0].trim_matches('`').to_owned(), row[1].to_owned()))
        .collect();
    let all: Vec<_> = Status::ALL
        .iter()
        .map(|status| (format!("{status:?}"), netvm::explain(*status).to_owned()))
        .collect();
    assert_eq!(said, all);
}

/// The number of a private constant, as its file says it.
fn constant(path: &str, name: &str) -> u64 {
    let file = text(path);
    let (_, rest) = file.split_once(&format!("const {name}: ")).unwrap();
    let (_, value) = rest.split_once("= ").unwrap();
    let (value, _) = value.split_once(';').unwrap();
    match value.split_once(" << ") {
        Some((one, by)) => one.parse::<u64>().unwrap() << by.parse::<u64>().unwrap(),
        None => value.parse().unwrap(),
    }
}

#[test]
fn sizes_are_those_of_the_code() {
    const SOFT: &str = "userlib/process/src/soft/mod.rs";
    let usual = Geometry::default();
    let config = netvm::PortConfig::default();
    let silence = {
        let timers = text("nic-firmware/core/src/config.rs");
        assert!(timers.contains("probe_interval: Nanos::from_millis(100)"));
        assert!(timers.contains("probe_limit: 31"));
        (31 + 1) * 100
    };
    assert!(text("kernel-driver/core/src/attach.rs").contains("page_deadline: Nanos::from_millis(30_000)"));
    for entries in ["segments", "exports", "imports"] {
        assert!(text("kernel-driver/core/src/attach.rs").contains(&format!("{entries}: 1024,")));
    }
    assert!(text("userlib/src/channel/config.rs").contains("capacity: 64,"));
    assert!(text("userlib/src/error.rs").contains("use one up to 895"));
    let pages = constant(SOFT, "PAGE_ROWS") * netvm::abi::page_table::ROW_SLOTS as u64;
    let one_shot = usual.notification_queue - notification::EVENT_COUNTS;
    let wanted = [
        ("commands in its queue", u64::from(descriptor::QUEUE_ENTRIES)),
        ("bytes that travel in a command", constant(SOFT, "INLINE_BYTES")),
        (
            "messages of one `try_post` or `begin`",
            u64::from(descriptor::QUEUE_ENTRIES),
        ),
        (
            "reads, atomics and flushes with an answer",
            u64::from(port_area::REPLY_SLOTS),
        ),
        (
            "failures that are told one by one",
            u64::from(port_area::ERROR_RECORDS),
        ),
        ("staging for bytes that are no region", config.staging_bytes),
        (
            "one-shot notifications that wait at the card",
            u64::from(one_shot),
        ),
        (
            "one-shot notifications that the library takes ahead",
            config.one_shot_backlog as u64,
        ),
        (
            "places of a shared queue, at most",
            u64::from(netvm::abi::shared_queue::MOST_PLACES),
        ),
        ("places of a channel", 64),
        ("bytes of an export's name", control::NAME_BYTES as u64),
        ("nodes that know each other", u64::from(DEFAULT_NODES)),
        ("ports, the driver's included", 64),
        ("messages on their way to a peer", u64::from(usual.window)),
        (
            "messages on their way to a peer, at a node with UDP",
            u64::from(DEFAULT_UDP_WINDOW),
        ),
        ("peers with messages under way at once", u64::from(DEFAULT_NODES)),
        ("payload of a message, at most", u64::from(PAGE_SIZE)),
        (
            "payload of a message over UDP, at least",
            constant("nic-firmware/soft/src/udp/sizes.rs", "EVERY_PATH"),
        ),
        ("reads, atomics and flushes of all ports", u64::from(usual.reads)),
        (
            "capabilities that its exports have given out",
            u64::from(usual.capabilities),
        ),
        ("regions, exports, imports", 1024),
        (
            "bytes of pages that are copied in place",
            pages * u64::from(PAGE_SIZE),
        ),
        ("bytes of a ring to one peer over shared memory", 1 << 20),
        ("silence of a peer over UDP, in milliseconds", silence),
        ("wait for one page, in milliseconds", 30_000),
    ];
    assert!(text("nic-firmware/soft/src/shm/ring.rs").contains("RING_BYTES: usize = 1 << 20;"));
    assert!(text(SOFT).contains("ports: 64,"));
    let page = page("sizing");
    let rows = rows(&page);
    for (what, value) in wanted {
        let row = rows.iter().find(|row| row[0] == what);
        let row = row.unwrap_or_else(|| panic!("no row '{what}'"));
        assert_eq!(row[1], value.to_string(), "{what}");
    }
    // Ranges and words, in rows of their own.
    let counts = format!(
        "| notification numbers that count | 1 to {} |",
        notification::EVENT_COUNTS - 1
    );
    assert!(page.contains(&counts));
    for limits in [PEER_TIMEOUT_MILLIS, PAGE_TIMEOUT_MILLIS] {
        assert!(page.contains(&format!("{} to {} |", limits.start(), limits.end())));
    }
    // No row that nothing holds: beside these there are two of notification numbers, three heads, and three of memory.
    assert_eq!(rows.len(), wanted.len() + 2 + 3 + 3, "{rows:?}");
    for window in [usual.window, DEFAULT_UDP_WINDOW, Geometry::MAX_WINDOW] {
        let geometry = Geometry {
            window,
            nodes: DEFAULT_NODES,
            windows: DEFAULT_NODES,
            page_rows: constant(SOFT, "PAGE_ROWS") as u32,
            staging: usual.staging.max(window),
            reads: usual.reads.max(window),
            ..usual
        };
        let bytes = [
            u64::from(BarMap::new(&geometry).words) * 4,
            u64::from(SharedMap::new(&geometry).words) * 4,
            u64::from(geometry.bounce_slots()) * u64::from(PAGE_SIZE),
        ];
        let [card, driver, bounce] = bytes;
        let row = format!("| {window} | {card} | {driver} | {bounce} |");
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn numbers_of_misses_stand_in_the_pages_that_measured_them() {
    let page = page("misses");
    let mut held = 0;
    for row in rows(&page) {
        let [what, number, link] = row[..] else { continue };
        let Some((_, link)) = link.split_once("](../../evaluation/") else {
            continue;
        };
        let source = text(&format!("docs/evaluation/{}", link.trim_end_matches(')')));
        // A number of instructions is a cell of its own there.
        let wanted = match number.strip_suffix(" instructions") {
            Some(count) => format!("| {count} |"),
            None => number.to_owned(),
        };
        assert!(source.contains(&wanted), "{what}: {number} is not in {link}");
        held += 1;
    }
    assert!(held >= 16, "{held}");
}
