//! Several pieces as one operation (scatter and gather).

use crate::env::{Env, take_signal};
use crate::outcome::{Outcome, Trouble, fails, right};
use crate::pattern;
use crate::side::{Side, share};
use netvm::{Error, Modes, Region, RemoteSegment, Status};
use rand::Rng;
use std::collections::HashSet;

const PAGE: u64 = 4096;
/// A place that pieces of its own begin and end in.
const SLOT: u64 = 3 * PAGE;
/// Places in a segment.
const SLOTS: u64 = 8;
const SIZE: u64 = SLOTS * SLOT;
/// The reader may go.
const DONE: u32 = 800;

/// A piece, as both sides know it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Which of two segments.
    segment: usize,
    offset: u64,
    len: u64,
    /// From or into bytes of the program, not a region.
    bytes: bool,
}

impl Piece {
    /// Where it lies in a region here: elsewhere in a page than at the other end.
    const fn local(self) -> u64 {
        (self.segment as u64 * SIZE) + self.offset + 8
    }

    const fn range(self) -> std::ops::Range<u64> {
        self.local()..self.local() + self.len
    }

    /// Its contents.
    fn contents(self, round: u64) -> Vec<u8> {
        pattern::bytes(round, self.local(), self.len as usize)
    }
}

/// Pieces that do not overlap, in any order. The first round has some that are longer than all staging.
fn pieces(random: &mut impl Rng, round: u64) -> Vec<Piece> {
    if round == 0 {
        let whole = |segment| Piece {
            segment,
            offset: 3,
            len: SIZE - 3,
            bytes: true,
        };
        return vec![whole(1), whole(0)];
    }
    let mut places = HashSet::new();
    let count = random.random_range(1..=10);
    let mut pieces = Vec::new();
    while pieces.len() < count {
        let (segment, slot) = (random.random_range(0..2), random.random_range(0..SLOTS));
        if !places.insert((segment, slot)) {
            continue;
        }
        let len = match random.random_range(0..5) {
            0 => 8,
            1 => random.random_range(0..=128),
            2 => random.random_range(129..=1000),
            3 => PAGE,
            _ => random.random_range(0..=SLOT),
        };
        let offset = slot * SLOT + random.random_range(0..=SLOT - len);
        let bytes = random.random();
        pieces.push(Piece {
            segment,
            offset,
            len,
            bytes,
        });
    }
    pieces
}

/// What both segments hold after the writes of a round.
fn written(model: &mut [Vec<u8>; 2], pieces: &[Piece], round: u64) {
    for piece in pieces {
        let at = piece.offset as usize..(piece.offset + piece.len) as usize;
        model[piece.segment][at].copy_from_slice(&piece.contents(round));
    }
}

/// Writes pieces in the manner of this round, and signals.
fn write(side: &Side, remotes: [&RemoteSegment; 2], local: &Region, pieces: &[Piece], round: u64) -> Outcome {
    let sources: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.contents(round)).collect();
    for (piece, source) in pieces.iter().zip(&sources) {
        let bytes = if piece.bytes { &[][..] } else { source };
        local.write_from(piece.local(), bytes)?;
    }
    let vector = || {
        let mut vector = side.write_vector();
        for (piece, source) in pieces.iter().zip(&sources) {
            let remote = remotes[piece.segment];
            vector = if piece.bytes {
                vector.piece(remote, piece.offset, source)
            } else {
                vector.piece(remote, piece.offset, local.slice(piece.range())?)
            };
        }
        Ok::<_, Error>(vector.notify(1))
    };
    // Where it does not fit a queue it is posted in the manner that waits.
    let at_once = |done: netvm::Result<()>| match done {
        Err(Error::MessageTooLong { .. }) => vector()?.post().map(drop),
        done => done,
    };
    match round % 5 {
        0 => drop(vector()?.post()?),
        1 => {
            vector()?.fenced().post()?;
            // The source may change now.
            for piece in pieces.iter().filter(|piece| !piece.bytes) {
                local.write_from(piece.local(), &vec![0xEE; piece.len as usize])?;
            }
        }
        2 => loop {
            match vector()?.begin() {
                Err(Error::NoRoom { lacks }) => side.block_on_for(side.room(lacks), side.env.patience)??,
                begun => break at_once(begun.and_then(netvm::Pending::wait))?,
            }
        },
        3 => loop {
            match vector()?.try_post() {
                Err(Error::NoRoom { lacks }) => side.block_on_for(side.room(lacks), side.env.patience)??,
                posted => break at_once(posted.map(drop))?,
            }
        },
        _ => {
            // Ordered: first something else to the same places.
            let mut twice = side.write_vector().ordered();
            let other = vec![0xEE; SIZE as usize];
            for piece in pieces {
                let other = &other[..piece.len as usize];
                twice = twice.piece(remotes[piece.segment], piece.offset, other);
            }
            for (piece, source) in pieces.iter().zip(&sources) {
                twice = twice.piece(remotes[piece.segment], piece.offset, source);
            }
            twice.notify(1).post()?;
        }
    }
    Ok(())
}

pub(super) fn scattered(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(20));
    env.pair(
        move |side| {
            let shared = [side.share("left", SIZE)?, side.share("right", SIZE)?];
            let peer = side.import_peer("peer")?;
            let mut model = [vec![0; SIZE as usize], vec![0; SIZE as usize]];
            let mut random = side.env.random(1);
            for round in 0..rounds {
                written(&mut model, &pieces(&mut random, round), round);
                side.take_signal(1)?;
                for (memory, model) in shared.iter().zip(&model) {
                    pattern::check_bytes(memory, 0, model, "a vector")?;
                }
                peer.notify(1)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _shared = side.share("peer", PAGE)?;
            let [left, right] = [side.import_peer("left")?, side.import_peer("right")?];
            let local = side.alloc(2 * SIZE + PAGE)?;
            let mut random = side.env.random(1);
            for round in 0..rounds {
                let pieces = pieces(&mut random, round);
                let before = side.stats().writes;
                write(&side, [&left, &right], &local, &pieces, round)?;
                let writes = side.stats().writes - before;
                right!(writes == 1, "round {round}: a vector counts as {writes} writes");
                side.take_signal(1)?;
            }
            Ok(())
        },
    )
}

/// Reads pieces, in the manner of this round, and checks them.
fn read(side: &Side, remotes: [&RemoteSegment; 2], local: &Region, pieces: &[Piece], round: u64) -> Outcome {
    let into_slices = || {
        let mut vector = side.read_vector();
        for piece in pieces {
            vector = vector.piece(remotes[piece.segment], piece.offset, local.slice(piece.range())?);
        }
        Ok::<_, Error>(vector)
    };
    let at_once = |done: netvm::Result<()>| match done {
        Err(Error::MessageTooLong { .. }) => into_slices()?.fenced().post().map(drop),
        done => done,
    };
    match round % 4 {
        1 => drop(into_slices()?.ordered().fenced().post()?),
        2 => loop {
            match into_slices()?.begin() {
                Err(Error::NoRoom { lacks }) => side.block_on_for(side.room(lacks), side.env.patience)??,
                begun => break at_once(begun.and_then(netvm::Pending::wait))?,
            }
        },
        3 => loop {
            match into_slices()?.try_post() {
                Err(Error::NoRoom { lacks }) => side.block_on_for(side.room(lacks), side.env.patience)??,
                posted => {
                    at_once(posted.map(drop))?;
                    break side.flush_reads()?;
                }
            }
        },
        _ => {
            let mut places: Vec<Vec<u8>> = pieces
                .iter()
                .map(|piece| vec![0xEE; piece.len as usize])
                .collect();
            let mut vector = side.read_vector();
            for (piece, place) in pieces.iter().zip(&mut places) {
                vector = vector.piece(remotes[piece.segment], piece.offset, place);
            }
            vector.call()?;
            for (piece, place) in pieces.iter().zip(&places) {
                local.write_from(piece.local(), place)?;
            }
        }
    }
    for piece in pieces {
        let expected = pattern::bytes(piece.segment as u64, piece.offset, piece.len as usize);
        pattern::check_bytes(local, piece.local(), &expected, "a piece that was read")?;
    }
    Ok(())
}

pub(super) fn gathered(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(20));
    env.pair(
        move |side| {
            let shared = [side.share("left", SIZE)?, side.share("right", SIZE)?];
            for (segment, memory) in (0..).zip(&shared) {
                pattern::store(memory, 0, segment, 0, SIZE)?;
            }
            side.import_peer("peer")?.notify(1)?;
            side.take_signal(DONE)
        },
        move |side| {
            let _shared = side.share("peer", PAGE)?;
            let [left, right] = [side.import_peer("left")?, side.import_peer("right")?];
            let local = side.alloc(2 * SIZE + PAGE)?;
            side.take_signal(1)?;
            let mut random = side.env.random(1);
            for round in 0..rounds {
                let pieces = pieces(&mut random, round);
                let before = side.stats().reads;
                read(&side, [&left, &right], &local, &pieces, round)?;
                let reads = side.stats().reads - before;
                let any = u64::from(pieces.iter().any(|piece| piece.len > 0));
                right!(reads == any, "round {round}: a vector counts as {reads} reads");
                // What was read is not what is read next.
                local.write_from(0, &vec![0; (2 * SIZE + PAGE) as usize])?;
            }
            left.notify(DONE)?;
            side.flush_peer()
        },
    )
}

/// What is wrong with one piece keeps all from being posted.
pub(super) fn refused(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let memory = side.share("all", 32 * PAGE)?;
            let peer = side.import_peer("peer")?;
            let words = side.alloc(PAGE)?;
            let access = netvm::Access::everyone().modes(Modes::READ);
            let _only_read = side.export("only read", &words, .., access)?;
            side.take_signal(DONE)?;
            pattern::check_bytes(&memory, 0, &vec![0; 32 * PAGE as usize], "after refusals")?;
            peer.notify(1)?;
            side.take_signal(DONE)
        },
        move |side| {
            let _shared = side.share("peer", PAGE)?;
            let [all, only_read] = [side.import_peer("all")?, side.import_peer("only read")?];
            let local = side.alloc(32 * PAGE)?;
            pattern::store(&local, 0, 1, 0, 32 * PAGE)?;
            pieces_refused(&side, &all, &only_read, &local)?;
            too_long(&side, &all, &local)?;
            let messages = side.stats().write_messages + side.stats().read_messages;
            right!(messages == 0, "refused vectors have posted {messages} messages");
            nothing(&side, &all, &local)?;
            all.notify(DONE)?;
            side.take_signal(1)?;
            all_or_nothing(&side, &all, &local)?;
            all.notify(DONE)?;
            side.flush_peer()
        },
    )
}

fn pieces_refused(side: &Side, all: &RemoteSegment, only_read: &RemoteSegment, local: &Region) -> Outcome {
    let size = all.len();
    let out = |error: &Error| matches!(error, Error::OutOfRange { .. });
    let write = || side.write_vector().piece(all, 0, local.whole());
    let read = || side.read_vector().piece(all, 0, local);
    let bytes = [1; 300];
    fails(
        write().piece(all, size - 1, &[1, 2]).post(),
        "a last piece out of range",
        out,
    )?;
    fails(write().piece(all, size, &bytes).begin(), "the same, begun", out)?;
    fails(
        read().piece(all, size - 1, local).post(),
        "the same of a read",
        out,
    )?;
    let mut place = [0; 8];
    let vector = side.read_vector().piece(all, size - 7, &mut place);
    fails(vector.call(), "the same of bytes", out)?;
    let mode = |error: &Error| matches!(error, Error::ModeRefused { .. });
    fails(
        write().piece(only_read, 0, &bytes).try_post(),
        "a piece that may be read only",
        mode,
    )?;
    let notify = write().piece(only_read, 0, &[]).notify(1);
    fails(
        notify.post(),
        "a notification that the last piece's import lacks",
        mode,
    )?;
    let number = |error: &Error| matches!(error, Error::NotificationRefused { .. });
    fails(
        write().notify(2_000_000).post(),
        "a notification too high",
        number,
    )?;

    // Ports and their memory.
    let other = side.env.open(0, 1)?;
    let foreign = other.alloc(PAGE)?;
    let region = |error: &Error| *error == Error::ForeignRegion;
    fails(
        write().piece(all, 0, &foreign).post(),
        "another port's region",
        region,
    )?;
    fails(
        write().piece(all, 0, foreign.slice(..8)?).post(),
        "little of it",
        region,
    )?;
    fails(
        read().piece(all, 0, &foreign).begin(),
        "another port's region to read into",
        region,
    )?;
    let theirs = side.env.import(&other, 1, 0, "all")?;
    let piece = |error: &Error| *error == Error::ForeignPiece { piece: 1 };
    fails(
        write().piece(&theirs, 0, &bytes).post(),
        "another port's import",
        piece,
    )?;
    fails(
        read().piece(&theirs, 0, local).post(),
        "another port's import to read",
        piece,
    )?;
    let own = share(&other, "own", PAGE)?;
    let here = side.env.import(side, 0, 1, "own")?;
    if here.node() != all.node() {
        fails(write().piece(&here, 0, &bytes).post(), "another node", piece)?;
        fails(
            read().piece(&here, 0, local).post(),
            "another node to read",
            piece,
        )?;
    }
    drop(here);
    drop(own);

    let released = side.import_peer("all")?;
    released.unimport()?;
    let gone = |error: &Error| *error == Error::Released;
    fails(
        write().piece(&released, 0, &bytes).post(),
        "an import that has ended",
        gone,
    )
}

/// What does not fit a queue or a chunk of staging is not begun.
fn too_long(side: &Side, all: &RemoteSegment, local: &Region) -> Outcome {
    let limit = |error: &Error| matches!(error, Error::MessageTooLong { limit, len } if limit < len);
    let mut words = side.write_vector();
    for word in 0..65 {
        words = words.piece(all, word * 8, &[1; 8]);
    }
    fails(words.try_post(), "65 messages", limit)?;
    let mut words = side.read_vector();
    for word in 0..65 {
        words = words.piece(all, word * 8, local.slice(word * 8..word * 8 + 8)?);
    }
    fails(words.begin(), "65 messages to read", limit)?;
    let most = vec![1; 31 * PAGE as usize];
    let half = side.write_vector().piece(all, 0, &most).piece(all, 0, &[1; 4000]);
    fails(half.begin(), "more than a chunk of staging", limit)
}

/// Vectors of nothing.
fn nothing(side: &Side, all: &RemoteSegment, local: &Region) -> Outcome {
    let none = side.write_vector().fenced().post()?;
    right!(none.get() == 0, "a vector without pieces has the number {none}");
    let empty = side
        .write_vector()
        .piece(all, all.len(), &[])
        .piece(all, 0, local.slice(5..5)?);
    right!(empty.post()?.get() == 0, "a vector without bytes has a number");
    let none = side.read_vector().piece(all, 7, local.slice(7..7)?).fenced();
    right!(none.post()?.get() == 0, "a read without bytes has a number");
    let mut begun = side.read_vector().piece(all, 7, local.slice(7..7)?).begin()?;
    right!(begun.is_done(), "a read of nothing has not ended");
    side.read_vector().piece(all, 0, &mut []).call()?;
    let what = |error: &Error| matches!(error, Error::Empty { .. });
    fails(
        side.write_vector().notify(1).post(),
        "a notification without a piece",
        what,
    )?;
    let messages = side.stats().write_messages + side.stats().read_messages;
    right!(
        messages == 0,
        "vectors of nothing have posted {messages} messages"
    );
    Ok(())
}

/// A vector for which there is no room posts none of its pieces; tried again and again, it gets in.
fn all_or_nothing(side: &Side, all: &RemoteSegment, local: &Region) -> Outcome {
    for round in 0..8 {
        for word in 0..48 {
            all.write(16 * PAGE + word * 8, &[round; 8]).post()?;
        }
        let posted = loop {
            let before = side.stats();
            let mut vector = side.write_vector();
            for piece in 0..40 {
                vector = vector.piece(all, piece * 256, local.slice(piece * 256..piece * 256 + 200)?);
            }
            match vector.try_post() {
                Err(Error::NoRoom { lacks }) => {
                    let messages = side.stats().write_messages - before.write_messages;
                    right!(
                        messages == 0,
                        "a vector without room has posted {messages} messages"
                    );
                    side.block_on_for(side.room(lacks), side.env.patience)??;
                }
                posted => break posted?,
            }
        };
        right!(posted.get() != 0, "a vector has no number");
    }
    side.flush_peer()?;
    let mut came = [0; 200];
    for piece in 0..40 {
        all.read(piece * 256, &mut came).call()?;
        let expected = pattern::bytes(1, piece * 256, 200);
        pattern::same(&came, &expected, piece * 256, "a vector that waited for room")?;
    }
    Ok(())
}

/// A vector of which one piece fails has failed, once, by its number, and what would tell of its landing does not come.
pub(super) fn failed(env: &Env) -> Outcome {
    const ENDED: &[Status] = &[Status::CapabilityRefused, Status::Revoked];
    env.both(
        move |env| {
            let port = env.open(1, 0)?;
            let _stays = share(&port, "stays", 4 * PAGE)?;
            let memory = port.alloc(4 * PAGE)?;
            let goes = port.export("goes", &memory, .., crate::side::open_to_all())?;
            let ready = env.import(&port, 0, 0, "peer")?;
            take_signal(env, &port, 1)?;
            goes.unexport()?;
            ready.notify(1)?;
            take_signal(env, &port, DONE)?;
            let early = port.notification(2)?.pending();
            right!(early == 0, "{early} signals of vectors that have failed");
            pattern::check_bytes(&memory, 0, &[0; 4 * PAGE as usize], "what was revoked")
        },
        move |env| {
            let side = env.side(0, 1)?;
            let _peer = side.share("peer", PAGE)?;
            let [stays, goes] = [side.import_peer("stays")?, side.import_peer("goes")?];
            let local = side.alloc(4 * PAGE)?;
            stays.notify(1)?;
            side.take_signal(1)?;
            for round in 0..3_u64 {
                // Of two messages of it the failure is told once.
                let bytes = [7; 300];
                let op = side
                    .write_vector()
                    .piece(&stays, 0, &bytes)
                    .piece(&goes, PAGE * round, &bytes)
                    .piece(&goes, PAGE * round + 1000, &[1; 8])
                    .piece(&stays, 1000, &bytes)
                    .notify(2)
                    .post()?;
                match side.flush_remote(side.peer()) {
                    Err(Error::Failed(failure)) if ENDED.contains(&failure.status) => {
                        right!(failure.op == op, "operation {op} failed, {} is named", failure.op);
                    }
                    other => return Err(Trouble::Unexpected(format!("flush of a vector: {other:?}"))),
                }
                side.flush_peer()?;

                let begun = side
                    .read_vector()
                    .piece(&stays, 0, local.slice(..300)?)
                    .piece(&goes, 0, local.slice(300..600)?)
                    .begin()?;
                let op = begun.op();
                match begun.wait() {
                    Err(Error::Failed(failure)) if ENDED.contains(&failure.status) => {
                        right!(failure.op == op, "read {op} failed, {} is named", failure.op);
                    }
                    other => return Err(Trouble::Unexpected(format!("end of a read vector: {other:?}"))),
                }
                let mut places = [[0; 8], [0; 8]];
                let [first, second] = &mut places;
                let called = side
                    .read_vector()
                    .piece(&goes, 0, first)
                    .piece(&stays, 0, second)
                    .call();
                crate::outcome::refused(called, ENDED)?;
                side.flush()?;
            }
            stays.notify(DONE)?;
            side.flush_peer()
        },
    )
}
