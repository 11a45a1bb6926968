//! The client's side of a session.

use std::time::{Duration, SystemTime};

use netvm::{ChannelConfig, Error, PortId, Receiver, Refusal, Sender, SharedSender, Status, Timeout};

use super::{Answer, ORDERS, Order, REQUESTS, Request, TEXT_BYTES, TEXTS, VERSION, read, text};
use crate::failure::Failure;
use crate::processes::{Client, PATIENCE, PORT, wrong};

/// A server that takes part in measurements of this client.
pub(in crate::processes) struct Session {
    orders: Sender,
    answers: Receiver,
    /// The server's port for it.
    pub(in crate::processes) port: PortId,
}

impl Session {
    /// Asks the server for one.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] for a server of a release without sessions; [`Failure::Wrong`] if it refuses or the link ends.
    pub(in crate::processes) fn begin(client: &Client) -> Result<Self, Failure> {
        let of_another_release = || Failure::Unavailable {
            what: "the server knows no channels and no requests of clients: its netvm is of another release"
                .into(),
            fix:
                "start `netvm serve` with the netvm that measures, or measure --what write,read,atomic,notify"
                    .into(),
        };
        let requests = SharedSender::join(&client.port, client.peer, PORT, REQUESTS, Timeout::Now);
        let requests = requests.map_err(|error| match error {
            Error::NotAChannel { .. }
            | Error::Import {
                reason: Refusal::Status(Status::NoSuchExport),
                ..
            } => of_another_release(),
            other => wrong(other),
        })?;
        let request = Request {
            version: VERSION,
            serial: serial(),
        };
        let mut answers = Receiver::open(&client.port, &request.answers(), texts().from_node(client.peer))
            .map_err(wrong)?;
        requests.send(&text(&request), PATIENCE).map_err(wrong)?;
        let port = match answer(&mut answers, PATIENCE) {
            Ok(Answer::Ready { port }) => PortId(port),
            Ok(Answer::Refused { why }) => return Err(Failure::Wrong(format!("the server refuses: {why}"))),
            Err(Failure::Wrong(what)) => {
                return Err(Failure::Wrong(format!("the server does not answer: {what}")));
            }
            _ => return Err(of_another_release()),
        };
        let orders = Sender::join(&client.port, client.peer, port, ORDERS, PATIENCE).map_err(wrong)?;
        Ok(Self {
            orders,
            answers,
            port,
        })
    }

    /// Has something done.
    ///
    /// # Errors
    /// The link has ended, or the server has.
    pub(in crate::processes) fn order(&mut self, order: Order) -> Result<(), Failure> {
        self.orders.send(&text(&order), PATIENCE).map_err(wrong)
    }

    /// What the server says to that.
    ///
    /// # Errors
    /// It says nothing in this time, or refuses.
    pub(in crate::processes) fn answer(&mut self, patience: Duration) -> Result<Answer, Failure> {
        match answer(&mut self.answers, patience)? {
            Answer::Refused { why } => Err(Failure::Wrong(format!("the server refuses: {why}"))),
            other => Ok(other),
        }
    }
}

/// How channels for orders and answers are.
pub(super) fn texts() -> ChannelConfig {
    ChannelConfig::default().message_bytes(TEXT_BYTES).capacity(TEXTS)
}

fn answer(answers: &mut Receiver, patience: Duration) -> Result<Answer, Failure> {
    let message = answers.recv(patience).map_err(wrong)?;
    read(message).map_err(wrong)?.ok_or_else(nonsense)
}

/// The server has said something that has no place there.
pub(in crate::processes) fn nonsense() -> Failure {
    Failure::Wrong("the server's answer makes no sense".into())
}

/// A number that no earlier session has with which the server could take this one for its own.
fn serial() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos() as u64;
    nanos ^ u64::from(std::process::id()).rotate_right(16)
}
