//! A node for each of 64 processes of one machine: each works with a few others at once, all come to their end, and nothing is left.

mod support;

use std::time::{Duration, Instant};

use netvm::{Access, Port, PortConfig, PortId, RemoteSegment, Timeout};
use netvm_kit::length::is_long;
use netvm_process::SoftNode;

use support::{Held, Player, scene, told, until, wait_for_test};

/// Node numbers of this program: those from 200 on, which no other test has.
const FIRST: u16 = 200;
const PROCESSES: u16 = 64;
/// How far away the others are that a process works with, in a ring of all.
const OTHERS: [u16; 4] = [1, 2, 7, 31];
/// Bytes that a process has for each that works with it.
const PART: u64 = 3 * 4096;
const SERVED: PortId = PortId(7);
/// With many processes for each core an answer takes long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What all of it may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Not a test: what each of the processes does.
#[test]
fn play() {
    match scene().as_deref() {
        None => {}
        Some("one") => one(
            told("NETVM_AT").parse().unwrap(),
            told("NETVM_TURNS").parse().unwrap(),
        ),
        Some(other) => panic!("no scene {other}"),
    }
}

/// The bytes that a process writes in a turn.
fn written(at: u16, turn: u64) -> Vec<u8> {
    let len = PART - 4096 - 8 * turn;
    (0..len)
        .map(|byte| (byte * 7 + turn * 3 + u64::from(at)) as u8)
        .collect()
}

fn one(at: u16, turns: u64) {
    // Each second one has two windows for its four peers, and for the four whose peer it is.
    let windows = if at.is_multiple_of(2) { 3 } else { 64 };
    let builder = SoftNode::builder()
        .nodes(FIRST + PROCESSES)
        .windows(windows)
        .number(FIRST + at);
    let node = builder.start().unwrap();
    let served = Port::open(&node.node(), PortConfig::number(SERVED.0)).unwrap();
    let memory = served.alloc(PART * OTHERS.len() as u64).unwrap();
    let access = Access::everyone().notify(1..=1);
    let _export = served.export("memory", &memory, .., access).unwrap();
    println!("\nready");
    wait_for_test();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let peers: Vec<RemoteSegment> = OTHERS
        .iter()
        .map(|far| {
            let number = FIRST + (at + far) % PROCESSES;
            let peer = node.connect(&format!("#{number}"), PATIENCE).unwrap();
            port.import(peer, SERVED, "memory", PATIENCE).unwrap()
        })
        .collect();
    for turn in 0..turns {
        for (place, remote) in peers.iter().enumerate() {
            let part = PART * place as u64;
            let bytes = written(at, turn);
            remote.write(part + 4096, &bytes[..]).post().unwrap();
            let mut back = vec![0; bytes.len()];
            remote.read(part + 4096, &mut back[..]).ordered().call().unwrap();
            assert!(bytes == back, "turn {turn} of {at}");
            assert_eq!(remote.word64(part).unwrap().fetch_add(1).unwrap(), turn);
            remote.notify(1).unwrap();
        }
    }
    // All that others say to this one.
    let arrived = served.notification(1).unwrap();
    for _ in 0..turns * OTHERS.len() as u64 {
        arrived.wait(Timeout::After(PATIENCE)).unwrap();
        arrived.ack().unwrap();
    }
    for (place, far) in OTHERS.iter().enumerate() {
        let part = PART * place as u64;
        assert_eq!(memory.word64(part).unwrap().load().unwrap(), turns);
        let bytes = written((at + PROCESSES - far) % PROCESSES, turns - 1);
        let mut held = vec![0; bytes.len()];
        memory.read_into(part + 4096, &mut held).unwrap();
        assert!(bytes == held, "what {far} before {at} has written");
    }
    assert!(
        windows > 8 || node.stats().counters.windows_moved > 0,
        "links share windows"
    );
    println!("\nlinks {}", node.stats().counters.links_up);
    // Others may still wait for this one's answers.
    wait_for_test();
}

#[test]
fn sixty_four_processes_work_with_each_other_and_leave_nothing() {
    let before = Held::now();
    let turns = if is_long() { 300 } else { 10 };
    let begin = Instant::now();
    let turns_text = turns.to_string();
    let mut players: Vec<Player> = (0..PROCESSES)
        .map(|at| {
            Player::start(
                "one",
                &[("NETVM_AT", &at.to_string()), ("NETVM_TURNS", &turns_text)],
            )
        })
        .collect();
    let each = |players: &mut [Player], wanted: &str| -> Vec<String> {
        players.iter_mut().map(|player| player.hear(wanted)).collect()
    };
    each(&mut players, "ready");
    let started = begin.elapsed();
    players.iter_mut().for_each(Player::tell);
    let links: u64 = each(&mut players, "links ")
        .iter()
        .map(|links| links.parse::<u64>().unwrap())
        .sum();
    let worked = begin.elapsed();
    // Both ends count a link.
    assert!(links >= 2 * u64::from(PROCESSES) * OTHERS.len() as u64, "{links}");
    let ids: Vec<i32> = players.iter().map(|player| player.id() as i32).collect();
    players.iter_mut().for_each(Player::tell);
    players.into_iter().for_each(Player::end);
    println!(
        "{PROCESSES} processes: started after {started:?}, done after {worked:?}, gone after {:?}",
        begin.elapsed()
    );
    assert!(
        begin.elapsed() < LIMIT * if is_long() { 10 } else { 1 },
        "{:?}",
        begin.elapsed()
    );
    let running = netvm_process::soft::running().unwrap();
    assert!(ids.iter().all(|id| !running.contains_key(id)), "{running:?}");
    until("nothing is left", || Held::now().is_within(&before, 4));
}
