//! The process that serves.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::pin::Pin;
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, StreamExt};
use netvm_net::{Listener, Net, NetConfig, Stream};
use netvm_process::SoftNode;

use super::{PATIENCE, PORT, Ready, SERVICE, SMALL, Wish};
use crate::failure::Failure;
use crate::output;
use crate::process::{resident_bytes, resident_bytes_in_use};
use crate::processes::cannot_start;

fn wrong(error: io::Error) -> Failure {
    Failure::Wrong(format!("the process that serves: {error}"))
}

/// Serves until standard input ends.
pub(super) fn run(client: u16, quick: bool) -> Result<(), Failure> {
    let _ = quick;
    let node = SoftNode::builder().start().map_err(cannot_start)?;
    node.connect(&format!("#{client}"), PATIENCE)
        .map_err(|error| Failure::Wrong(error.to_string()))?;
    let net = Net::open(&node.node(), NetConfig::at(PORT).peers(1)).map_err(wrong)?;
    let listener = net.listen_with(SERVICE, 1 << 20).map_err(wrong)?;
    let tcp = TcpListener::bind(("127.0.0.1", 0)).map_err(wrong)?;
    let ready = Ready {
        node: node.number().0,
        tcp: tcp.local_addr().map_err(wrong)?.port(),
    };
    let threads = [
        spawn("tcp", move || {
            loop {
                let (mut stream, _) = tcp.accept()?;
                stream.set_nodelay(true)?;
                serve(&mut stream)?;
            }
        })?,
        spawn("net", move || serve_all(&net, listener))?,
    ];
    output::print_json(&ready)?;
    // The client's end is ours.
    let mut end = Vec::new();
    io::stdin().read_to_end(&mut end).map_err(wrong)?;
    drop(threads);
    Ok(())
}

fn spawn(
    name: &str,
    body: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, Failure> {
    let body = move || {
        if let Err(error) = body() {
            // The client finds its connection closed.
            output::tell(&format!("the process that serves: {error}"));
        }
    };
    std::thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(wrong)
}

fn number<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// One connection of either kind. Gives a wish back that it is not for.
fn serve(stream: &mut (impl Read + Write)) -> io::Result<u8> {
    let [wish] = number(stream)?;
    if wish == Wish::Echo as u8 {
        let mut message = [0; SMALL];
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message)?;
        }
    } else if wish == Wish::Sink as u8 {
        let mut left = u64::from_le_bytes(number(stream)?);
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                break;
            }
            left = left.saturating_sub(len as u64);
        }
        stream.write_all(&[1])?;
    }
    Ok(wish)
}

fn serve_all(net: &Net, mut listener: Listener) -> io::Result<()> {
    loop {
        let mut stream = listener.accept()?;
        if serve(&mut stream)? == Wish::Many as u8 {
            many(net, &mut listener, &mut stream)?;
        }
    }
}

/// Many connections, read as their bytes come, by one thread.
fn many(net: &Net, listener: &mut Listener, control: &mut Stream) -> io::Result<()> {
    let count = u32::from_le_bytes(number(control)?);
    let mut streams = Vec::with_capacity(count as usize);
    control.write_all(&[1])?;
    let before = resident_bytes_in_use().unwrap_or(0);
    for _ in 0..count {
        streams.push(listener.accept()?);
    }
    let grown = resident_bytes().unwrap_or(0).saturating_sub(before);
    control.write_all(&grown.to_le_bytes())?;
    let left = u64::from_le_bytes(number(control)?);
    let left = std::cell::Cell::new(left);
    let mut readers: FuturesUnordered<_> = streams.iter_mut().map(|stream| read(stream, &left)).collect();
    net.block_on(async { while left.get() > 0 && readers.next().await.is_some() {} });
    drop(readers);
    control.write_all(&[1])
}

/// Reads a connection until it ends, or all have brought what they should.
async fn read(stream: &mut Stream, left: &std::cell::Cell<u64>) -> io::Result<()> {
    std::future::poll_fn(|context| {
        let mut buffer = [0; 4096];
        loop {
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(len)) => {
                    left.set(left.get().saturating_sub(len as u64));
                    if len == 0 || left.get() == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}
