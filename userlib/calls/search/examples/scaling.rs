//! How the search scales, in virtual time: `cargo run --release -p netvm-search --example scaling`.
//!
//! The shipped cores, library and search run in modelled worlds, each node with a member. A playout takes the time that is measured
//! here first; with `--work`, so does each step of a visit, from one node to the next. `-- VISITS SIMULATIONS MEMBERS...`: visits of a phase for
//! each member, playouts of a visit, and how many members, one number after the other: `-- 16384 16 1 64` takes some minutes. `--delay=MICROSECONDS` packs
//! calls for longer, and `--window=VISITS` has more of them under way for each member.

use netvm::{Port, PortConfig};
use netvm_calls::{Address, Aggregation, CallsConfig};
use netvm_process::SoftNode;
use netvm_search::hex::Hex11;
use netvm_search::{Done, Game, Member, MemberConfig, Search, SearchConfig};
use netvm_world::stand::{Actor, Findings, Stand};
use netvm_world::timing::CostModel;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PORT: u16 = 1;
const PATIENCE: Duration = Duration::from_secs(30);

/// What work takes, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Prices {
    playout: u64,
    step: u64,
}

/// How calls are packed, and how many visits may be under way: 0 is the default.
#[derive(Clone, Copy, Debug)]
struct Pack {
    delay_micros: u64,
    window: u32,
}

impl Pack {
    fn member(self) -> MemberConfig {
        let mut calls = CallsConfig::default();
        if self.delay_micros > 0 {
            let delay = Duration::from_micros(self.delay_micros);
            calls = calls.aggregation(Aggregation::Packed { bytes: 8192, delay });
        }
        MemberConfig::default().patience(PATIENCE).calls(calls)
    }

    fn search(self) -> SearchConfig {
        let config = SearchConfig::default().member(self.member());
        if self.window > 0 {
            config.window(self.window)
        } else {
            config
        }
    }
}

impl Prices {
    /// A playout takes this long here, from an empty board: the median of some hundred turns.
    fn of_playouts() -> u64 {
        let mut random = SmallRng::seed_from_u64(1);
        let game = Hex11::new();
        let mut turns: Vec<_> = (0..301)
            .map(|_| {
                let began = Instant::now();
                for _ in 0..1000 {
                    std::hint::black_box(std::hint::black_box(&game).playout(&mut random));
                }
                began.elapsed().as_nanos() as u64
            })
            .collect();
        turns.sort_unstable();
        turns.get(150).copied().unwrap_or(0)
    }

    /// A step of a visit takes this long here: what a member alone needs for a search beside its playouts.
    fn of_steps(playout: u64) -> Result<u64, Box<dyn Error>> {
        let node = SoftNode::builder().start()?;
        let port = Port::open(&node.node(), PortConfig::default())?;
        let list = [Address::new(node.number(), port.id())];
        let mut search = Search::<Hex11>::open(port, &list, SearchConfig::default().simulations(1))?;
        let sum = Arc::new(Mutex::new((0, 0)));
        let counts = Arc::clone(&sum);
        search.pace(move |done| {
            if let Ok(mut sum) = counts.lock() {
                *sum = (sum.0 + u64::from(done.playouts), sum.1 + u64::from(done.steps));
            }
        });
        search.begin(Hex11::new())?;
        let began = Instant::now();
        search.phase(100_000)?;
        let picos = began.elapsed().as_nanos() as u64 * 1000;
        let (playouts, steps) = *sum.lock().map_err(|_| "a panic")?;
        Ok(picos.saturating_sub(playouts * playout) / steps.max(1))
    }

    /// Lets the time of some work pass. What is less than a nanosecond is kept for the next time.
    fn charge(self, actor: &Actor) -> impl FnMut(Done) + Send + 'static {
        let actor = actor.clone();
        let mut owed = 0;
        move |done| {
            owed += u64::from(done.playouts) * self.playout + u64::from(done.steps) * self.step;
            let nanos = owed / 1000;
            owed -= nanos * 1000;
            if nanos > 0 {
                actor.rest(netvm::Nanos(nanos));
            }
        }
    }
}

/// Visits in a second of virtual time, with so many members.
fn rate(
    members: u16,
    visits: u32,
    simulations: u32,
    prices: Prices,
    pack: Pack,
) -> Result<f64, Box<dyn Error>> {
    let mut stand = Stand::new(&CostModel::committed()?, members);
    let list: Vec<_> = (0..members).map(|node| Address::new(node, PORT)).collect();
    let rates = Findings::<f64>::default();
    let (all, found) = (list.clone(), rates.clone());
    stand.process(0, "first", move |actor| {
        let port = actor.open(PORT)?;
        let searched = (|| {
            let config = pack.search().simulations(simulations);
            let mut search = Search::<Hex11>::open(port, &all, config)?;
            search.pace(prices.charge(actor));
            search.begin(Hex11::new())?;
            let visits = visits * u32::from(members);
            // So that the measured phase begins with a tree.
            search.phase(visits / 4)?;
            let began = actor.now();
            search.phase(visits)?;
            let nanos = actor.now().0 - began.0;
            search.census()?;
            found.borrow_mut().push(f64::from(visits) * 1e9 / nanos as f64);
            search.end()
        })();
        if let Err(error) = searched {
            actor.complain(&error.to_string());
        }
        Ok(())
    });
    for node in 1..members {
        let all = list.clone();
        stand.process(node, "other", move |actor| {
            let port = actor.open(PORT)?;
            let took_part = Member::<Hex11>::open(port, &all, pack.member()).and_then(|mut member| {
                member.pace(prices.charge(actor));
                member.run()
            });
            if let Err(error) = took_part {
                actor.complain(&error.to_string());
            }
            Ok(())
        });
    }
    stand.run(1)?;
    let rate = rates.borrow().first().copied();
    Ok(rate.ok_or("no phase was measured")?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (options, numbers): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let numbers: Vec<u32> = numbers
        .iter()
        .map(|word| word.parse())
        .collect::<Result<_, _>>()
        .map_err(
            |_| "numbers: visits of a member, playouts of a visit, members, one number after the other",
        )?;
    let (visits, simulations, sizes) = match numbers[..] {
        [] => (1024, 16, &[1, 2, 4, 8, 16][..]),
        [visits] => (visits, 16, &[1, 2, 4, 8, 16][..]),
        [visits, simulations, ref sizes @ ..] => (visits, simulations, sizes),
    };
    let option = |name: &str| {
        let given = options.iter().find_map(|option| option.strip_prefix(name));
        given.map_or(Ok(0), str::parse::<u32>)
    };
    let pack = Pack {
        delay_micros: option("--delay=")?.into(),
        window: option("--window=")?,
    };
    let playout = Prices::of_playouts();
    let step = match options.iter().any(|option| option == "--work") {
        true => Prices::of_steps(playout)?,
        false => 0,
    };
    let prices = Prices { playout, step };
    println!(
        "a playout takes {:.3} us, a step of a visit {:.3} us",
        prices.playout as f64 / 1e6,
        prices.step as f64 / 1e6
    );
    println!("members    visits/s   of linear");
    let mut alone = 0.0;
    for &members in sizes {
        let began = Instant::now();
        let rate = rate(u16::try_from(members)?, visits, simulations, prices, pack)?;
        if alone == 0.0 {
            alone = rate / f64::from(members);
        }
        println!(
            "{members:7}  {rate:10.0}   {:9.3}    ({:.0?})",
            rate / alone / f64::from(members),
            began.elapsed()
        );
    }
    Ok(())
}
