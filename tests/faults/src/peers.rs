//! The other end of a link, as far as an attacker needs it: it greets, is greeted, knows the incarnations and roughly
//! where the windows stand, so that its lies get past the first check.

use netvm_abi::atomic::AtomicResult;
use netvm_abi::wire::{Body, Greeting, Header, Kind};
use netvm_abi::{ABI_VERSION, Geometry, Incarnation, NodeId, OpId, PAGE_SIZE, Seq, Status};

/// Another node.
pub struct Peer {
    /// Its number.
    pub id: NodeId,
    /// The node under attack.
    target: NodeId,
    window: u16,
    /// Incarnation of its own end.
    pub own: Incarnation,
    /// Incarnation of the target's end, as far as it knows.
    pub theirs: Incarnation,
    /// Whether a link exists.
    pub up: bool,
    /// Next sequence number to send.
    pub next: Seq,
    /// Lowest number that the target has not acknowledged.
    pub acked: Seq,
    /// One past the highest number received.
    pub received: Seq,
    /// Requests of the target without an answer.
    pub requests: Vec<Header>,
    lives: u32,
}

impl Peer {
    /// A node that has not been heard of.
    #[must_use]
    pub fn new(id: NodeId, target: NodeId, geometry: &Geometry) -> Self {
        Self {
            id,
            target,
            window: geometry.window,
            own: Incarnation(0),
            theirs: Incarnation(0),
            up: false,
            next: Seq(0),
            acked: Seq(0),
            received: Seq(0),
            requests: Vec::new(),
            lives: 0,
        }
    }

    /// A header of the present life.
    #[must_use]
    pub fn header(&self, kind: Kind) -> Header {
        Header {
            source_incarnation: self.own,
            destination_incarnation: self.theirs,
            ..Header::new(kind, self.id, self.target)
        }
    }

    /// The same, with a body.
    fn saying(&self, body: Body) -> Header {
        let mut header = self.header(Kind::Write);
        header.set_body(body);
        header
    }

    /// What it offers.
    fn offered(&self) -> Greeting {
        Greeting {
            page_size: PAGE_SIZE,
            payload: PAGE_SIZE,
            window: self.window,
            version: ABI_VERSION,
            refuses: false,
        }
    }

    fn live(&mut self) {
        self.lives += 1;
        self.own = Incarnation(0x5000_0000 + u32::from(self.id.0) * 0x0100_0000 + self.lives);
        // Near the wrap as often as not.
        self.next = Seq((self.lives % 4).wrapping_sub(2) << 6);
        self.acked = self.next;
        self.requests.clear();
        self.up = false;
    }

    /// Begins a new life: what it says to the target.
    pub fn hello(&mut self) -> Header {
        self.live();
        self.theirs = Incarnation(0);
        let greeting = self.offered();
        Header {
            seq: self.next,
            ..self.saying(Body::Hello { greeting })
        }
    }

    /// Takes up what the target has sent; what must be said at once, if anything.
    pub fn hear(&mut self, header: &Header) -> Option<Header> {
        let is_of_this_life =
            header.source_incarnation == self.theirs && header.destination_incarnation == self.own;
        match header.body() {
            // The target may not take up a greeting before it hears that its life is over.
            Body::Probe if !is_of_this_life => {
                return Some(Header {
                    source_incarnation: header.destination_incarnation,
                    destination_incarnation: header.source_incarnation,
                    ..self.header(Kind::Bye)
                });
            }
            Body::Hello { .. } => {
                self.live();
                self.theirs = header.source_incarnation;
                self.received = header.seq;
                self.up = true;
                let body = Body::HelloAck {
                    status: Status::Ok,
                    greeting: self.offered(),
                };
                return Some(Header {
                    seq: self.next,
                    ..self.saying(body)
                });
            }
            Body::HelloAck {
                status: Status::Ok, ..
            } if header.destination_incarnation == self.own => {
                self.theirs = header.source_incarnation;
                self.received = header.seq;
                self.up = true;
                // The first message of the life tells the target that its answer has arrived.
                return Some(self.header(Kind::Probe));
            }
            Body::Bye if is_of_this_life => self.up = false,
            Body::Ack => self.acked = header.seq,
            Body::ReadRequest { .. } | Body::AtomicRequest { .. } | Body::Flush { .. } => {
                self.received = header.seq.plus(1);
                self.requests.push(*header);
            }
            _ if header.kind.is_windowed() => self.received = header.seq.plus(1),
            _ => {}
        }
        None
    }

    /// How many more messages the window takes.
    #[must_use]
    pub fn room(&self) -> u32 {
        u32::from(self.window).saturating_sub(self.next.since(self.acked))
    }

    /// The next sequence number.
    pub fn number(&mut self) -> Seq {
        let seq = self.next;
        self.next = seq.plus(1);
        seq
    }

    /// Acknowledges all that it has received.
    #[must_use]
    pub fn ack(&self) -> Header {
        Header {
            seq: self.received,
            ..self.header(Kind::Ack)
        }
    }

    /// The answer to a request of the target.
    #[must_use]
    pub fn answer(&self, request: &Header) -> Header {
        let status = Status::Ok;
        let (body, len) = match request.body() {
            Body::Flush { ticket, .. } => {
                let failed = OpId(0);
                (
                    Body::FlushReply {
                        ticket,
                        status,
                        failed,
                        refused: failed,
                    },
                    0,
                )
            }
            Body::AtomicRequest { ticket, .. } => {
                let result = AtomicResult { value: 1, second: 2 };
                (
                    Body::AtomicReply {
                        ticket,
                        status,
                        result,
                    },
                    0,
                )
            }
            Body::ReadRequest { ticket, len } => {
                (Body::ReadReply { ticket, status }, len.min(PAGE_SIZE) as u16)
            }
            _ => (Body::Probe, 0),
        };
        Header {
            len,
            source_port: request.destination_port,
            destination_port: request.source_port,
            seq: request.seq,
            op: request.op,
            epoch: request.epoch,
            reply: request.reply,
            ..self.saying(body)
        }
    }
}
