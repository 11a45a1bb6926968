//! A file whose first page never comes: a server of the kernel's FUSE protocol that is silent, and processes that map
//! its file and use it with a card.
//!
//! The protocol is `linux/fuse.h`, version 7.31, as far as one file in one folder needs it.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::Duration;

use clap::{Parser, Subcommand};
use netvm::{Access, Port, PortConfig, device};
use netvm_rig::meeting::{self, Trouble};

/// A server that is silent, and a process that waits for it.
#[derive(Parser)]
#[command(name = "rig-fuse", about = "A file whose pages never come")]
struct Arguments {
    /// Where the file system is mounted.
    #[arg(long, default_value = "/tmp/fuse")]
    at: PathBuf,
    /// The server takes several reads at once: then the kernel waits for a page, not for an answer.
    #[arg(long)]
    together: bool,
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Copy, Subcommand)]
enum Role {
    /// Mount, and serve until killed.
    Serve,
    /// Send out of the file, which is served by another process, until killed.
    Wait {
        /// The port's number.
        port: u16,
    },
    /// Mount, serve, send out of the file, and end while that waits.
    Both {
        /// The port's number.
        port: u16,
    },
}

const PAGE: u64 = 4096;
const NAME: &str = "page";
const SOON: Duration = Duration::from_secs(20);
/// In this time the driver asks for the page.
const MOMENT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Role::Serve => mount(&arguments.at).and_then(|file| {
            println!("serving");
            serve(file, arguments.together);
            Err("the file system was taken away".into())
        }),
        Role::Wait { port } => wait(&arguments.at, port).map(|_kept| {
            loop {
                std::thread::park();
            }
        }),
        Role::Both { port } => both(&arguments, port),
    };
    meeting::end("rig-fuse", done)
}

fn both(arguments: &Arguments, port: u16) -> Result<String, Trouble> {
    let file = mount(&arguments.at)?;
    let together = arguments.together;
    std::thread::spawn(move || serve(file, together));
    let ports = wait(&arguments.at, port)?;
    // The process ends with its port open and its work under way: the kernel closes file by file.
    std::mem::forget(ports);
    Ok(r#"{"waited":true}"#.to_owned())
}

/// Sends out of the file to itself; gives the port back, whose operation does not end.
fn wait(at: &Path, number: u16) -> Result<(Port, Vec<Box<dyn Send>>), Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::number(number))?;
    let file = File::open(at.join(NAME))?;
    // SAFETY: at an address of the kernel's choice; never unmapped.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    // No read ahead: one request for one page.
    // SAFETY: the mapping of above.
    unsafe { libc::madvise(start, PAGE as usize, libc::MADV_RANDOM) };
    let start = NonNull::new(start.cast::<u8>()).ok_or("address 0")?;
    // SAFETY: mapped for as long as the process lives; nothing else reaches it.
    let slow = unsafe { port.adopt(start, PAGE)? };
    let own = port.alloc(PAGE)?;
    let export = port.export("own", &own, .., Access::everyone())?;
    let remote = port.import(node.id(), port.id(), "own", SOON)?;
    let sent = remote.write(0, &slow.slice(0..512)?).post()?;
    std::thread::sleep(MOMENT);
    println!("waiting");
    std::io::stdout().flush()?;
    let kept: Vec<Box<dyn Send>> = vec![Box::new(own), Box::new(export), Box::new(remote), Box::new(slow)];
    let _ = sent;
    Ok((port, kept))
}

/// Mounts a file system that this process serves.
fn mount(at: &Path) -> Result<File, Trouble> {
    std::fs::create_dir_all(at)?;
    let file = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0",
        file.as_raw_fd()
    );
    let target = format!("{}\0", at.display());
    // SAFETY: strings that end with a zero.
    let code = unsafe {
        libc::mount(
            c"rig".as_ptr(),
            target.as_ptr().cast(),
            c"fuse".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            options.as_ptr().cast(),
        )
    };
    if code != 0 {
        return Err(format!("mounting: {}", std::io::Error::last_os_error()).into());
    }
    Ok(file)
}

/// Requests of `linux/fuse.h`.
mod request {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

const ROOT: u64 = 1;
const ONLY: u64 = 2;
/// Seconds for which the kernel may believe what it was told.
const BELIEVED: u64 = 3600;
/// Several reads at once (`FUSE_ASYNC_READ`).
const TOGETHER: u32 = 1;

/// Answers everything but reads, until the file system is gone.
fn serve(mut file: File, together: bool) {
    // More than the largest request that it is told of.
    let mut bytes = vec![0; 1 << 20];
    while let Ok(len) = file.read(&mut bytes) {
        let Some(asked) = bytes.get(..len) else { return };
        let word = |at: usize| {
            asked
                .get(at..at + 4)
                .map_or(0, |b| u32::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        let long = |at: usize| {
            asked
                .get(at..at + 8)
                .map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        let (kind, unique, node) = (word(4), long(8), long(16));
        let answer = match kind {
            request::INIT => Ok(init(together)),
            request::LOOKUP if asked.get(40..) == Some(format!("{NAME}\0").as_bytes()) => Ok(entry()),
            request::LOOKUP => Err(libc::ENOENT),
            request::GETATTR => Ok([long_words(&[BELIEVED, 0]), attributes(node)].concat()),
            // Pages that are asked for stay asked for (`FOPEN_KEEP_CACHE`): otherwise the next open would wait for them.
            request::OPEN => Ok(long_words(&[1, 2])),
            request::RELEASE | request::FLUSH => Ok(Vec::new()),
            // It has been asked, and will never say.
            request::READ | request::FORGET | request::BATCH_FORGET | request::INTERRUPT => continue,
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut reply = Vec::new();
        reply.extend((16 + body.len() as u32).to_ne_bytes());
        reply.extend(error.to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(body);
        if file.write_all(&reply).is_err() {
            return;
        }
    }
}

fn long_words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn short_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `fuse_init_out`: version 7.31, no read ahead.
fn init(together: bool) -> Vec<u8> {
    let flags = if together { TOGETHER } else { 0 };
    let mut words = vec![7, 31, 0, flags, 0, 1 << 16, 1];
    words.resize(16, 0);
    short_words(&words)
}

/// `fuse_entry_out` of the only file.
fn entry() -> Vec<u8> {
    [
        long_words(&[ONLY, 0, BELIEVED, BELIEVED]),
        short_words(&[0, 0]),
        attributes(ONLY),
    ]
    .concat()
}

/// `fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == ROOT {
        (0o040_755, 0)
    } else {
        (0o100_666, PAGE)
    };
    [
        long_words(&[node, size, 8, 0, 0, 0]),
        short_words(&[0, 0, 0, mode, 1, 0, 0, 0, PAGE as u32, 0]),
    ]
    .concat()
}
