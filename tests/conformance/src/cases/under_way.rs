//! Operations under way as values: a program that never waits inside of a call.

use crate::env::{Env, pass};
use crate::outcome::{Outcome, right};
use crate::pattern;
use crate::side::Side;
use netvm::{Error, Pending, RegionSlice, RemoteSegment, Result};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

const PAGE: u64 = 4096;
/// Pages that a round fills: more messages than a command queue holds.
const PAGES: u64 = 100;

/// Posts with `post`, as often as there is no room, and awaits the room meanwhile.
async fn posted<T>(side: &Side, mut post: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match post() {
            Err(Error::NoRoom { lacks }) => side.room(lacks).await?,
            other => return other,
        }
    }
}

/// Ends when all of them have.
async fn all(mut operations: Vec<Pending>) -> Result<()> {
    poll_fn(|context| {
        let mut ended = Ok(());
        operations.retain_mut(|operation| match Pin::new(operation).poll(context) {
            Poll::Pending => true,
            Poll::Ready(end) => {
                ended = ended.and(end);
                false
            }
        });
        match (ended, operations.is_empty()) {
            (Ok(()), false) => Poll::Pending,
            (ended, _) => Poll::Ready(ended),
        }
    })
    .await
}

/// Where an operation begins, and the one before ends: here and there inside of a page, so that some are two messages.
const fn border(page: u64) -> u64 {
    page * PAGE + page % 3 * 8
}

/// Begins a read or write of each page.
async fn each_page(
    side: &Side,
    local: &netvm::Region,
    begin: impl Fn(u64, RegionSlice) -> Result<Pending>,
) -> Result<Vec<Pending>> {
    let mut operations = Vec::new();
    for page in 0..PAGES {
        let start = border(page);
        let slice = local.slice(start..border(page + 1))?;
        operations.push(posted(side, || begin(start, slice.clone())).await?);
    }
    Ok(operations)
}

async fn round(side: &Side, remote: &RemoteSegment, local: &netvm::Region, seed: u64) -> Result<bool> {
    let bytes = pattern::bytes(seed, 0, border(PAGES) as usize);
    local.write_from(0, &bytes)?;
    let writes = each_page(side, local, |start, slice| remote.write(start, slice).begin()).await?;
    // The source may change when a write has ended.
    all(writes).await?;
    local.write_from(0, &vec![0; bytes.len()])?;
    posted(side, || side.begin_flush_received(side.peer()))
        .await?
        .await?;
    posted(side, || side.begin_flush_remote(side.peer()))
        .await?
        .await?;
    let count = remote.word64((PAGES + 1) * PAGE)?;
    let adds = [
        posted(side, || count.add(1).try_post()).await?,
        posted(side, || count.add(1).try_post()).await?,
    ];
    let reads = each_page(side, local, |start, slice| remote.read(start, slice).begin()).await?;
    all(reads).await?;
    let mut seen = 0;
    for add in adds {
        seen += add.await?.value;
    }
    let mut back = vec![0; bytes.len()];
    local.read_into(0, &mut back)?;
    Ok(seen == 4 * seed + 1 && back == bytes)
}

pub(super) fn awaited(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(6));
    env.pair(
        move |side| {
            let _shared = side.share("pages", (PAGES + 2) * PAGE)?;
            side.take_signal(1)
        },
        move |side| {
            let remote = side.import_peer("pages")?;
            let local = side.alloc((PAGES + 1) * PAGE)?;
            for seed in 0..rounds {
                let whole = round(&side, &remote, &local, seed);
                let whole = side.block_on_for(whole, side.env.patience)??;
                right!(whole, "round {seed}: other bytes came back than were written");
            }
            remote.notify(1)?;
            side.flush_peer()
        },
    )
}

/// Posts with `post`, as often as there is no room, and asks for none.
fn retried<T>(side: &Side, mut post: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match post() {
            Err(Error::NoRoom { .. }) => pass(side, Duration::from_micros(2))?,
            other => return other,
        }
    }
}

/// A write, then a read, of nearly as many messages as a queue holds, over and over: each needs nearly all of its places, or of
/// those for answers.
pub(super) fn retried_until_there_is_room(env: &Env) -> Outcome {
    const MOST: u64 = 22 * PAGE + 9;
    let rounds = u64::from(env.scaled(6));
    env.pair(
        move |side| {
            let _shared = side.share("pages", 24 * PAGE)?;
            side.take_signal(1)
        },
        move |side| {
            let remote = side.import_peer("pages")?;
            let [out, back] = [side.alloc(24 * PAGE)?, side.alloc(24 * PAGE)?];
            let len = match remote.write(16, out.slice(..MOST)?).try_post() {
                // Where messages are small.
                Err(Error::MessageTooLong { limit, .. }) => limit - limit / 8,
                _ => MOST,
            };
            side.flush_peer()?;
            for seed in 0..rounds {
                let bytes = pattern::bytes(seed, 0, len as usize);
                side.flush_writes()?;
                out.write_from(0, &bytes)?;
                let (from, into) = (out.slice(..len)?, back.slice(8..len + 8)?);
                for _ in 0..3 {
                    // Cut at each page's end, here and there.
                    retried(&side, || remote.write(16, &from).try_post())?;
                }
                // Elsewhere: writes land in any order.
                retried(&side, || remote.write(23 * PAGE + 8 * seed, &[7; 300]).try_post())?;
                retried(&side, || remote.write(16, &from).try_post())?;
                let mut reads = Vec::new();
                for _ in 0..3 {
                    let read = || remote.read(16, into.clone()).ordered().begin();
                    reads.push(retried(&side, read)?);
                }
                for read in reads {
                    read.wait()?;
                }
                let mut came = vec![0; len as usize];
                back.read_into(8, &mut came)?;
                right!(
                    came == bytes,
                    "round {seed}: other bytes came back than were written"
                );
            }
            remote.notify(1)?;
            side.flush_peer()
        },
    )
}
