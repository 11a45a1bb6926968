//! Streams in the hands of tokio: its traits, its runtime, its helpers.
#![cfg(feature = "tokio")]

use netvm_net::{Net, NetConfig, Stream};
use netvm_process::SoftNode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, duplex};
use tokio::runtime::Builder;

/// Linked nodes, and a connection between them.
struct Pair {
    accepted: Stream,
    connected: Stream,
    _nets: [Net; 2],
    _nodes: [SoftNode; 2],
}

fn pair(config: &NetConfig) -> Pair {
    let nodes = [(); 2].map(|()| SoftNode::builder().start().unwrap());
    let name = format!("#{}", nodes[0].number());
    nodes[1].connect(&name, Duration::from_secs(10)).unwrap();
    let nets = [0, 1].map(|at: usize| Net::open(&nodes[at].node(), config.clone()).unwrap());
    let mut listener = nets[0].listen(0).unwrap();
    let connected = nets[1].connect(listener.local_address()).unwrap();
    Pair {
        accepted: listener.accept().unwrap(),
        connected,
        _nets: nets,
        _nodes: nodes,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// An echo by `copy`, many times what a window holds, on one thread: neither task may block it. The end of one direction is the
/// end of the other.
#[test]
fn a_copy_echoes_more_than_a_window() {
    let pair = pair(&NetConfig::default().window(64 << 10));
    let sent = pattern(1 << 20);
    let expected = sent.clone();
    Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async move {
            let (mut reader, mut writer) = pair.accepted.split();
            let echo = tokio::spawn(async move {
                let count = copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
                count
            });
            let (mut reader, mut writer) = pair.connected.split();
            let send = tokio::spawn(async move {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut heard = Vec::new();
            reader.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard.len(), expected.len());
            assert!(heard == expected, "other bytes than were sent");
            assert_eq!(echo.await.unwrap(), expected.len() as u64);
            send.await.unwrap();
        });
}

/// A proxy: a connection on one side, an in-memory pipe of tokio's on the other. A read that is given up takes no bytes along.
#[test]
fn a_stream_is_proxied_and_a_read_may_be_given_up() {
    let mut pair = pair(&NetConfig::default());
    Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async move {
            let mut byte = [0];
            {
                let read = std::pin::pin!(pair.connected.read(&mut byte));
                let given_up = futures_util::future::select(read, std::future::ready(())).await;
                assert!(
                    matches!(given_up, futures_util::future::Either::Right(_)),
                    "nothing was sent yet"
                );
            }
            let (mut program, mut pipe) = duplex(1000);
            let proxy = tokio::spawn(async move { copy_bidirectional(&mut pair.accepted, &mut pipe).await });
            pair.connected.write_all(b"a question").await.unwrap();
            let mut heard = [0; 10];
            program.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"a question");
            program.write_all(b"its answer").await.unwrap();
            pair.connected.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"its answer");
            AsyncWriteExt::shutdown(&mut pair.connected).await.unwrap();
            drop(program);
            let (there, back) = proxy.await.unwrap().unwrap();
            assert_eq!((there, back), (10, 10));
            assert_eq!(pair.connected.read(&mut byte).await.unwrap(), 0);
        });
}
