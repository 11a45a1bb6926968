use super::*;

fn told(dialler: u8, other: u8) -> Told {
    Told {
        nonces: [[dialler; NONCE_BYTES], [other; NONCE_BYTES]],
        nodes: [NodeId(3), NodeId(4)],
        ids: [30, 40],
    }
}

fn key(of: u8) -> ClusterKey {
    let bytes = data_encoding::BASE64URL_NOPAD.encode(&[of; 32]);
    ClusterKey::parse(&format!("netvm-key-1:{bytes}")).unwrap()
}

fn both(told: &Told) -> (Secrets, Secrets) {
    let side = |dialled| Secrets::new(&key(1), told, dialled).unwrap();
    (side(true), side(false))
}

fn seal(by: &mut Secrets, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = by.seal.number().unwrap();
    by.seal.write(number, &mut bytes, 77, &[content]);
    bytes
}

fn open(by: &mut Secrets, sealed: &[u8]) -> Result<Vec<u8>, Bad> {
    by.open.open(&mut sealed.to_vec()).map(<[u8]>::to_vec)
}

#[test]
fn what_one_side_seals_the_other_opens_once() {
    let (mut dialler, mut other) = both(&told(1, 2));
    for len in [0, 1, 15, 16, 17, 80, 1104, 4176] {
        let content: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let sealed = seal(&mut dialler, &content);
        assert_eq!(sealed.len(), HEAD + len);
        assert_eq!(head(&sealed), Some((Kind::Message, 77)));
        assert!(len < 15 || !sealed.windows(len).any(|part| part == content));
        assert_eq!(open(&mut other, &sealed), Ok(content.clone()));
        assert_eq!(open(&mut other, &sealed), Err(Bad::Replayed));
        assert_eq!(
            open(&mut dialler, &sealed),
            Err(Bad::Forged),
            "sent back to its sender"
        );
    }
    let back = seal(&mut other, b"and back");
    assert_eq!(open(&mut dialler, &back), Ok(b"and back".to_vec()));
}

/// A datagram that is appended to others leaves them as they are.
#[test]
fn datagrams_of_a_run_stand_behind_each_other() {
    let (mut dialler, mut other) = both(&told(1, 2));
    let mut run = vec![9; 5];
    for part in [&b"one"[..], b"two"] {
        let number = dialler.seal.number().unwrap();
        dialler.seal.write(number, &mut run, 5, &[part, part]);
    }
    let len = HEAD + 6;
    assert_eq!((run.len(), &run[..5]), (5 + 2 * len, &[9; 5][..]));
    assert_eq!(open(&mut other, &run[5..5 + len]), Ok(b"oneone".to_vec()));
    assert_eq!(open(&mut other, &run[5 + len..]), Ok(b"twotwo".to_vec()));
}

#[test]
fn a_change_of_any_bit_is_found_and_moves_nothing() {
    let (mut dialler, mut other) = both(&told(1, 2));
    let sealed = seal(&mut dialler, b"a message of some bytes");
    for at in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[at / 8] ^= 1 << (at % 8);
        // In front of the key stands the number: of one that is not to come it is said first.
        let found = open(&mut other, &changed);
        assert!(matches!(found, Err(Bad::Forged | Bad::Replayed)), "bit {at}");
    }
    for len in 0..sealed.len() {
        assert!(open(&mut other, &sealed[..len]).is_err(), "{len} bytes");
    }
    let mut longer = sealed.clone();
    longer.push(0);
    assert_eq!(open(&mut other, &longer), Err(Bad::Forged));
    assert_eq!(open(&mut other, &sealed), Ok(b"a message of some bytes".to_vec()));
}

#[test]
fn lives_directions_and_clusters_have_keys_of_their_own() {
    let (mut dialler, _) = both(&told(1, 2));
    let sealed = seal(&mut dialler, b"content");
    let other_nodes = Told {
        nodes: [NodeId(3), NodeId(5)],
        ..told(1, 2)
    };
    let other_ids = Told {
        ids: [30, 41],
        ..told(1, 2)
    };
    for told in [told(1, 3), told(3, 2), told(2, 1), other_nodes, other_ids] {
        let (mut again, mut other) = both(&told);
        assert_eq!(open(&mut other, &sealed), Err(Bad::Forged), "{told:?}");
        assert_eq!(open(&mut again, &sealed), Err(Bad::Forged), "{told:?}");
    }
    let mut other = Secrets::new(&key(2), &told(1, 2), false).unwrap();
    assert_eq!(open(&mut other, &sealed), Err(Bad::Forged));
}

/// The same number under the same key would show what two messages have in common.
#[test]
fn no_number_comes_twice_and_the_last_one_ends_it() {
    let (mut dialler, mut other) = both(&told(1, 2));
    let first = seal(&mut dialler, b"the same");
    let second = seal(&mut dialler, b"the same");
    assert_ne!(first[HEAD..], second[HEAD..]);
    dialler.seal.next = LAST;
    let last = seal(&mut dialler, b"the last");
    assert_eq!(open(&mut other, &last), Ok(b"the last".to_vec()));
    assert!(dialler.seal.number().is_none() && dialler.seal.number().is_none());
}

#[test]
fn a_letter_is_known_by_the_key_alone() {
    let letters = Letters::new(&key(1));
    let letter = Letter::from(NodeId(7), 99).with_token([5; 32]);
    let proof = Proof {
        nonce: [1; NONCE_BYTES],
        echo: [2; NONCE_BYTES],
        ..Proof::default()
    };
    let proof = proof.stamped(12);
    let mut bytes = vec![7; 3];
    letters.write(&mut bytes, (Kind::Confirm, 6), &letter, &proof, 200);
    let sent = bytes.split_off(3);
    assert_eq!((sent.len(), bytes), (HEAD + 200, vec![7; 3]));
    assert_eq!(head(&sent), Some((Kind::Confirm, 6)));
    assert_eq!(letters.read(&sent), Some((letter, proof)));
    assert_eq!(proof.stamp(), 12);
    assert_eq!(Letters::new(&key(2)).read(&sent), None);
    for at in 0..sent.len() * 8 {
        let mut changed = sent.clone();
        changed[at / 8] ^= 1 << (at % 8);
        assert_eq!(letters.read(&changed), None, "bit {at}");
    }
    for len in 0..sent.len() {
        assert_eq!(letters.read(&sent[..len]), None, "{len} bytes");
    }
    // What it says is read without the key, by a node that has another one.
    assert_eq!(unproven(&sent), Some(letter));
    let mut short = Vec::new();
    letters.write(&mut short, (Kind::Confirm, 6), &letter, &proof, 0);
    assert_eq!(short.len(), HEAD + LETTER_BYTES);
}

#[test]
fn secrets_are_not_shown() {
    let (dialler, _) = both(&told(1, 2));
    let shown = format!("{dialler:?} {:?} {:?}", Letters::new(&key(1)), key(1));
    assert!(
        shown.contains("Wiped(..)") && !shown.contains("key: ["),
        "{shown}"
    );
}

/// The derivation is a format: nodes of two releases with the same one understand each other. The values are those that another
/// implementation (Python's `hmac`, and AES-GCM of its `cryptography`) has computed from the description.
#[test]
fn keys_are_derived_as_written_down() {
    let (mut dialler, _) = both(&told(1, 2));
    let sealed = seal(&mut dialler, b"content");
    assert_eq!(data_encoding::HEXLOWER.encode(&sealed), GOLDEN_MESSAGE);
    let mut letter = Vec::new();
    let letters = Letters::new(&key(1));
    // Of a node with the ABI version that the tag was computed for.
    let mut content = Letter::from(NodeId(7), 99).as_bytes().to_vec();
    content[..2].copy_from_slice(&[5, 0]);
    letters.write(
        &mut letter,
        (Kind::Hello, 0),
        &Letter::read(&content).unwrap(),
        &Proof::default(),
        0,
    );
    assert_eq!(data_encoding::HEXLOWER.encode(&letter[CLEAR..HEAD]), GOLDEN_TAG);
}

const GOLDEN_MESSAGE: &str =
    "4e5301064d000000000000000100000000000000fd718e15a524d5a105690fea2e4a5ba6638f40949c1853";
const GOLDEN_TAG: &str = "72dcbf38c1417fb81834ec289e3db3ad";
