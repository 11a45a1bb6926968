//! Members in processes of their own: this program, started again.

mod support;

use netvm::{Port, PortConfig};
use netvm_calls::{Address, End};
use netvm_process::SoftNode;
use netvm_search::hex::Hex11;
use netvm_search::{Error, Member, Search, SearchConfig};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use support::{Noughts, PATIENCE, patient};

const GAME: &str = "NETVM_SEARCH_GAME";

/// Not a test: what each of the other processes does.
#[test]
fn part() {
    match std::env::var(GAME).as_deref() {
        Ok("hex") => take_part(|port, members| Member::<Hex11>::open(port, members, patient())?.run()),
        Ok("noughts") => take_part(|port, members| Member::<Noughts>::open(port, members, patient())?.run()),
        _ => {}
    }
}

/// Says where it is, hears where all are, and takes part.
fn take_part(run: impl FnOnce(Port, &[Address]) -> netvm_search::Result<()>) {
    let node = SoftNode::builder().start().unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    println!("\nat {} {}", port.node().id(), port.id());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let numbers: Vec<u16> = line
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    let members: Vec<_> = numbers.chunks(2).map(|at| Address::new(at[0], at[1])).collect();
    let own = members.iter().position(|member| member.node == node.number());
    for member in &members[..own.unwrap()] {
        node.connect(&format!("#{}", member.node), PATIENCE).unwrap();
    }
    match run(port, &members) {
        Ok(()) => println!("\nsaid over"),
        Err(error) => println!("\nsaid {error:?}"),
    }
}

/// Another process.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    at: Address,
}

impl Other {
    fn start(game: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "part", "--nocapture", "--test-threads", "1"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env(GAME, game);
        let mut child = command.spawn().unwrap();
        let mut other = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
            at: Address::new(0, 0),
        };
        let at = other.hear("at ");
        let numbers: Vec<u16> = at.split_whitespace().map(|word| word.parse().unwrap()).collect();
        other.at = Address::new(numbers[0], numbers[1]);
        other
    }

    /// The rest of the next line that begins so.
    fn hear(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() != 0 {
            if let Some(rest) = line.strip_prefix(wanted) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended before it said '{wanted}'");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This process with so many others, as far as the search can begin.
fn together(node: &SoftNode, count: usize) -> (Port, Vec<Address>, Vec<Other>) {
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let mut others: Vec<_> = (0..count).map(|_| Other::start("hex")).collect();
    let here = Address::new(node.number(), port.id());
    let members: Vec<_> = [here]
        .into_iter()
        .chain(others.iter().map(|other| other.at))
        .collect();
    tell(&mut others, &members);
    (port, members, others)
}

fn tell(others: &mut [Other], members: &[Address]) {
    let word = |member: &Address| format!("{} {} ", member.node, member.port);
    let list: String = members.iter().map(word).collect();
    for other in others {
        writeln!(other.input, "{list}").unwrap();
    }
}

#[test]
fn processes_search_together() {
    let node = SoftNode::builder().start().unwrap();
    let (port, members, mut others) = together(&node, 2);
    let config = SearchConfig::default().member(patient());
    let mut search = Search::<Hex11>::open(port, &members, config).unwrap();
    search.begin(Hex11::new()).unwrap();
    assert_eq!(search.phase(3000).unwrap().visits, 3000);
    let census = search.census().unwrap();
    assert_eq!((census.evaluated, census.nodes), (3000, 3000));
    assert!(census.leaves.0 > 500, "{census:?}");
    search.end().unwrap();
    for other in &mut others {
        assert_eq!(other.hear("said "), "over");
    }
}

#[test]
fn a_member_that_dies_ends_the_search() {
    let node = SoftNode::builder().start().unwrap();
    let (port, members, mut others) = together(&node, 2);
    let config = SearchConfig::default().member(patient());
    let mut search = Search::<Hex11>::open(port, &members, config).unwrap();
    search.begin(Hex11::new()).unwrap();
    search.phase(500).unwrap();
    let mut doomed = others.remove(0);
    let mut leaves = 0;
    // While visits are under way.
    search.pace(move |done| {
        leaves += u32::from(done.playouts > 0);
        if leaves == 300 && done.playouts > 0 {
            doomed.child.kill().unwrap();
        }
    });
    let error = loop {
        match search.phase(1000) {
            Ok(_) => search.begin(Hex11::new()).unwrap_or(()),
            Err(error) => break error,
        }
    };
    match error {
        Error::Lost { rank: 1, address, .. } => assert_eq!(address, members[1]),
        // The third has heard of it first, and has left.
        Error::Lost { rank: 2, why, .. } => assert_eq!(why, End::Left),
        other => panic!("{other:?}"),
    }
    drop(search);
    // It names the one that has died, or this one, which has left for that.
    let said = others[0].hear("said ");
    assert!(said.starts_with("Lost"), "{said}");
}

#[test]
fn a_search_that_is_dropped_ends_its_members() {
    let node = SoftNode::builder().start().unwrap();
    let (port, members, mut others) = together(&node, 2);
    let config = SearchConfig::default().member(patient());
    let mut search = Search::<Hex11>::open(port, &members, config).unwrap();
    search.begin(Hex11::new()).unwrap();
    search.phase(100).unwrap();
    drop(search);
    for other in &mut others {
        let said = other.hear("said ");
        assert!(said.starts_with("Lost"), "{said}");
    }
}

#[test]
fn a_member_that_plays_another_game_is_found() {
    let node = SoftNode::builder().start().unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let mut others = [Other::start("noughts")];
    let members = [Address::new(node.number(), port.id()), others[0].at];
    tell(&mut others, &members);
    let config = SearchConfig::default().member(patient());
    let mut search = Search::<Hex11>::open(port, &members, config).unwrap();
    search.begin(Hex11::new()).unwrap();
    match search.phase(1000) {
        Err(Error::Calls(netvm_calls::Error::Signature { name, .. })) => assert_eq!(name, "search.birth"),
        other => panic!("{other:?}"),
    }
    drop(search);
    let said = others[0].hear("said ");
    assert!(said.contains("Lost") || said.contains("Signature"), "{said}");
}
