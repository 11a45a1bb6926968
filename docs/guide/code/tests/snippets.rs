//! The short pieces of code of the guide's chapters, run between two nodes.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm::sync::Lock;
use netvm::{
    Access, ChannelConfig, CompletionQueue, Error, Modes, NodeId, Port, PortConfig, Receiver, Region,
    RegionSlice, RemoteSegment, Sender, Status, Timeout,
};
use netvm_process::SoftNode;
use netvm_process::soft::ClusterKey;
use rustix::event::{PollFd, PollFlags};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(20);

/// Two nodes of this process, with a port each.
struct Pair {
    here: Port,
    there: Port,
    target: NodeId,
    _nodes: [SoftNode; 2],
}

impl Pair {
    fn new() -> Self {
        let [one, two] = [(), ()].map(|()| SoftNode::builder().start().unwrap());
        let target = one.connect(&format!("#{}", two.number()), PATIENCE).unwrap();
        Self {
            here: Port::open(&one.node(), PortConfig::default()).unwrap(),
            there: Port::open(&two.node(), PortConfig::number(7)).unwrap(),
            target,
            _nodes: [one, two],
        }
    }

    /// A page of the second one, which the first one has imported.
    fn page(&self) -> (Region, netvm::Export, RemoteSegment) {
        let memory = self.there.alloc(4096).unwrap();
        let access = Access::everyone().notify(1..=9);
        let export = self.there.export("page", &memory, .., access).unwrap();
        let remote = self.here.import(self.target, 7.into(), "page", PATIENCE).unwrap();
        (memory, export, remote)
    }
}

#[test]
fn from_verbs() -> netvm::Result<()> {
    let pair = Pair::new();
    let (port, target) = (&pair.there, pair.target);
    let mut buffer = vec![0_u64; 1 << 20];

    let bytes = NonNull::new(buffer.as_mut_ptr()).expect("not null").cast();
    // SAFETY: `buffer` outlives `region` and is reached through it alone.
    let region = unsafe { port.adopt(bytes, 8 << 20) }?;
    let access = Access::everyone().modes(Modes::READ | Modes::WRITE | Modes::ATOMIC);
    let export = port.export("buffer", &region, .., access.notify(1..=1))?;

    let port = &pair.here;
    let remote = port.import(target, 7.into(), "buffer", PATIENCE)?;
    let source = port.alloc(64 << 10)?;

    remote.write(0, &source).notify(1).post()?; // RDMA write with immediate
    let mut back = [0; 4096];
    remote.read(8192, &mut back).call()?; // RDMA read, and the wait for it
    let old = remote.word64(1 << 20)?.fetch_add(1)?; // fetch-and-add
    port.flush_remote(target)?; // all of it has landed

    assert_eq!(old, 0);
    assert_eq!(region.word64(1 << 20)?.load()?, 1);
    drop((export, region));
    Ok(())
}

#[test]
fn from_libfabric() -> netvm::Result<()> {
    let pair = Pair::new();
    let (_memory, _export, remote) = pair.page();
    let (port, target) = (&pair.here, pair.target);
    let message = [7; 200];

    // fi_write, -FI_EAGAIN, progress.
    loop {
        match remote.write(0, &message).try_post() {
            Ok(_) => break,
            Err(Error::NoRoom { lacks }) => port.block_on(port.room(lacks))?,
            Err(error) => return Err(error),
        }
    }
    port.begin_flush_received(target)?.wait()?; // FI_TRANSMIT_COMPLETE
    port.begin_flush_remote(target)?.wait()?; // FI_DELIVERY_COMPLETE
    Ok(())
}

#[test]
fn from_ucx() -> netvm::Result<()> {
    let pair = Pair::new();
    let (_memory, _export, remote) = pair.page();
    let (port, target, there) = (&pair.here, pair.target, &pair.there);

    // ucp_put_nbi, many of them, and ucp_ep_flush_nb.
    for at in 0..16 {
        remote.write(at * 64, &[at as u8; 64]).post()?;
    }
    let mut flush = port.begin_flush_remote(target)?;
    while !flush.is_done() {
        std::hint::spin_loop(); // or other work; the card needs no progress call
    }
    flush.wait()?;

    // ucp_am_send and its handler: a channel.
    let mut receiver = Receiver::open(there, "requests", ChannelConfig::default())?;
    let mut sender = Sender::join(port, target, there.id(), "requests", PATIENCE)?;
    sender.send(b"a request", PATIENCE)?;
    let request = receiver.recv(PATIENCE)?;
    assert_eq!(request.to_vec()?, b"a request");
    Ok(())
}

#[test]
fn from_mpi() -> netvm::Result<()> {
    let pair = Pair::new();
    let (home, port, target) = (&pair.there, &pair.here, pair.target);

    // MPI_Win_allocate at the target, and what its peers do with the window.
    let window = home.alloc(1 << 20)?;
    let _window = home.export("window", &window, .., Access::everyone().notify(1..=1))?;
    let _lock = Lock::create(home, "lock", Access::everyone())?;

    let remote = port.import(target, 7.into(), "window", PATIENCE)?;
    let mut lock = Lock::join(port, target, 7.into(), "lock", PATIENCE)?;

    let held = lock.acquire()?; // MPI_Win_lock(MPI_LOCK_EXCLUSIVE)
    remote.write(64, b"put").post()?; // MPI_Put
    let sum = remote.word64(0)?.fetch_add(5)?; // MPI_Fetch_and_op(MPI_SUM)
    port.flush_remote(target)?; // MPI_Win_flush
    held.release()?; // MPI_Win_unlock
    remote.notify(1)?; // MPI_Win_complete

    let exposed = home.notification(1)?;
    exposed.wait(PATIENCE)?; // MPI_Win_wait
    exposed.ack()?;
    assert_eq!((sum, window.word64(0)?.load()?), (0, 5));
    Ok(())
}

#[test]
fn order() -> netvm::Result<()> {
    let pair = Pair::new();
    let (memory, _export, remote) = pair.page();
    let port = &pair.there;
    let data = [1; 256];

    // A flag that is polled: it must not land before the data.
    remote.write(1024, &data).post()?;
    remote.write(0, &1_u64.to_le_bytes()).ordered().post()?;

    // A notification comes after the data by itself.
    remote.write(2048, &data).notify(3).post()?;

    let arrived = port.notification(3)?;
    arrived.wait(PATIENCE)?;
    arrived.ack()?;
    let mut seen = [0; 256];
    memory.read_into(1024, &mut seen)?;
    assert_eq!((memory.word64(0)?.load()?, seen), (1, data));
    Ok(())
}

/// What a caller does with a failure: told once, by the next call to that node.
fn send_until_it_lands(port: &Port, remote: &RemoteSegment, bytes: &[u8]) -> netvm::Result<()> {
    loop {
        let sent = remote.write(0, bytes).post();
        match sent.and_then(|_| port.flush_remote(remote.node())) {
            // The page did not come in time. The next try may find it.
            Err(Error::Failed(failure)) if failure.status == Status::TimedOut => {}
            // Gone for good, or a new import is needed: the caller's to decide.
            end => return end,
        }
    }
}

#[test]
fn errors() {
    let pair = Pair::new();
    let (_memory, export, remote) = pair.page();
    assert_eq!(send_until_it_lands(&pair.here, &remote, b"lands"), Ok(()));
    export.unexport().unwrap();
    let error = send_until_it_lands(&pair.here, &remote, b"too late").unwrap_err();
    assert_eq!(error.status(), Some(Status::CapabilityRefused));
    println!("{error}");
}

#[test]
fn access_lists() -> netvm::Result<()> {
    let pair = Pair::new();
    let (port, client) = (&pair.there, pair.here.node().id());
    let memory = port.alloc(4096)?;

    let readers = Access::everyone().modes(Modes::READ);
    let _public = port.export("public", &memory, ..1024, readers)?;
    let one_writer = Access::nobody().and_node(client, Modes::READ | Modes::WRITE);
    let private = port.export("private", &memory, 1024.., one_writer)?;

    let import = |name| pair.here.import(pair.target, 7.into(), name, PATIENCE);
    let refused = import("public")?.write(0, b"x").post().unwrap_err();
    assert!(matches!(refused, Error::ModeRefused { .. }));
    let remote = import("private")?;
    remote.write(0, b"x").post()?;
    pair.here.flush_remote(pair.target)?;

    private.unexport()?; // each later operation of each importer is refused
    remote.write(0, b"y").post()?;
    let refused = pair.here.flush_remote(pair.target).unwrap_err();
    assert_eq!(refused.status(), Some(Status::CapabilityRefused));
    Ok(())
}

#[test]
fn a_key() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("key-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    ClusterKey::generate()?.write_file(&path)?;

    let node = SoftNode::builder()
        .udp("127.0.0.1:0")
        .key(ClusterKey::read_file(&path)?)
        .start()?;

    let other = SoftNode::builder().udp("127.0.0.1:0").start()?;
    let address = format!("udp://{}", node.udp_address().expect("it has UDP"));
    let refused = other.connect(&address, PATIENCE).unwrap_err().to_string();
    assert!(refused.contains("cluster key"), "{refused}");
    std::fs::remove_file(&path)?;
    Ok(())
}

#[test]
fn tuned() -> Result<(), Box<dyn std::error::Error>> {
    let node = SoftNode::builder()
        .udp("127.0.0.1:0")
        .window(1024) // it is long: four times as many messages may be on their way
        .peer_timeout(Duration::from_secs(1)) // a peer that is silent for so long is lost
        .page_timeout(Duration::from_secs(5)) // a page of ours that takes longer fails its operation
        .start()?;
    let port = Port::open(&node.node(), PortConfig::default().spins(2_000))?;
    assert_eq!(port.node().id(), node.number());
    Ok(())
}

#[test]
fn a_completion_queue() -> netvm::Result<()> {
    let pair = Pair::new();
    let memory = pair.there.alloc(16 * 4096)?;
    let _export = pair.there.export("pages", &memory, .., Access::everyone())?;
    let port = &pair.here;
    let remote = port.import(pair.target, 7.into(), "pages", PATIENCE)?;
    let local = port.alloc(16 * 4096)?;
    let mut seen = Vec::new();

    let mut queue = CompletionQueue::new(port);
    for page in 0..16 {
        let at = page * 4096;
        queue.add(remote.read(at, local.slice(at..at + 4096)?).begin()?, page)?;
    }
    while let Some(ended) = queue.next_for(PATIENCE)? {
        ended.result?;
        seen.push(ended.context);
    }

    seen.sort_unstable();
    assert_eq!(seen, (0..16).collect::<Vec<_>>());
    Ok(())
}

/// A write, in a loop that polls.
fn looped(port: &Port, remote: &RemoteSegment) -> netvm::Result<()> {
    let mut events = port.events()?;
    remote.write(0, b"hello").try_post()?;
    let mut landed = port.begin_flush_remote(remote.node())?;
    loop {
        events.turn()?; // calls handlers, wakes futures
        events.arm()?; // the next end of an operation makes it readable
        if let Some(end) = landed.end() {
            return end;
        }
        let mut ready = [PollFd::new(&events, PollFlags::IN)];
        rustix::event::poll(&mut ready, None).expect("poll"); // with your other descriptors
    }
}

async fn copy(
    port: &Port,
    from: &RemoteSegment,
    to: &RemoteSegment,
    page: &RegionSlice,
) -> netvm::Result<()> {
    from.read(0, page).begin()?.await?;
    while let Err(Error::NoRoom { lacks }) = to.write(0, page).try_post() {
        port.room(lacks).await?;
    }
    port.begin_flush_remote(to.node())?.await
}

/// Sends a file's bytes, and tells that they have landed.
async fn upload(sender: Sender, mut file: impl AsyncRead + Unpin) -> std::io::Result<u64> {
    let mut out = sender.into_async_writer();
    let sent = tokio::io::copy(&mut file, &mut out).await?;
    out.shutdown().await?; // a farewell, and everything has landed
    Ok(sent)
}

#[test]
fn under_tokio() -> Result<(), Box<dyn std::error::Error>> {
    let pair = Pair::new();
    let receiver = Receiver::open(&pair.there, "upload", ChannelConfig::default())?;
    let sender = Sender::join(&pair.here, pair.target, pair.there.id(), "upload", PATIENCE)?;
    let file: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let source = std::io::Cursor::new(file.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let came = runtime.block_on(async {
        // Both run on one thread, so neither may wait inside of a poll for the other.
        let sent = tokio::spawn(upload(sender, source));
        let mut came = Vec::new();
        let mut reader = receiver.into_async_reader();
        reader.read_to_end(&mut came).await?;
        assert_eq!(sent.await.expect("no panic")?, file.len() as u64);
        std::io::Result::Ok(came)
    })?;
    assert!(came == file);
    Ok(())
}

#[test]
fn without_blocking() -> netvm::Result<()> {
    let pair = Pair::new();
    let (memory, _export, remote) = pair.page();
    looped(&pair.here, &remote)?;
    let second = pair.there.alloc(4096)?;
    let _other = pair.there.export("other", &second, .., Access::everyone())?;
    let to = pair.here.import(pair.target, 7.into(), "other", PATIENCE)?;
    let page = pair.here.alloc(4096)?.whole();
    pair.here
        .block_on_for(copy(&pair.here, &remote, &to, &page), PATIENCE)??;
    let mut texts = [[0; 5]; 2];
    memory.read_into(0, &mut texts[0])?;
    second.read_into(0, &mut texts[1])?;
    assert_eq!(texts, [*b"hello"; 2]);
    Ok(())
}

/// The same memory at two ports: each has a worker of its own for the pages that are missing.
#[test]
fn two_ports_adopt_the_same_bytes() -> netvm::Result<()> {
    let pair = Pair::new();
    let second = Port::open(pair.there.node(), PortConfig::number(8))?;
    let mut bytes = vec![0_u64; 512];
    let start = NonNull::new(bytes.as_mut_ptr()).expect("not null").cast();
    let mut exports = Vec::new();
    for port in [&pair.there, &second] {
        // SAFETY: the bytes outlive the regions, and are reached through them alone.
        let region = unsafe { port.adopt(start, 4096) }?;
        exports.push(port.export("same", &region, .., Access::everyone())?);
    }
    let import = |port: u16| pair.here.import(pair.target, port.into(), "same", PATIENCE);
    import(7)?.write(8, b"one of them").post()?;
    pair.here.flush_remote(pair.target)?;
    let mut other = [0; 11];
    import(8)?.read(8, &mut other).call()?;
    assert_eq!(&other, b"one of them");
    Ok(())
}

/// Memory of `alloc` as atomics: a program's own threads see what lands without a call of the library.
#[test]
fn views() -> netvm::Result<()> {
    let pair = Pair::new();
    let (memory, _export, remote) = pair.page();
    remote.write(0, b"x").notify(1).post()?;
    let arrived = pair.there.notification(1)?;
    arrived.wait(Timeout::After(PATIENCE))?;
    let bytes = memory.atomics().expect("memory of alloc is mapped");
    assert_eq!(bytes[0].load(Ordering::Acquire), b'x');
    Ok(())
}
