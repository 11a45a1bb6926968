//! Programs that wait for one another in a queue, and send one another messages: by a channel from each to the home, and
//! all by one shared queue.

mod channel;
mod payload;
mod shared;
mod turns;

use super::{Life, patience, reach};
use crate::dice::Dice;
use crate::workload::{Env, QUEUES, QUEUES_HOME, Role};
use channel::{Came, Incoming, Outgoing};
use netvm::sync::WaitQueue;
use netvm::{Access, Error, Port, PortConfig, Result, Timeout};
use netvm_abi::NodeId;
use shared::{Asks, Served};
use std::time::Duration;
use turns::Turns;

/// Programs beside the home.
const PROGRAMS: usize = 3;
/// Messages that the home takes at a time.
const BATCH: usize = 6;

/// The lives of what the home offers.
#[derive(Clone, Default)]
struct Lives {
    /// The latest of any kind.
    latest: Life,
    /// Of the wait queue and the shared queue.
    home: Life,
    /// Of the channel from each program. One ends with its first sender, and another one comes.
    channels: [Life; PROGRAMS],
}

/// The home of the queues, and programs on some nodes.
pub(super) fn roles(home: NodeId, nodes: u16) -> Vec<Role> {
    let lives = Lives::default();
    let offered = lives.clone();
    let mut owner = Role::new("home of queues", home, move |mut env| {
        let mut dice = env.dice.split(0);
        env.ends("the home of queues", own(&env, &mut dice, &offered));
    });
    owner.server = true;
    let others = (0..PROGRAMS.min(nodes.into())).map(|at| {
        let lives = lives.clone();
        let id = NodeId((home.0 + at as u16) % nodes);
        Role::new("user of queues", id, move |mut env| {
            let mut dice = env.dice.split(0);
            env.ends("a user of queues", share(&env, &mut dice, &lives, home, at));
        })
    });
    std::iter::once(owner).chain(others).collect()
}

/// The name of the wait queue of a life of the home.
fn waits(life: u64) -> String {
    format!("waits {life}")
}

/// Lets some time pass.
fn pause(port: &Port, micros: u64) -> Result<()> {
    match port.notification(1)?.wait(Duration::from_micros(micros)) {
        Ok(_) | Err(Error::TimedOut) => Ok(()),
        Err(error) => Err(error),
    }
}

fn own(env: &Env, dice: &mut Dice, lives: &Lives) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(QUEUES_HOME.0))?;
    let life = lives.latest.next();
    let name = waits(life);
    let _waits = WaitQueue::create(&port, &name, Access::everyone())?;
    let queue = WaitQueue::join(&port, env.id, QUEUES_HOME, &name, patience(env))?;
    let turns = Turns::new(life, queue);
    let mut served = Served::open(&port, life)?;
    let open = |at: usize| {
        let life = lives.latest.next();
        let channel = Incoming::open(env, &port, life)?;
        lives.channels[at].0.set(life);
        Ok(channel)
    };
    let mut channels = (0..PROGRAMS).map(open).collect::<Result<Vec<_>>>()?;
    lives.home.0.set(life);
    while !env.stage.closing() {
        for (at, channel) in channels.iter_mut().enumerate() {
            let timeout = drawn_timeout(dice);
            for _ in 0..BATCH {
                let holds = dice.below(8) == 0;
                match channel.take(timeout, || if holds { pause(&port, 60) } else { Ok(()) })? {
                    Came::Message => {}
                    Came::Nothing => break,
                    Came::End => {
                        *channel = open(at)?;
                        break;
                    }
                }
            }
        }
        let timeout = drawn_timeout(dice);
        for _ in 0..BATCH {
            let holds = dice.below(8) == 0;
            if !served.take(env, timeout, || if holds { pause(&port, 60) } else { Ok(()) })? {
                break;
            }
        }
        // So that no program waits for ever for those that have ended.
        if env.stage.stopped() {
            while turns.signal(env)? {}
        } else if dice.below(3) == 0 {
            turns.signal(env)?;
        }
        pause(&port, if env.stage.stopped() { 2_000 } else { 150 })?;
    }
    if env.stage.is_calm() {
        finish(env, &mut served, &mut channels)?;
    }
    Ok(())
}

/// How long a receive waits: mostly not at all.
fn drawn_timeout(dice: &mut Dice) -> Timeout {
    match dice.below(8) {
        0 => Timeout::After(Duration::from_micros(40)),
        _ => Timeout::Now,
    }
}

/// All programs have ended: what they have sent is there, and they have said that it was all.
fn finish(env: &Env, served: &mut Served, channels: &mut [Incoming<'_>]) -> Result<()> {
    served.drain(env)?;
    for channel in channels.iter_mut().filter(|channel| channel.has_sender()) {
        loop {
            match channel.take(Duration::from_secs(1), || Ok(()))? {
                Came::Message => {}
                Came::End => break,
                Came::Nothing => {
                    env.complain("a channel does not end, whose sender has gone".into());
                    break;
                }
            }
        }
    }
    Ok(())
}

/// A program that uses them.
struct User<'e> {
    env: &'e Env,
    dice: &'e mut Dice,
    port: &'e Port,
    lives: &'e Lives,
    home: NodeId,
    /// Which of the channels is its own.
    at: usize,
    turns: [Turns; 2],
    asks: Asks,
    channel: Option<Outgoing<'e>>,
    /// The life of the last channel that is of no use any more.
    over: u64,
}

fn share(env: &Env, dice: &mut Dice, lives: &Lives, home: NodeId, at: usize) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(QUEUES.0))?;
    let join_all = || {
        let life = lives.home.0.get();
        let join = || WaitQueue::join(&port, home, QUEUES_HOME, &waits(life), patience(env));
        let turns = [Turns::new(life, join()?), Turns::new(life, join()?)];
        Ok((turns, Asks::join(env, &port, home, life)?))
    };
    let Some((turns, asks)) = reach(env, join_all)? else {
        return Ok(());
    };
    let mut user = User {
        env,
        dice,
        port: &port,
        lives,
        home,
        at,
        turns,
        asks,
        channel: None,
        over: 0,
    };
    let end = user.live();
    user.turns[0].leave(env);
    end
}

impl User<'_> {
    fn live(&mut self) -> Result<()> {
        // In the calm, one of each that goes well is asked for.
        if self.env.calm {
            self.asks.send(self.env)?;
            self.turn()?;
            while !self.has_channel()? {
                pause(self.port, 500)?;
            }
            self.burst()?;
        }
        while !self.env.stage.stopped() {
            match self.dice.below(16) {
                0..6 => self.burst()?,
                6..10 => self.asks.send(self.env)?,
                10..13 => {
                    if !self.turn()? {
                        return Ok(());
                    }
                }
                _ => drop(self.turns[0].signal(self.env)?),
            }
        }
        self.close()
    }

    /// Stands in the wait queue, by one participant or by both, until woken. Now and then it goes before that, as if it had
    /// died: whether it has not.
    fn turn(&mut self) -> Result<bool> {
        let (env, first) = (self.env, Duration::from_micros(self.dice.below(300)));
        let (both, goes) = (self.dice.below(2) == 0, self.dice.below(48) == 0 && !env.calm);
        let [one, two] = &mut self.turns;
        let one = one.stand(env)?;
        if goes {
            one.leave(env);
            return Ok(false);
        }
        if both {
            let two = two.stand(env)?;
            one.wait(env, first)?;
            two.wait(env, first)?;
        } else {
            one.wait(env, first)?;
        }
        Ok(true)
    }

    /// Whether it has joined its channel.
    fn has_channel(&mut self) -> Result<bool> {
        let life = self.lives.channels[self.at].0.get();
        if self.channel.is_none() && life != self.over {
            match Outgoing::join(self.env, self.port, self.home, life) {
                Ok(channel) => self.channel = Some(channel),
                // Another life of this program was its sender.
                Err(Error::ChannelTaken) => self.over = life,
                Err(Error::Import { .. } | Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.channel.is_some())
    }

    /// Some messages by the channel, which then ends now and then.
    fn burst(&mut self) -> Result<()> {
        if !self.has_channel()? {
            return Ok(());
        }
        for _ in 0..1 + self.dice.below(8) {
            let slice = self.dice.below(4) == 0;
            let Some(channel) = &mut self.channel else {
                return Ok(());
            };
            if !channel.send(self.port, slice)? {
                self.over = channel.life;
                self.channel = None;
            }
        }
        if self.dice.below(8) == 0 {
            self.close()?;
        }
        Ok(())
    }

    /// Ends the channel, if there is one.
    fn close(&mut self) -> Result<()> {
        let Some(channel) = self.channel.take() else {
            return Ok(());
        };
        self.over = channel.life;
        match channel.close() {
            // The home's part of it, and told to the histories.
            Err(Error::ChannelClosed | Error::ChannelBroken { .. } | Error::MessagesLost)
                if !self.env.calm =>
            {
                Ok(())
            }
            end => end,
        }
    }
}
