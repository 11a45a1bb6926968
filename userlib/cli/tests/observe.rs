//! Programs that look at the cards of other processes: `netvm show`, `netvm stat`.

mod support;

use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

use support::{PATIENCE, Running, json, name, netvm, says, serve, serve_with, text};

/// Asks until the answer is as it should be.
fn until(args: &[&str], what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let answer = json(args);
        if is(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "never {what}: {answer}");
    }
}

fn some<'a>(answer: &'a Value, list: &str, is: impl Fn(&Value) -> bool) -> Option<&'a Value> {
    answer[list].as_array()?.iter().find(|one| is(one))
}

#[test]
fn ports_segments_exports_and_links_of_another_process_are_shown() {
    let name = name("show");
    // Of two windows the smaller one is the link's.
    let (_server, node, udp) = serve_with(&name, &["--window", "256"]);
    let node = node.as_str();
    let by_udp = format!("udp://{udp}");
    let often = ["--count", "1000000", "--interval", "1"];
    let _near = Running::in_background(&[&["ping", &name][..], &often].concat());
    let _far = Running::in_background(&[&["ping", &by_udp, "--window", "128"][..], &often].concat());

    let is_up = |answer: &Value, kind: &str| {
        some(answer, "links", |link| {
            link["kind"] == kind && link["state"] == "up"
        })
        .is_some()
    };
    let args = ["show", "links", "--node", node, "--json"];
    let links = until(&args, "linked both ways", |answer| {
        is_up(answer, "shared memory") && is_up(answer, "udp")
    });
    let far = some(&links, "links", |link| link["kind"] == "udp").expect("a link");
    assert!(
        far["address"]
            .as_str()
            .is_some_and(|at| at.starts_with("127.0.0.1:")),
        "{far}"
    );
    assert_eq!(far["encrypted"], "no");
    assert_eq!(far["window"], 128);
    let near = some(&links, "links", |link| link["kind"] == "shared memory").expect("a link");
    assert_eq!(near["window"], 64);
    assert!(near["ring_memory_bytes"].as_u64() > Some(1 << 20), "{near}");

    // The server measures its round trip by answers that it has sent.
    until(&args, "a round trip over UDP", |answer| {
        let far = some(answer, "links", |link| link["kind"] == "udp");
        far.is_some_and(|far| far["round_trip_ns"].as_u64() > Some(0))
    });

    let exports = until(
        &["show", "exports", "--node", node, "--json"],
        "imported twice",
        |answer| some(answer, "exports", |export| export["grants"] == 2).is_some(),
    );
    let export = &exports["exports"][0];
    assert_eq!(export["name"], "netvm-serve");
    assert_eq!(export["modes"], "read+write+atomic+notify");
    assert_eq!((&export["port"], &export["notify_first"]), (&1.into(), &1.into()));
    assert_eq!(exports["names"][0], name.as_str());

    let segments = json(&["show", "segments", "--node", node, "--json"]);
    let segment = some(&segments, "segments", |segment| segment["exports"] == 1).expect("a segment");
    assert_eq!(segment["bytes"], export["bytes"]);
    // The first write to each client's page found it missing.
    assert!(segment["bounced"].as_u64() > Some(0), "{segment}");

    let ports = json(&["show", "ports", "--node", node, "--json"]);
    let port = some(&ports, "ports", |port| port["port"] == 1).expect("port 1");
    assert!(port["bounced"].as_u64() > Some(0), "{port}");

    let about = json(&["show", "nodes", "--node", node, "--json"]);
    assert_eq!(about["udp"], udp.as_str());
    assert_eq!(about["window"], 256);
    assert!(about["bounce_memory_bytes"].as_u64() > Some(0), "{about}");

    // A person reads the same.
    for (what, words) in [
        ("nodes", &["key", "encrypted", "127.0.0.1:", &name][..]),
        ("links", &["shared memory", "udp", "/64", "/128", "round trip"]),
        ("ports", &["commands", "bounced"]),
        ("segments", &["pages mapped", "MiB"]),
        ("exports", &["netvm-serve", "read+write+atomic+notify", "1 to 1"]),
    ] {
        let out = says(&["show", what, "--node", node]);
        for word in words {
            assert!(out.contains(word), "{word} in {out}");
        }
    }
}

#[test]
fn what_the_wire_loses_shows_as_retransmissions_of_its_link() {
    let name = name("lossy");
    let (_server, node, udp) = serve(&name);
    let mut relay = Running::start(&["relay", "127.0.0.1:0", &udp, "--lost", "20"]);
    let line = relay.line();
    let relayed = line.split_whitespace().next().expect("an address").to_owned();
    let _far = Running::in_background(&["ping", &relayed, "--count", "1000000", "--interval", "0"]);
    until(
        &["show", "links", "--node", &node, "--json"],
        "sent again",
        |answer| {
            let far = some(answer, "links", |link| link["kind"] == "udp");
            far.is_some_and(|far| far["retransmitted"].as_u64() > Some(0))
        },
    );
}

#[test]
fn a_path_that_takes_no_long_datagrams_shows_as_the_payload_of_its_link() {
    let name = name("narrow");
    let (_server, node, udp) = serve(&name);
    // What Ethernet takes: a third of a page in a message.
    for (longest, payload) in [("1472", 1368), ("65507", 4096)] {
        let relayed = ["relay", "127.0.0.1:0", &udp, "--lost", "0", "--longest", longest];
        let mut relay = Running::start(&relayed);
        let line = relay.line();
        assert!(line.contains(longest), "{line}");
        let relayed = line.split_whitespace().next().expect("an address").to_owned();
        let _far = Running::in_background(&["ping", &relayed, "--count", "1000000", "--interval", "1"]);
        until(
            &["show", "links", "--node", &node, "--json"],
            "met over such a path",
            |answer| {
                // The link before it may be there still.
                let is_it = |link: &Value| link["kind"] == "udp" && link["payload"] == payload;
                some(answer, "links", is_it).is_some()
            },
        );
    }
}

#[test]
fn counters_are_read_watched_and_exported() {
    let name = name("stat");
    let (_server, node, _) = serve(&name);
    let node = node.as_str();
    let _near = Running::in_background(&["ping", &name, "--count", "1000000", "--interval", "1"]);
    let landed = |answer: &Value| answer["card"]["messages_landed"].as_u64();
    let stat = until(&["stat", "--node", node, "--json"], "written to", |answer| {
        landed(answer) > Some(10)
    });
    for part in ["about", "driver", "card"] {
        assert!(stat[part].is_object(), "{part}: {stat}");
    }
    for list in ["ports", "segments", "links"] {
        assert!(stat[list].is_array(), "{list}: {stat}");
    }
    assert!(stat["driver"]["bounced"].as_u64() > Some(0), "{stat}");

    let lines = says(&["stat", "--node", node, "--watch", "--count", "2", "--json"]);
    let counts: Vec<Option<u64>> = lines
        .lines()
        .map(|line| landed(&serde_json::from_str(line).expect("JSON")))
        .collect();
    assert_eq!(counts.len(), 2, "{lines}");
    assert!(counts[0] >= landed(&stat) && counts[1] > counts[0], "{counts:?}");
    let watched = says(&["stat", "--node", node, "--watch", "1", "--count", "1"]);
    assert!(
        watched.contains("card.messages_landed") && watched.contains("/s"),
        "{watched}"
    );

    let metrics = says(&["stat", "--node", node, "--prometheus"]);
    assert!(
        metrics.contains(&format!("netvm_up{{node=\"{node}\",process=")),
        "{metrics}"
    );
    assert!(
        metrics.contains("# TYPE netvm_card_messages_landed counter\n"),
        "{metrics}"
    );
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (metric, value) = line.rsplit_once(' ').expect("a value");
        assert!(metric.starts_with("netvm_") && metric.ends_with('}'), "{line}");
        value.parse::<u64>().expect(line);
    }
    let table = says(&["stat", "--node", node]);
    assert!(
        table.contains("messages_landed") && !table.contains("links_lost"),
        "{table}"
    );
    assert!(says(&["stat", "--node", node, "--all"]).contains("links_lost"));
}

#[test]
fn what_is_not_there_is_told_with_what_to_do() {
    for (args, words) in [
        (&["show", "ports", "--node", "60123"][..], "netvm serve NAME"),
        (&["stat", "--node", "60123", "--watch"], "netvm serve NAME"),
        (&["show", "links", "--device", "/nowhere"], "insmod netvm.ko"),
        (&["stat", "--device", "/dev/null"], "netvm.ko"),
    ] {
        let output = netvm(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {err}");
        assert!(err.contains(words) && output.stdout.is_empty(), "{args:?}: {err}");
    }
    for args in [
        &["show"][..],
        &["show", "cards"],
        &["stat", "--count", "2"],
        &["stat", "--watch", "0"],
        &["stat", "--json", "--prometheus"],
        &["show", "ports", "--node", "-1"],
        &["show", "ports", "--node", "1", "--device", "/dev/netvm0"],
    ] {
        assert_eq!(netvm(args).status.code(), Some(2), "{args:?}");
    }
}

fn address(node: &str) -> SocketAddrUnix {
    let user = rustix::process::getuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("netvm/{user}/#{node}").as_bytes()).expect("an address")
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

/// A program that connects and says nothing, or nonsense, takes nothing from others.
#[test]
fn silent_and_senseless_callers_do_not_hold_a_node_up() {
    let name = name("silent");
    let (_server, node, _) = serve(&name);
    let call = || {
        let socket = socket();
        rustix::net::connect(&socket, &address(&node)).expect("it listens");
        socket
    };
    let begin = Instant::now();
    let silent: Vec<OwnedFd> = (0..300).map(|_| call()).collect();
    let questions: &[&[u8]] = &[
        b"",
        b"x",
        b"NVq1",
        b"NVq1 of another length than a question has",
        b"NVq1\xff\xff\0\0\0\0\0\0\0\0\0\0",
        b"NVs3\xff\xff\0\0\0\0\0\0\0\0\0\0",
    ];
    for question in questions {
        let socket = call();
        let _ = rustix::net::send(&socket, question, SendFlags::NOSIGNAL);
        drop(socket);
    }
    // Some ask, and never take the answer.
    let version = netvm_abi_version(&node);
    for section in 0..9u8 {
        let socket = call();
        let mut question = *b"NVq1\0\0\0\0\0\0\0\0\0\0\0\0";
        question[4..6].copy_from_slice(&version);
        question[6] = section;
        let _ = rustix::net::send(&socket, &question, SendFlags::NOSIGNAL);
    }
    says(&["show", "ports", "--node", &node]);
    says(&["ping", &name, "--count", "1"]);
    // The node has hung up on those that say nothing; it does so after a second, or when there are too many.
    for socket in &silent {
        rustix::net::sockopt::set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE)).expect("a limit");
        let got = rustix::net::recv(socket, &mut [0; 64][..], RecvFlags::empty()).map(|(got, _)| got);
        assert!(matches!(got, Ok(0) | Err(Errno::CONNRESET)), "{got:?}");
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

/// The version that a node speaks, as it says to a question of another one.
fn netvm_abi_version(node: &str) -> [u8; 2] {
    let socket = socket();
    rustix::net::connect(&socket, &address(node)).expect("it listens");
    rustix::net::send(&socket, b"NVq1\xff\xff\0\0\0\0\0\0\0\0\0\0", SendFlags::NOSIGNAL).expect("a question");
    let mut answer = [0; 64];
    let (got, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).expect("an answer");
    assert_eq!((got, &answer[..4]), (12, &b"NVa1"[..]));
    [answer[4], answer[5]]
}

/// What a hostile process, or one of another release, says under a node's number ends in an error.
#[test]
fn a_hostile_answer_is_an_error() {
    let (_server, node, _) = serve(&name("version"));
    let version = netvm_abi_version(&node);
    let of = |body: &[u8]| {
        let len = (body.len() as u32).to_le_bytes();
        [&b"NVa1"[..], &version, &[0, 0], &len, body].concat()
    };
    let number = 50_000 + std::process::id() % 10_000;
    let number = number.to_string();
    let listener = socket();
    rustix::net::bind(&listener, &address(&number)).expect("a number that is free");
    rustix::net::listen(&listener, 8).expect("listening");
    let entry = r#"{"number":1,"labels":[["name","x"]],"counted":[["\u001b[2J",1]]}"#;
    let page = |format: u32, entry: &str| format!(r#"{{"format":{format},"entries":[{entry}],"next":null}}"#);
    let answers: Vec<(Option<Vec<u8>>, &str)> = vec![
        (
            Some(b"NVs1 is how an older node begins".to_vec()),
            "another release",
        ),
        (
            Some([&b"NVa1"[..], &[0xff; 2], &[0; 6]].concat()),
            "version 65535",
        ),
        (Some(b"NVa1".to_vec()), "another release"),
        (Some(of(&[0xff; 60_000])), "makes no sense"),
        (Some(of("[".repeat(60_000).as_bytes())), "makes no sense"),
        (Some(of(page(1, entry).as_bytes())), "makes no sense"),
        (Some(of(page(7, "").as_bytes())), "format 7"),
        (
            Some(of(br#"{"format":1,"entries":[],"next":0}"#)),
            "goes backwards",
        ),
        (Some(of(b"")), "no answer"),
        (Some(vec![b'x'; 100_000]), "another release"),
        // It takes the connection and never answers.
        (None, "does not answer"),
    ];
    for (answer, words) in answers {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The list of nodes is made by connecting, too.
            scope.spawn(|| {
                let mut held = Vec::new();
                while !done.load(Ordering::Acquire) {
                    let mut fds = [rustix::event::PollFd::new(
                        &listener,
                        rustix::event::PollFlags::IN,
                    )];
                    let tick = rustix::event::Timespec {
                        tv_sec: 0,
                        tv_nsec: 10_000_000,
                    };
                    if rustix::event::poll(&mut fds, Some(&tick)) != Ok(1) {
                        continue;
                    }
                    let socket = rustix::net::accept(&listener).expect("a caller");
                    let asked = rustix::net::recv(&socket, &mut [0; 64][..], RecvFlags::empty());
                    if let (Ok((16, _)), Some(answer)) = (asked, &answer) {
                        let _ = rustix::net::send(&socket, answer, SendFlags::NOSIGNAL);
                    }
                    held.push(socket);
                }
            });
            let output = netvm(&["show", "exports", "--node", &number]);
            done.store(true, Ordering::Release);
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(output.status.code(), Some(1), "{words}: {out}{err}");
            assert!(err.contains(words), "{words}: {out}{err}");
            assert!(!err.contains("panicked") && !out.contains('\x1b'), "{out}{err}");
        });
    }
}

#[test]
fn info_says_what_is_there() {
    let info = json(&["info", "--json"]);
    let soft = some(&info, "backends", |one| one["name"] == "software card").expect("it is told of");
    assert_eq!(soft["there"], true, "{info}");
    let device = some(&info, "backends", |one| one["name"] == "kernel device").expect("it is told of");
    if device["there"] == false {
        assert!(
            device["fix"].as_str().is_some_and(|fix| fix.contains("insmod")),
            "{device}"
        );
    }
    let out = says(&["info"]);
    for word in ["no link is encrypted", "software card: there", "\"auto\" opens"] {
        assert!(out.contains(word), "{word} in {out}");
    }
    for (variable, words) in [
        ("device:3", "\"auto\" opens \"device:3\", as NETVM_NODE says"),
        ("x", "does not decide"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
        let output = command
            .arg("info")
            .env("NETVM_NODE", variable)
            .output()
            .expect("netvm starts");
        assert!(text(&output.stdout).contains(words), "{}", text(&output.stdout));
    }
}

/// Nodes with a key and without one, and links over UDP of both kinds.
#[test]
fn keys_and_what_they_encrypt_are_told() {
    let folder = std::env::temp_dir().join(format!("netvm-observe-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a scratch folder");
    let key = folder.join("key");
    let key = key.to_str().expect("UTF-8");
    says(&["key", "new", "--out", key]);
    let with_key = ["--key-file", key];
    let (_sealed, sealed, sealed_at) = serve_with(&name("sealed"), &with_key);
    let (_open, open, open_at) = serve(&name("open"));
    let ping = |at: &str, more: &[&str]| {
        let name = format!("udp://{at}");
        let base = ["ping", &name, "--count", "1000000", "--interval", "1"];
        Running::in_background(&[&base, more].concat())
    };
    let _clients = [ping(&sealed_at, &with_key), ping(&open_at, &[])];
    let of = |info: &Value, number: &str| {
        let number: u16 = number.parse().expect("a number");
        let found = some(info, "nodes", |node| node["node"] == number);
        found.cloned().unwrap_or_default()
    };
    let info = until(&["info", "--json"], "linked", |info| {
        of(info, &sealed)["links"] == 1 && of(info, &open)["links"] == 1
    });
    for (number, key, encrypted, udp) in [(&sealed, true, 1, &sealed_at), (&open, false, 0, &open_at)] {
        let node = of(&info, number);
        assert_eq!((&node["key"], &node["udp"]), (&key.into(), &udp.as_str().into()));
        assert_eq!(node["links_over_udp"], 1, "{node}");
        assert_eq!(node["links_encrypted"], encrypted, "{node}");
        let shown = json(&["show", "nodes", "--node", number, "--json"]);
        assert_eq!(shown["key"], if key { "yes" } else { "no" });
        assert_eq!(shown["links_encrypted"], encrypted, "{shown}");
    }
    assert_eq!(info["links_encrypted"], false, "one is in the clear");
    for args in [&["info"][..], &["doctor"]] {
        let out = says(args);
        for words in [
            "with a key: node",
            "with UDP and without a key: node",
            "of links over UDP",
        ] {
            assert!(out.contains(words), "{words} in {out}");
        }
    }
    std::fs::remove_dir_all(&folder).expect("gone");
}
