//! 100,000 leases at once, of one port.

use std::time::{Duration, Instant};

use netvm::{Access, Error, LeaseTerms, Lent, Modes, Port, PortConfig, Status};
use netvm_process::SoftNode;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const LEASES: u64 = 100_000;
/// A cache line each.
const PART: u64 = 64;
/// Longer than the test lasts.
const LONG: Duration = Duration::from_secs(3000);

/// Each lease is of its own part of one export. All of them live; each is used by its holder, for its own part alone; one that is
/// taken back takes no other along; and when all are back there is room for as many again.
#[test]
fn a_port_lends_100_000_parts_at_once() {
    let lender = SoftNode::builder().capabilities(1 << 18).start().unwrap();
    let user = SoftNode::builder().start().unwrap();
    user.connect(&format!("#{}", lender.number().0), LONG).unwrap();
    let owner = Port::open(&lender.node(), PortConfig::default()).unwrap();
    let holder = Port::open(&user.node(), PortConfig::default()).unwrap();
    let memory = owner.alloc(LEASES * PART).unwrap();
    let both = Modes::READ | Modes::WRITE;
    let export = owner.export("parts", &memory, .., Access::lent(both)).unwrap();
    let to = (user.number(), holder.id());
    let lend = |at: u64| {
        let terms = LeaseTerms::lasting(LONG).at_most(2 * LONG);
        export.lend(at * PART..(at + 1) * PART, to, both, terms).unwrap()
    };
    let began = Instant::now();
    let mut lent: Vec<Lent> = (0..LEASES).map(lend).collect();
    println!("{LEASES} leases given in {:?}", began.elapsed());

    let mut random = rand::rngs::SmallRng::seed_from_u64(7);
    for _ in 0..2000 {
        let at = random.random_range(0..LEASES);
        let leased = holder.use_lease(lent[at as usize].token()).unwrap();
        leased.write(0, &at.to_le_bytes()).post().unwrap();
        holder.flush_remote(lender.number()).unwrap();
        let mut word = [0; 8];
        memory.read_into(at * PART, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), at);
        let beyond = leased.write(PART - 4, &[1; 8]).post();
        assert!(beyond.is_err(), "its last bytes are another one's");
        assert!(leased.extend(Duration::from_secs(1)).unwrap().left >= Duration::from_secs(1));
    }

    lent.shuffle(&mut random);
    let kept = lent.split_off(LEASES as usize / 2);
    let (gone, left) = (*lent[0].token(), *kept[0].token());
    let began = Instant::now();
    Lent::revoke_all(lent).unwrap();
    println!("{} taken back in {:?}", LEASES / 2, began.elapsed());
    let answer = holder.use_lease(&gone).unwrap().extend(Duration::from_secs(1));
    assert!(
        matches!(&answer, Err(Error::Failed(failure)) if failure.status == Status::CapabilityRefused),
        "{answer:?}"
    );
    holder
        .use_lease(&left)
        .unwrap()
        .extend(Duration::from_secs(1))
        .unwrap();
    Lent::revoke_all(kept).unwrap();
    let again: Vec<Lent> = (0..LEASES).map(lend).collect();
    Lent::revoke_all(again).unwrap();
}
