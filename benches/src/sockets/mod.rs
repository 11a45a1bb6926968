//! Redis and iperf3 over the library to preload, beside themselves over TCP: page and plot of `docs/evaluation/sockets*`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::beside::compare::{Compared, line, row};
use crate::beside::plot;

/// Ports of this machine that nothing else is expected at, below those that the kernel gives to connections by itself.
const REDIS: u16 = 17_760;
const IPERF: u16 = 17_761;
/// How long a program may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was found when this was measured; written by hand.
const WHY: &str = include_str!("why.md");

/// A measurement of `redis-benchmark`: its name, its options, how many requests, and the goal.
struct Load {
    set: &'static str,
    get: &'static str,
    options: &'static [&'static str],
    requests: u32,
    goal: Option<f64>,
}

const LOADS: [Load; 4] = [
    Load {
        set: "SET, 50 clients",
        get: "GET, 50 clients",
        options: &["-c", "50"],
        requests: 200_000,
        goal: Some(1.3),
    },
    Load {
        set: "SET, 1 client",
        get: "GET, 1 client",
        options: &["-c", "1"],
        requests: 50_000,
        goal: None,
    },
    Load {
        set: "SET, 50 clients, 16 at once each",
        get: "GET, 50 clients, 16 at once each",
        options: &["-c", "50", "-P", "16"],
        requests: 400_000,
        goal: None,
    },
    Load {
        set: "SET of 10,000 B, 50 clients",
        get: "GET of 10,000 B, 50 clients",
        options: &["-c", "50", "-d", "10000"],
        requests: 30_000,
        goal: None,
    },
];

/// What one turn has measured, in the order of the rows: with the library, and over TCP.
pub type Turn = Vec<(f64, f64)>;

/// A program that runs beside, and is ended with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program, with the library or without.
fn program(name: impl AsRef<std::ffi::OsStr>, library: Option<&Path>) -> Command {
    let mut command = Command::new(name);
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} has failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts Redis, and waits until it answers. The program is the server if it is called so.
fn redis(folder: &Path, library: Option<&Path>) -> Result<Running> {
    let server = folder.join("redis-server");
    let _ = std::fs::remove_file(&server);
    std::os::unix::fs::symlink(which("redis-check-rdb")?, &server)?;
    let mut command = program(&server, library);
    command
        .args(["--port", &REDIS.to_string(), "--save", "", "--dir"])
        .arg(folder);
    let running = Running(
        command
            .stdout(Stdio::null())
            .spawn()
            .context("starting redis-server")?,
    );
    let began = Instant::now();
    while output(program("redis-cli", None).args(["-p", &REDIS.to_string(), "ping"])).is_err() {
        if began.elapsed() > PATIENCE {
            bail!("Redis does not answer at port {REDIS}")
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(running)
}

fn which(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.exists());
    found.with_context(|| format!("{name} is not installed (redis-tools)"))
}

/// Requests a second, of SET and of GET.
fn requests(load: &Load, share: u32, library: Option<&Path>) -> Result<[f64; 2]> {
    let mut benchmark = program("redis-benchmark", library);
    benchmark.args(["-p", &REDIS.to_string(), "--csv", "-t", "set,get", "-n"]);
    benchmark
        .arg((load.requests / share).to_string())
        .args(load.options);
    let said = output(&mut benchmark)?;
    let of = |test: &str| {
        let line = said.lines().find(|line| line.starts_with(&format!("\"{test}\"")));
        let value = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
        value.with_context(|| format!("redis-benchmark says nothing of {test}: {said}"))
    };
    Ok([of("SET")?, of("GET")?])
}

/// Bytes a second from one process to another, over so many connections.
fn bandwidth(connections: u32, seconds: u32, library: Option<&Path>) -> Result<f64> {
    let port = IPERF.to_string();
    let mut server = program("iperf3", library);
    server
        .args(["--server", "--one-off", "--port", &port])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _running = Running(server.spawn().context("starting iperf3")?);
    let mut client = program("iperf3", library);
    client.args([
        "--client",
        "127.0.0.1",
        "--json",
        "--port",
        &port,
        "--time",
        &seconds.to_string(),
    ]);
    client.args(["--parallel", &connections.to_string()]);
    let began = Instant::now();
    loop {
        let said: serde_json::Value = serde_json::from_str(&output(&mut client)?)?;
        if let Some(bits) = said["end"]["sum_received"]["bits_per_second"].as_f64() {
            return Ok(bits / 8.0);
        }
        // It does not listen yet.
        ensure!(
            began.elapsed() < PATIENCE,
            "iperf3 says no rate: {}",
            said["error"]
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Measures everything once, with the library and over TCP in turns.
///
/// # Errors
/// A program is missing, or fails.
pub fn measure(library: &Path, folder: &Path, quick: bool) -> Result<Turn> {
    std::fs::create_dir_all(folder)?;
    let (share, seconds) = if quick { (20, 1) } else { (1, 3) };
    let mut turn = Turn::new();
    for load in &LOADS {
        let mut found = [[0.0; 2]; 2];
        for (place, library) in found.iter_mut().zip([Some(library), None]) {
            eprintln!(
                "{}, {}",
                load.set,
                if library.is_some() {
                    "with the library"
                } else {
                    "over TCP"
                }
            );
            let _server = redis(folder, library)?;
            *place = requests(load, share, library)?;
        }
        let [ours, theirs] = found;
        turn.extend(ours.into_iter().zip(theirs));
    }
    for connections in [1, 4] {
        eprintln!("iperf3, {connections} connections");
        turn.push((
            bandwidth(connections, seconds, Some(library))?,
            bandwidth(connections, seconds, None)?,
        ));
    }
    Ok(turn)
}

/// All comparisons.
fn rows(turns: &[Turn]) -> Vec<Compared> {
    let names = LOADS.iter().flat_map(|load| {
        let unit = ("over TCP", "thousand/s", 1e3, load.goal);
        [(load.set, unit), (load.get, unit)]
    });
    let streams =
        ["iperf3, 1 connection", "iperf3, 4 connections"].map(|name| (name, ("over TCP", "GB/s", 1e9, None)));
    let all = names.chain(streams).enumerate();
    all.map(|(at, (what, (with, unit, scale, goal)))| {
        let values = turns.iter().filter_map(|turn| turn.get(at));
        let values = values.map(|(ours, theirs)| (ours / scale, theirs / scale, ours / theirs));
        row((what, with, unit), true, goal, values.collect())
    })
    .collect()
}

/// Writes page and plot into `folder`. Gives the page.
///
/// # Errors
/// They cannot be written.
pub fn write(turns: &[Turn], folder: &Path) -> Result<String> {
    let rows = rows(turns);
    plot::ratios(&rows, &folder.join("sockets.svg"))?;
    let mut page = format!(
        "# Programs with sockets, measured\n\n\
         Written by `cargo xtask bench sockets`: {} turns, and the medians of them.\n\n\
         Redis and `redis-benchmark`, and `iperf3`, as Debian has them: both processes with [the library](../sockets.md), and both without, in turns, \
         over the addresses of this machine. Nothing binds them to processors.\n\n\
         ![ratios](sockets.svg)\n\n\
         | what | beside | unit | here | there | ratio | spread | wanted | reached |\n|---|---|---|---|---|---|---|---|---|\n",
        turns.len()
    );
    for row in &rows {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{}", line(row, 2));
    }
    page.push_str(WHY);
    let file = folder.join("sockets.md");
    std::fs::write(&file, &page).with_context(|| format!("writing {}", file.display()))?;
    Ok(page)
}
