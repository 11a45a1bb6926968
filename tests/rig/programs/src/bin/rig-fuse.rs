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
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
/// The pages of a file outlive its last close (`FOPEN_KEEP_CACHE`).
const KEEP_CACHE: u32 = 2;

/// `fuse_in_header`. What it asks for follows.
#[repr(C)]
#[derive(FromBytes)]
#[allow(dead_code, reason = "the kernel's layout; this server looks at a part of it")]
struct Request {
    len: u32,
    kind: u32,
    unique: u64,
    node: u64,
    user: u32,
    group: u32,
    process: u32,
    extensions: u16,
    padding: u16,
}

/// `fuse_out_header`. The answer follows.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Reply {
    len: u32,
    error: i32,
    unique: u64,
}

/// `fuse_init_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct InitOut {
    version: [u32; 2],
    read_ahead: u32,
    flags: u32,
    background: u16,
    congestion: u16,
    longest_write: u32,
    time_granularity: u32,
    longest_request: u16,
    alignment: u16,
    unused: [u32; 8],
}

/// `fuse_open_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct OpenOut {
    handle: u64,
    flags: u32,
    padding: u32,
}

/// `fuse_attr`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Attributes {
    number: u64,
    size: u64,
    blocks: u64,
    times: [u64; 3],
    nanoseconds: [u32; 3],
    mode: u32,
    links: u32,
    owner: [u32; 2],
    device: u32,
    block_size: u32,
    flags: u32,
}

/// `fuse_attr_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct AttributesOut {
    seconds: u64,
    nanoseconds: u32,
    padding: u32,
    attributes: Attributes,
}

/// `fuse_entry_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct EntryOut {
    node: u64,
    generation: u64,
    seconds: [u64; 2],
    nanoseconds: [u32; 2],
    attributes: Attributes,
}

/// Answers everything but reads, until the file system is gone.
fn serve(mut file: File, together: bool) {
    // More than the largest request that it is told of.
    let mut bytes = vec![0; 1 << 20];
    while let Ok(len) = file.read(&mut bytes) {
        let asked = bytes.get(..len).unwrap_or_default();
        let Ok((asked, rest)) = Request::read_from_prefix(asked) else {
            return;
        };
        let answer = match asked.kind {
            request::INIT => Ok(init(together).as_bytes().to_vec()),
            request::LOOKUP if rest == format!("{NAME}\0").as_bytes() => Ok(entry().as_bytes().to_vec()),
            request::LOOKUP => Err(libc::ENOENT),
            request::GETATTR => Ok(believed(asked.node).as_bytes().to_vec()),
            request::OPEN => Ok(open().as_bytes().to_vec()),
            request::RELEASE | request::FLUSH => Ok(Vec::new()),
            // It has been asked, and will never say.
            request::READ | request::FORGET | request::BATCH_FORGET | request::INTERRUPT => continue,
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let reply = Reply {
            len: (size_of::<Reply>() + body.len()) as u32,
            error,
            unique: asked.unique,
        };
        if file.write_all(&[reply.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

/// Version 7.31, no read ahead.
fn init(together: bool) -> InitOut {
    InitOut {
        version: [7, 31],
        read_ahead: 0,
        flags: if together { TOGETHER } else { 0 },
        background: 0,
        congestion: 0,
        longest_write: 1 << 16,
        time_granularity: 1,
        longest_request: 0,
        alignment: 0,
        unused: [0; 8],
    }
}

/// Pages that are asked for stay asked for: otherwise the next open would wait for them.
fn open() -> OpenOut {
    OpenOut {
        handle: 1,
        flags: KEEP_CACHE,
        padding: 0,
    }
}

/// The only file.
fn entry() -> EntryOut {
    EntryOut {
        node: ONLY,
        generation: 0,
        seconds: [BELIEVED; 2],
        nanoseconds: [0; 2],
        attributes: attributes(ONLY),
    }
}

fn believed(node: u64) -> AttributesOut {
    AttributesOut {
        seconds: BELIEVED,
        nanoseconds: 0,
        padding: 0,
        attributes: attributes(node),
    }
}

fn attributes(node: u64) -> Attributes {
    let (mode, size) = if node == ROOT {
        (0o040_755, 0)
    } else {
        (0o100_666, PAGE)
    };
    Attributes {
        number: node,
        size,
        blocks: 8,
        times: [0; 3],
        nanoseconds: [0; 3],
        mode,
        links: 1,
        owner: [0; 2],
        device: 0,
        block_size: PAGE as u32,
        flags: 0,
    }
}
