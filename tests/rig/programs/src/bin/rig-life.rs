//! How a port ends: with its file, its mappings, its process, or its process' address space, in any order. Runs on one host;
//! what has to be sent goes from its card to itself.

use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use netvm::abi::port_area::PORT_STATE;
use netvm::{Access, Node, Port, PortConfig, device};
use netvm_rig::meeting::{self, Trouble};
use netvm_rig::raw::Device;
use rustix::io::Errno;

/// Ends with 0 if each port ended as it should. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-life", about = "How a port ends")]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Subcommand)]
enum Role {
    /// Open a port and keep it, until killed.
    Hold,
    /// Become another program, with a port.
    #[command(hide = true)]
    Become,
    /// Be that other program, with the file that was a port.
    #[command(hide = true)]
    Became { file: RawFd },
    /// Export memory, then take ever more, until killed.
    Eat,
    /// Write to memory of the process that eats, until that one is killed.
    Starve,
}

const FILE: &str = device::FIRST;
const PAGE: u64 = 4096;
const BYTES: u64 = 64 * PAGE;
/// Ports, one for each case.
const KEPT: u16 = 40;
const FORKED: u16 = 41;
const BECAME: u16 = 42;
const WAITS: u16 = 43;
const RACED: u16 = 44;
const EATER: u16 = 50;
/// Within this something ends that has nothing to wait for.
const SOON: Duration = Duration::from_secs(20);
const LONG: u64 = 60_000_000_000;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(Role::Hold) => hold(),
        Some(Role::Become) => become_another(),
        Some(Role::Became { file }) => became(file),
        Some(Role::Eat) => eat(),
        Some(Role::Starve) => starve(),
        None => all(),
    };
    meeting::end("rig-life", done)
}

/// A case: its name, and what happens.
type Case = (&'static str, fn() -> Result<(), Trouble>);

fn all() -> Result<String, Trouble> {
    let cases: [Case; 7] = [
        ("a mapping keeps a closed file's port", mapped),
        ("a file is a port once", once),
        ("a child has no share in a port", forked),
        ("a child's pages are its own", copied),
        ("another program has no share in a port", another_program),
        ("a signal ends a wait", interrupted),
        ("a process that waits can be killed", killed),
    ];
    for (name, case) in cases {
        case().map_err(|trouble| format!("{name}: {trouble}"))?;
    }
    // Nothing is left of them.
    let left = ports()?;
    if left.is_empty() {
        Ok(format!(r#"{{"cases":{}}}"#, cases.len()))
    } else {
        Err(format!("ports that are still open: {left:?}").into())
    }
}

fn ports() -> Result<Vec<u32>, Trouble> {
    let counters = device::counters(FILE).map_err(|refusal| format!("no counters: {refusal:?}"))?;
    Ok(counters.ports.iter().map(|(port, _)| *port).collect())
}

/// Waits until a port is gone.
fn gone(port: u16) -> Result<(), Trouble> {
    let end = Instant::now() + SOON;
    while ports()?.contains(&u32::from(port)) {
        if Instant::now() > end {
            return Err(format!("port {port} does not end").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn is(what: &str, found: Result<impl std::fmt::Debug, Errno>, expected: Errno) -> Result<(), Trouble> {
    match found {
        Err(errno) if errno == expected => Ok(()),
        other => Err(format!("{what}: {other:?}, and not {expected:?}").into()),
    }
}

fn mapped() -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    let register = device.register(KEPT)?;
    let area = device.area(&register)?;
    drop(device);
    if !ports()?.contains(&u32::from(KEPT)) || area.load(PORT_STATE) != 0 {
        return Err("the port ended with its file, though a mapping of it is left".into());
    }
    drop(area);
    gone(KEPT)
}

fn once() -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    is("a wait without a port", device.wait(1), Errno::INVAL)?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let device = &device;
                scope.spawn(move || device.register(RACED + thread))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Errno::CANCELED)))
            .collect()
    });
    let made = results.iter().filter(|result| result.is_ok()).count();
    let busy = results
        .iter()
        .filter(|result| matches!(result, Err(Errno::BUSY)))
        .count();
    if (made, busy) != (1, 3) {
        return Err(format!("of four threads: {results:?}").into());
    }
    drop(device);
    (0..4).try_for_each(|thread| gone(RACED + thread))
}

/// Memory of this process, page by page, each beginning with `byte`.
fn memory(byte: u8) -> Vec<u8> {
    let mut memory = vec![byte; (BYTES + PAGE) as usize];
    memory.shrink_to_fit();
    memory
}

fn first_page(memory: &[u8]) -> u64 {
    (memory.as_ptr().addr() as u64).next_multiple_of(PAGE)
}

/// Forks; the child does `work`, and ends with what it gives.
fn child(work: impl FnOnce() -> i32) -> Result<libc::pid_t, Trouble> {
    // SAFETY: this program has one thread here; the child does nothing but what it is given, and ends.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            let code = work();
            // SAFETY: without destructors of what is the parent's.
            unsafe { libc::_exit(code) }
        }
        child => Ok(child),
    }
}

fn ended(child: libc::pid_t) -> Result<ExitStatus, Trouble> {
    let mut status = 0;
    // SAFETY: a child of this process.
    match unsafe { libc::waitpid(child, &raw mut status, 0) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(ExitStatus::from_raw(status)),
    }
}

fn forked() -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    device.register(FORKED)?;
    let memory = memory(1);
    let page = first_page(&memory);
    let refused = child(|| {
        let refused = [
            device.adopt(page, PAGE).err(),
            device.disown(0).err(),
            device.wait(1).err(),
            device.register(FORKED).err(),
        ];
        i32::from(
            refused
                != [
                    Some(Errno::PERM),
                    Some(Errno::PERM),
                    Some(Errno::PERM),
                    Some(Errno::BUSY),
                ],
        )
    })?;
    let status = ended(refused)?;
    if !status.success() {
        return Err(format!("the child could use the port: {status}").into());
    }
    let segment = device.adopt(page, PAGE)?;
    device.disown(segment)?;
    drop(device);
    gone(FORKED)
}

fn copied() -> Result<(), Trouble> {
    let node = meeting::node(Path::new(FILE))?;
    let owner = Port::open(&node, PortConfig::number(FORKED))?;
    let memory = memory(1);
    let page = first_page(&memory);
    let start =
        NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(page as usize)).ok_or("address 0")?;
    memory.as_ptr().expose_provenance();
    // SAFETY: inside of `memory`, which lives as long; reached through the region and as volatile bytes only.
    let region = unsafe { owner.adopt(start, BYTES) }?;
    let _name = owner.export("copied", &region, .., Access::everyone())?;
    let look = move || {
        (0..BYTES / PAGE).all(|index| {
            // SAFETY: a byte of `memory`.
            let byte = unsafe { start.add((index * PAGE) as usize).read_volatile() };
            byte == 1
        })
    };
    let (ready, go) = rustix::pipe::pipe()?;
    let sees = child(|| {
        // The parent says when.
        let mut byte = [0];
        let told = rustix::io::read(&ready, &mut byte);
        i32::from(told != Ok(1) || !look())
    })?;
    let sender = Port::open(&node, PortConfig::default())?;
    let remote = sender.import(node.id(), owner.id(), "copied", SOON)?;
    for index in 0..BYTES / PAGE {
        remote.write(index * PAGE, &[2; 64]).post()?;
    }
    sender.flush_remote(node.id())?;
    let mut bytes = [0; 64];
    for index in 0..BYTES / PAGE {
        region.read_into(index * PAGE, &mut bytes)?;
        if bytes != [2; 64] {
            return Err(format!("page {index} of the parent was not written").into());
        }
    }
    rustix::io::write(&go, &[1])?;
    let status = ended(sees)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("what was sent to the parent is in the child's pages: {status}").into())
    }
}

fn start(role: &[&str]) -> Result<Child, Trouble> {
    Ok(Command::new(std::env::current_exe()?)
        .args(role)
        .stdout(Stdio::null())
        .spawn()?)
}

fn another_program() -> Result<(), Trouble> {
    let status = start(&["become"])?.wait()?;
    if !status.success() {
        return Err(format!("the other program: {status}").into());
    }
    gone(BECAME)
}

fn become_another() -> Result<String, Trouble> {
    let device = Device::open(Path::new(FILE))?;
    device.register(BECAME)?;
    let memory = memory(1);
    device.adopt(first_page(&memory), PAGE)?;
    let number = device.number().to_string();
    Err(Command::new(std::env::current_exe()?)
        .args(["became", &number])
        .exec()
        .into())
}

fn became(file: RawFd) -> Result<String, Trouble> {
    // SAFETY: the program before this one left it, and nothing else in this process uses it.
    let device = unsafe { Device::inherited(file) };
    // The address space that was the port's is gone, and the port with it, though the file is open.
    gone(BECAME)?;
    is("memory for it", device.adopt(PAGE, PAGE), Errno::PERM)?;
    is("a wait", device.wait(1), Errno::PERM)?;
    is("a second life", device.register(BECAME), Errno::BUSY)?;
    drop(device);
    let device = Device::open(Path::new(FILE))?;
    device.register(BECAME)?;
    Ok(String::new())
}

static RANG: AtomicBool = AtomicBool::new(false);

extern "C" fn rang(_: libc::c_int) {
    RANG.store(true, Ordering::Release);
}

fn interrupted() -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    device.register(WAITS)?;
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is an action without flags; the handler stores a flag, nothing more.
    unsafe {
        (*action.as_mut_ptr()).sa_sigaction = rang as *const () as libc::sighandler_t;
        libc::sigaction(libc::SIGALRM, action.as_ptr(), std::ptr::null_mut());
        libc::alarm(1);
    }
    let began = Instant::now();
    let waited = device.wait(LONG);
    is("a wait that a signal meets", waited, Errno::INTR)?;
    if !RANG.load(Ordering::Acquire) || began.elapsed() > SOON {
        return Err(format!("it took {:?}", began.elapsed()).into());
    }
    is("a wait without news", device.wait(1_000_000), Errno::TIMEDOUT)?;
    drop(device);
    gone(WAITS)
}

fn hold() -> Result<String, Trouble> {
    let device = Device::open(Path::new(FILE))?;
    device.register(WAITS)?;
    loop {
        match device.wait(LONG) {
            Ok(()) | Err(Errno::TIMEDOUT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn killed() -> Result<(), Trouble> {
    let mut holder = start(&["hold"])?;
    let end = Instant::now() + SOON;
    while !ports()?.contains(&u32::from(WAITS)) {
        if Instant::now() > end {
            return Err("the port does not open".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    holder.kill()?;
    holder.wait()?;
    gone(WAITS)
}

/// Exports memory, and takes more than there is, until the kernel kills this process.
fn eat() -> Result<String, Trouble> {
    std::fs::write("/proc/self/oom_score_adj", "1000")?;
    let node = meeting::node(Path::new(FILE))?;
    let port = Port::open(&node, PortConfig::number(EATER))?;
    let region = port.alloc(BYTES * 16)?;
    let _name = port.export("eaten", &region, .., Access::everyone())?;
    let mut all = Vec::new();
    loop {
        all.push(vec![1_u8; 1 << 20]);
        region.write_from(0, &[1; 64])?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes into it while it is killed and its memory is torn down.
fn starve() -> Result<String, Trouble> {
    let node: Node = meeting::node(Path::new(FILE))?;
    let port = Port::open(&node, PortConfig::default())?;
    let source = port.alloc(BYTES * 16)?;
    let remote = port.import(node.id(), EATER.into(), "eaten", SOON)?;
    let end = Instant::now() + SOON * 3;
    let mut written = 0_u64;
    let refused = loop {
        if Instant::now() > end {
            return Err("the exporter was not killed".into());
        }
        let at = written * PAGE % (BYTES * 16 - 3 * PAGE);
        let posted = remote.write(at, &source.slice(at..at + 3 * PAGE)?).post();
        let sent = posted.map(drop).and_then(|()| match written % 8 {
            7 => port.flush_remote(node.id()),
            _ => Ok(()),
        });
        match sent {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    drop(remote);
    gone(EATER)?;
    // The sender goes on.
    let again = port.export("again", &source, .., Access::everyone())?;
    let remote = port.import(node.id(), port.id(), "again", SOON)?;
    remote.write(0, &[3; 8]).post()?;
    port.flush_remote(node.id())?;
    drop(again);
    Ok(format!(r#"{{"written":{written},"refused":"{refused}"}}"#))
}
