//! What tests with several processes need: this program started again, and a count of what a process holds.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod adopt;
pub(crate) mod tap;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const SCENE: &str = "NETVM_SCENE";

/// The scene that this process is to play, if it was started as a [`Player`].
pub(crate) fn scene() -> Option<String> {
    std::env::var(SCENE).ok()
}

/// What the test told this process.
pub(crate) fn told(what: &str) -> String {
    std::env::var(what).unwrap()
}

/// This program, as it plays a scene.
pub(crate) fn scene_command(scene: &str, told: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "play", "--nocapture", "--test-threads", "1"]);
    command.env(SCENE, scene).envs(told.iter().copied());
    command
}

/// Another process of this test program, which plays a scene, and says each line that it reached. It is killed when dropped.
pub(crate) struct Player {
    child: Child,
    out: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Player {
    /// Starts the test `play` of this program.
    pub(crate) fn start(scene: &str, told: &[(&str, &str)]) -> Self {
        Self::of(scene_command(scene, told))
    }

    /// Starts any command.
    pub(crate) fn of(command: Command) -> Self {
        Self::try_of(command).unwrap()
    }

    /// Starts any command, if that can be.
    pub(crate) fn try_of(mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        Ok(Self {
            out: BufReader::new(child.stdout.take().unwrap()),
            input: child.stdin.take(),
            child,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that holds this, and gives what follows.
    pub(crate) fn hear(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.out.read_line(&mut line).unwrap() != 0 {
            if let Some(at) = line.find(wanted) {
                return line[at + wanted.len()..].trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended before it said '{wanted}'");
    }

    /// Lets it go on.
    pub(crate) fn tell(&mut self) {
        self.input.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its number is its own.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(sent, 0);
    }

    /// Ends it at whatever instruction it is.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It ends by itself, and well.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Player {
    /// Waits until it has killed itself.
    pub(crate) fn dies(mut self) {
        let ended = self.child.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGKILL), "{ended}");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a scene: waits until the test lets it go on, or has ended.
pub(crate) fn wait_for_test() {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A line of `/proc/self/status`, as a number.
pub(crate) fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    number.unwrap().parse().unwrap()
}

/// What this process holds of the kernel, and what the machine has of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
    /// Mappings of rings.
    pub(crate) rings: usize,
    /// All mappings. The allocator makes and drops some by itself.
    pub(crate) mappings: usize,
    /// Files that shared memory may have left.
    pub(crate) shm: usize,
}

impl Held {
    pub(crate) fn now() -> Self {
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            rings: maps.lines().filter(|line| line.contains("netvm-ring")).count(),
            mappings: maps.lines().count(),
            shm: std::fs::read_dir("/dev/shm").map_or(0, |files| {
                let names = files.flatten().map(|file| file.file_name());
                names
                    .filter(|name| name.to_string_lossy().contains("netvm"))
                    .count()
            }),
        }
    }

    /// Of nothing more than before; of mappings so many.
    pub(crate) fn is_within(&self, before: &Self, mappings: usize) -> bool {
        self.threads <= before.threads
            && self.descriptors <= before.descriptors
            && self.rings <= before.rings
            && self.shm <= before.shm
            && self.mappings <= before.mappings + mappings
    }
}
