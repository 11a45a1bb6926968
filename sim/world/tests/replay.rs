//! P8: a run is a pure function of its seed and configuration.

use netvm_world::{Config, FaultLevel, NoTrace, run_seed};

fn trace(seed: u64, config: &Config) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A failing run must replay as exactly as one that does not.
    let _ = run_seed(seed, config, &mut bytes);
    bytes
}

#[test]
fn two_runs_of_a_seed_give_the_same_trace_byte_for_byte() {
    let config = Config {
        messages: 1_500,
        ..Config::default()
    };
    for seed in [1, 7, 42] {
        let first = trace(seed, &config);
        assert!(
            first.len() > 100_000,
            "seed {seed}: a trace of {} bytes",
            first.len()
        );
        assert!(first == trace(seed, &config), "seed {seed} does not replay");
    }
}

/// Names the file that a process of its own writes its trace to.
const CHILD: &str = "NETVM_REPLAY_TRACE";

/// Each process has its memory at other addresses, and its own seed for hashes: neither may reach a run.
#[test]
fn another_process_plays_the_same_run() {
    let config = Config {
        messages: 1_500,
        ..Config::default()
    };
    let own = trace(13, &config);
    if let Some(path) = std::env::var_os(CHILD) {
        return std::fs::write(path, own).expect("a file for the trace");
    }
    for run in 0..2 {
        let name = format!("replay-{}-{run}", std::process::id());
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "another_process_plays_the_same_run"])
            .env(CHILD, &path)
            .output()
            .expect("a process");
        assert!(child.status.success(), "{child:?}");
        let other = std::fs::read(&path).expect("its trace");
        std::fs::remove_file(&path).expect("its trace");
        assert!(other == own, "another process plays another run of this seed");
    }
}

/// Both kinds of steps are held up, and what needs the lock of a kernel's step gets it.
#[test]
fn steps_are_held_up_and_waited_for() {
    let config = Config {
        messages: 1_500,
        ..Config::default()
    };
    // Each kind of fault is off in a part of the worlds.
    let mut unseen = vec!["card held up", "kernel held up", "kernel awaited"];
    for seed in 1..=12 {
        let trace = String::from_utf8(trace(seed, &config)).expect("text");
        unseen.retain(|what| !trace.contains(what));
        if unseen.is_empty() {
            return;
        }
    }
    panic!("never seen: {unseen:?}");
}

#[test]
fn an_unread_trace_changes_nothing() {
    let config = Config {
        messages: 1_000,
        ..Config::default()
    };
    let mut bytes = Vec::new();
    let traced = run_seed(5, &config, &mut bytes).map_err(|f| f.to_string());
    let silent = run_seed(5, &config, &mut NoTrace).map_err(|f| f.to_string());
    let key = |r: &netvm_world::Report| (r.messages, r.events, r.virtual_nanos);
    assert_eq!(
        traced.as_ref().map(key).map_err(String::as_str),
        silent.as_ref().map(key).map_err(String::as_str)
    );
}

#[test]
fn two_seeds_differ() {
    let config = Config {
        messages: 300,
        faults: FaultLevel::Benign,
        ..Config::default()
    };
    assert_ne!(trace(1, &config), trace(2, &config));
}

#[test]
fn threads_do_not_share_anything() {
    let config = Config {
        messages: 500,
        ..Config::default()
    };
    let alone = trace(11, &config);
    let threads: Vec<_> = (0..2)
        .map(|_| std::thread::spawn(move || trace(11, &config)))
        .collect();
    for thread in threads {
        assert!(thread.join().expect("a world panicked") == alone);
    }
}
