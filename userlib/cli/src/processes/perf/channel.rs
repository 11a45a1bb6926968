//! The messages of a channel to the server.

use std::time::{Duration, Instant};

use netvm::{ChannelConfig, Receiver, Region, Sender, Source};

use super::lane::SINGLES;
use super::line::Line;
use crate::failure::Failure;
use crate::processes::session::{Answer, MESSAGES, Order, RETURNS, Session, Way, capacity, nonsense};
use crate::processes::spread::Spread;
use crate::processes::{Client, PATIENCE, wrong};

/// Bytes of a message that is copied to be sent, at most; a longer one is taken from where it is.
const COPIED: usize = 4096;

/// A channel that is measured.
pub(super) struct Channel<'a> {
    session: &'a mut Session,
    messages: Sender,
    returns: Receiver,
    capacity: u32,
    take: Letter,
    send_back: Letter,
    count: Letter,
    /// Sent to be taken, or to come back.
    sent: u64,
}

/// A message that says what becomes of it.
struct Letter {
    bytes: Vec<u8>,
    /// The same, where it is sent from there.
    region: Option<Region>,
}

impl Letter {
    fn new(client: &Client, size: u32, way: Way) -> Result<Self, Failure> {
        let mut bytes = vec![0xA5; size as usize];
        if let Some(first) = bytes.first_mut() {
            *first = way as u8;
        }
        let region = if bytes.len() > COPIED {
            let region = client.port.alloc(size.into()).map_err(wrong)?;
            region.write_from(0, &bytes).map_err(wrong)?;
            Some(region)
        } else {
            None
        };
        Ok(Self { bytes, region })
    }

    fn source(&self) -> Source<'_> {
        match &self.region {
            Some(region) => region.into(),
            None => (&self.bytes).into(),
        }
    }
}

impl<'a> Channel<'a> {
    /// Opens one for messages of this size, of which `depth` are under way if that is not too much.
    pub(super) fn open(
        client: &Client,
        session: &'a mut Session,
        size: u32,
        depth: u32,
    ) -> Result<Self, Failure> {
        let capacity = capacity(size, depth);
        let config = ChannelConfig::default()
            .message_bytes(size.into())
            .capacity(capacity);
        let config = config.from_port(client.peer, session.port);
        let returns = Receiver::open(&client.port, RETURNS, config).map_err(wrong)?;
        session.order(Order::Channel { size, capacity })?;
        if session.answer(PATIENCE)? != Answer::Open {
            return Err(nonsense());
        }
        let messages = Sender::join(&client.port, client.peer, session.port, MESSAGES, PATIENCE);
        Ok(Self {
            session,
            messages: messages.map_err(wrong)?,
            returns,
            capacity,
            take: Letter::new(client, size, Way::Take)?,
            send_back: Letter::new(client, size, Way::Return)?,
            count: Letter::new(client, 1, Way::Count)?,
            sent: 0,
        })
    }

    /// Both ends learn of each other, and each entry of the queues is used once.
    pub(super) fn warm_up(&mut self, time: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        for _ in 0..self.capacity {
            if begin.elapsed() < time {
                self.there_and_back()?;
            } else {
                self.take()?;
            }
        }
        self.await_taken()
    }

    /// Measures it.
    pub(super) fn measure(&mut self, size: u32, time: Duration) -> Result<Line, Failure> {
        let mut times = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < time && times.len() < SINGLES {
            let one = Instant::now();
            self.there_and_back()?;
            times.push(one.elapsed() / 2);
        }
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < time {
            // The clock is not looked at for each.
            for _ in 0..16 {
                self.take()?;
            }
            count += 16;
        }
        self.await_taken()?;
        let took = begin.elapsed();
        Ok(Line::new("channel", size, (count, took), Spread::of(times)))
    }

    fn take(&mut self) -> Result<(), Failure> {
        self.messages.send(self.take.source(), PATIENCE).map_err(wrong)?;
        self.sent += 1;
        Ok(())
    }

    /// Waits until the server has taken all that was sent.
    fn await_taken(&mut self) -> Result<(), Failure> {
        self.messages.send(self.count.source(), PATIENCE).map_err(wrong)?;
        let taken = self.session.answer(PATIENCE)?;
        if taken == (Answer::Taken { messages: self.sent }) {
            return Ok(());
        }
        Err(Failure::Wrong(format!(
            "{} messages were sent, and the server says {taken:?}",
            self.sent
        )))
    }

    fn there_and_back(&mut self) -> Result<(), Failure> {
        self.messages
            .send(self.send_back.source(), PATIENCE)
            .map_err(wrong)?;
        self.sent += 1;
        let returned = self.returns.recv(PATIENCE).map_err(wrong)?;
        if returned.len() == self.send_back.bytes.len() {
            Ok(())
        } else {
            Err(Failure::Wrong(format!(
                "a message of {} bytes came back with {}",
                self.send_back.bytes.len(),
                returned.len()
            )))
        }
    }

    /// Ends it.
    pub(super) fn close(self) -> Result<(), Failure> {
        self.messages.close().map_err(wrong)?;
        match self.session.answer(PATIENCE)? {
            Answer::Closed => Ok(()),
            _ => Err(nonsense()),
        }
    }
}
