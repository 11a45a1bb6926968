//! Chapter 17 of `docs/ABI.md` says what the code does: its tables and bytes are read and compared.

use std::collections::BTreeMap;
use std::path::Path;

use netvm_abi::NodeId;
use netvm_soft::udp::ClusterKey;
use netvm_soft::udp::datagram::{self, Kind, Letter, PREFIX, Reason};
use netvm_soft::udp::sealed::{self, Bad, HEAD, LETTER_BYTES, Letters, NONCE_BYTES, Proof, Secrets, Told};
use zerocopy::IntoBytes as _;

const KEY: &str = "netvm-key-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const NODES: [NodeId; 2] = [NodeId(7), NodeId(9)];
const IDS: [u64; 2] = [0x1234_5678_9ABC, 0xDEF0];
const NONCES: [[u8; NONCE_BYTES]; 2] = [[0x11; NONCE_BYTES], [0x22; NONCE_BYTES]];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn chapter() -> String {
    let page = file("../../docs/ABI.md");
    let (_, chapter) = page.split_once("\n## 17. ").expect("chapter 17");
    chapter.split("\n## ").next().unwrap().to_owned()
}

/// The rows of the first table under a heading of the chapter, or before all of them.
fn table(heading: Option<&str>) -> Vec<Vec<String>> {
    let chapter = chapter();
    let text = match heading {
        Some(heading) => {
            chapter
                .split_once(&format!("\n### {heading}\n"))
                .expect(heading)
                .1
        }
        None => &chapter,
    };
    let rows: Vec<Vec<String>> = text
        .lines()
        .take_while(|line| !line.starts_with("### "))
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect()
        })
        .collect();
    assert!(!rows.is_empty(), "{heading:?} has no table");
    rows
}

/// Each row names the bytes of a field: together they are all bytes, and each has what is expected of a field whose name begins so.
fn fields(heading: &str, bytes: &[u8], expected: &[(&str, &[u8])]) {
    let rows = table(Some(heading));
    assert_eq!(rows.len(), expected.len(), "{heading}");
    let mut last = 0;
    for (row, (name, value)) in rows.iter().zip(expected) {
        let (from, to) = row[0].split_once("..").expect("bytes like 0..8");
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        assert_eq!(from, last, "{heading}: {}", row[1]);
        assert!(row[1].starts_with(name), "{heading}: {} is not {name}", row[1]);
        assert_eq!(bytes[from..to], **value, "{heading}: {name}");
        last = to;
    }
    assert_eq!(last, bytes.len(), "{heading}");
}

fn key() -> ClusterKey {
    ClusterKey::parse(KEY).unwrap()
}

fn secrets(dialled: bool) -> Secrets {
    let told = Told {
        nonces: NONCES,
        nodes: NODES,
        ids: IDS,
    };
    Secrets::new(&key(), &told, dialled).unwrap()
}

/// A letter with something everywhere.
fn full_letter() -> Letter {
    let token = std::array::from_fn(|at| at as u8 + 100);
    Letter::from(NODES[0], IDS[0])
        .with_token(token)
        .refusing(Reason::Taken(NodeId(0x0B0C)))
}

fn full_proof() -> Proof {
    let mut proof = Proof::default().stamped(0x0102_0304_0506_0708);
    (proof.nonce, proof.echo) = (NONCES[0], NONCES[1]);
    proof
}

#[test]
fn sizes_and_versions() {
    let rows = table(None);
    let value = |name: &str| -> u64 {
        let row = rows
            .iter()
            .find(|row| row[0] == name)
            .unwrap_or_else(|| panic!("no {name}"));
        row[1].parse().unwrap()
    };
    assert_eq!(rows.len(), 7);
    assert_eq!(value("PREFIX"), PREFIX as u64);
    assert_eq!(value("HEAD"), HEAD as u64);
    assert_eq!(value("LETTER"), size_of::<Letter>() as u64);
    assert_eq!(value("LETTER_BYTES"), LETTER_BYTES as u64);
    assert_eq!(value("VERSION"), datagram::VERSION.into());
    assert_eq!(value("VERSION_SEALED"), sealed::VERSION.into());
    let window = value("WINDOW");
    let (mut dialler, mut other) = (secrets(true), secrets(false));
    let all: Vec<Vec<u8>> = (0..=window)
        .map(|_| {
            let (mut bytes, number) = (Vec::new(), dialler.seal.number().unwrap());
            dialler.seal.write(number, &mut bytes, 1, &[b"x"]);
            bytes
        })
        .collect();
    let mut open = |at: u64| other.open.open(&mut all[at as usize].clone()).map(<[u8]>::len);
    assert_eq!(open(window), Ok(1));
    assert_eq!(open(0), Err(Bad::Replayed), "behind the window");
    assert_eq!((open(1), open(1)), (Ok(1), Err(Bad::Replayed)));
}

#[test]
fn a_datagram_without_a_key() {
    let letter = full_letter();
    let mut bytes = Vec::new();
    datagram::write(&mut bytes, Kind::Refusal, IDS[1], &[letter.as_bytes()], 0);
    let sum = crc32c::crc32c(&bytes[4..]).to_le_bytes();
    let expected: [(&str, &[u8]); 6] = [
        ("CRC32C", &sum),
        ("magic \"NU\": bytes 4e 55", b"NU"),
        ("version", &[datagram::VERSION]),
        ("kind", &[Kind::Refusal as u8]),
        ("the receiver's number", &IDS[1].to_le_bytes()),
        ("content", letter.as_bytes()),
    ];
    fields("Datagram without a key", &bytes, &expected);
}

#[test]
fn letters_and_proofs() {
    let letter = full_letter();
    let expected: [(&str, &[u8]); 6] = [
        ("the sender's ABI_VERSION", &letter.abi().to_le_bytes()),
        ("the sender's node", &[7, 0]),
        ("reason", &[1, 0]),
        ("detail", &[0x0C, 0x0B]),
        ("the number that the sender gives", &IDS[0].to_le_bytes()),
        ("token", &letter.token),
    ];
    fields("Letter", letter.as_bytes(), &expected);
    let proof = full_proof();
    let expected: [(&str, &[u8]); 3] = [
        ("stamp", &[8, 7, 6, 5, 4, 3, 2, 1]),
        ("the sender's random", &NONCES[0]),
        ("the receiver's random", &NONCES[1]),
    ];
    fields("Proof of a letter", proof.as_bytes(), &expected);
}

#[test]
fn a_sealed_datagram() {
    let (letter, proof) = (full_letter(), full_proof());
    let mut bytes = Vec::new();
    Letters::new(&key()).write(&mut bytes, (Kind::Welcome, IDS[1]), &letter, &proof, 0);
    let tag = bytes[20..36].to_vec();
    let expected: [(&str, &[u8]); 8] = [
        ("magic \"NS\": bytes 4e 53", b"NS"),
        ("version", &[sealed::VERSION]),
        ("kind", &[Kind::Welcome as u8]),
        ("the receiver's number", &IDS[1].to_le_bytes()),
        ("number of a message", &[0; 8]),
        ("tag", &tag),
        ("content", letter.as_bytes()),
        ("proof", proof.as_bytes()),
    ];
    fields("Sealed datagram", &bytes, &expected);
}

#[test]
fn kinds_and_reasons() {
    let named: Vec<(String, String)> = Kind::ALL
        .iter()
        .map(|kind| ((*kind as u8).to_string(), format!("{kind:?}")))
        .collect();
    let said: Vec<_> = table(Some("Kinds of datagrams"))
        .iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    assert_eq!(said, named);
    let reasons = [
        ("Taken", Reason::Taken(NodeId(99))),
        ("TooHigh", Reason::TooHigh(99)),
        ("Version", Reason::Version(99)),
        ("Full", Reason::Full),
        ("WantsKey", Reason::WantsKey),
        ("NoKey", Reason::NoKey),
        ("OtherKey", Reason::OtherKey),
    ];
    let rows = table(Some("Reasons"));
    assert_eq!(rows.len(), reasons.len());
    for (row, (name, reason)) in rows.iter().zip(reasons) {
        let letter = Letter::from(NODES[0], 0).refusing(reason);
        let bytes = letter.as_bytes();
        assert_eq!((row[1].as_str(), row[0].clone()), (name, bytes[4].to_string()));
        let detail = if row[2].starts_with('0') { 0 } else { 99 };
        assert_eq!(bytes[6], detail, "{name}");
    }
}

/// The sections of the golden file, each as text and as bytes.
fn golden() -> BTreeMap<String, (String, Vec<u8>)> {
    let text = file("tests/golden/udp.hex");
    text.split("\n[")
        .skip(1)
        .map(|section| {
            let (name, text) = section.split_once("]\n").unwrap();
            let bytes = text
                .lines()
                .flat_map(|line| line.split('#').next().unwrap().split_whitespace())
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect();
            (name.to_owned(), (text.trim_end().to_owned(), bytes))
        })
        .collect()
}

/// The golden bytes were computed by another program, from the text of the chapter alone.
#[test]
fn golden_bytes() {
    let golden = golden();
    // Of a node with the ABI version that the vectors have.
    let mut letter = Letter::from(NODES[0], IDS[0]).as_bytes().to_vec();
    letter[..2].copy_from_slice(&[5, 0]);
    let letter = Letter::read(&letter).unwrap();
    let mut plain = Vec::new();
    datagram::write(&mut plain, Kind::Hello, 0, &[letter.as_bytes()], 0);
    assert_eq!(plain, golden["hello"].1);
    assert_eq!(datagram::read(&plain), Some((Kind::Hello, 0, letter.as_bytes())));

    let letters = Letters::new(&key());
    let mut proof = Proof::default();
    proof.nonce = NONCES[0];
    let mut hello = Vec::new();
    letters.write(&mut hello, (Kind::Hello, 0), &letter, &proof, 0);
    assert_eq!(hello, golden["sealed_hello"].1);
    assert_eq!(letters.read(&golden["sealed_hello"].1), Some((letter, proof)));

    let (mut dialler, mut other) = (secrets(true), secrets(false));
    let (mut message, number) = (Vec::new(), dialler.seal.number().unwrap());
    dialler.seal.write(number, &mut message, IDS[1], &[b"netvm"]);
    assert_eq!(message, golden["sealed_message"].1);
    assert_eq!(other.open.open(&mut message), Ok(&b"netvm"[..]));
    assert_eq!(golden.len(), 3, "sections that no test checks");
}

#[test]
fn the_page_shows_the_golden_bytes() {
    let chapter = chapter();
    assert!(chapter.contains(KEY));
    for (name, (text, _)) in golden() {
        assert!(chapter.contains(&format!("[{name}]\n{text}\n")), "[{name}]");
    }
}
