//! A capability's slot that is published while the card copies it: a reader that finds it valid has the words that
//! belong to it, and not the secret of the one that stood there before.

use loom::sync::Arc;
use loom::thread;
use netvm_abi::capability::{CAPABILITY_WORDS, Capability, CapabilityEntry, copy_entry};
use netvm_abi::words::SharedWords;
use netvm_abi::{PortId, WordIndex};
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

const AT: WordIndex = WordIndex(0);
const OLD: u64 = 0x1111_1111_2222_2222;
const NEW: u64 = 0x3333_3333_4444_4444;

/// Words 0, 8 and 9 are watched: validity and the secret.
fn slot(
    flaw: Flaw,
    copy: fn(&Words) -> [u32; CAPABILITY_WORDS],
    found: Seen,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let words = Arc::new(Words::watching(flaw, CAPABILITY_WORDS as u32, [0, 8, 9]));
        let entry = |secret| Capability {
            port: PortId(1),
            secret,
            ..Capability::NOTHING
        };
        // What was revoked before; the card has answered the barrier.
        entry(OLD).publish(&*words, AT);
        Capability::retract(&*words, AT);
        let driver = {
            let words = words.clone();
            thread::spawn(move || entry(NEW).publish(&*words, AT))
        };
        let copied = copy(&words).map(std::sync::atomic::AtomicU32::new);
        if let Some(entry) = CapabilityEntry::of(&copied[..]) {
            found.mark();
            assert_eq!(entry.secret(), NEW, "valid, with another's secret");
        }
        driver.join().unwrap();
    }
}

fn in_order(words: &Words) -> [u32; CAPABILITY_WORDS] {
    copy_entry(words, AT)
}

/// All words at once: `load_slice` promises no order among them.
fn at_once(words: &Words) -> [u32; CAPABILITY_WORDS] {
    let mut copied = [0; CAPABILITY_WORDS];
    words.load_slice(AT, &mut copied);
    copied
}

#[test]
fn a_valid_copy_has_the_words_that_belong_to_it() {
    let found = Seen::new();
    explore(
        "capability, copied",
        None,
        slot(Flaw::None, in_order, found.clone()),
    );
    assert!(found.count() > 0, "it was found valid at least once");
    must_fail(
        "capability, no order",
        None,
        slot(Flaw::NoOrder, in_order, Seen::new()),
    );
    must_fail(
        "capability, all words at once",
        None,
        slot(Flaw::None, at_once, Seen::new()),
    );
}
