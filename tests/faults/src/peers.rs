//! The other end of a link, as far as an attacker needs it: it greets, is greeted, knows the incarnations and roughly
//! where the windows stand, so that its lies get past the first check.

use netvm_abi::wire::{Header, Kind};
use netvm_abi::{ABI_VERSION, Geometry, Incarnation, NodeId, PAGE_SIZE, Seq};

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

    fn greeting(&self, kind: Kind) -> Header {
        Header {
            seq: self.next,
            operand: u64::from(PAGE_SIZE) | (u64::from(PAGE_SIZE) << 32),
            compare: u64::from(self.window) | (u64::from(ABI_VERSION) << 16),
            ..self.header(kind)
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
        self.greeting(Kind::Hello)
    }

    /// Takes up what the target has sent; what must be said at once, if anything.
    pub fn hear(&mut self, header: &Header) -> Option<Header> {
        match header.kind {
            Kind::Hello => {
                self.live();
                self.theirs = header.source_incarnation;
                self.received = header.seq;
                self.up = true;
                return Some(self.greeting(Kind::HelloAck));
            }
            Kind::HelloAck if header.destination_incarnation == self.own && header.status == 0 => {
                self.theirs = header.source_incarnation;
                self.received = header.seq;
                self.up = true;
                // The first message of the life tells the target that its answer has arrived.
                return Some(self.header(Kind::Probe));
            }
            Kind::Bye
                if header.destination_incarnation == self.own && header.source_incarnation == self.theirs =>
            {
                self.up = false;
            }
            Kind::Ack => self.acked = header.seq,
            Kind::ReadRequest | Kind::AtomicRequest | Kind::Flush => {
                self.received = header.seq.plus(1);
                self.requests.push(*header);
            }
            kind if kind.is_windowed() => self.received = header.seq.plus(1),
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
        let kind = match request.kind {
            Kind::Flush => Kind::FlushReply,
            Kind::AtomicRequest => Kind::AtomicReply,
            _ => Kind::ReadReply,
        };
        let (operand, compare, len) = match kind {
            Kind::FlushReply => (0, request.operand, 0),
            Kind::AtomicReply => (1, 2, 0),
            _ => (
                request.operand,
                0,
                request.compare.min(u64::from(PAGE_SIZE)) as u16,
            ),
        };
        Header {
            len,
            source_port: request.destination_port,
            destination_port: request.source_port,
            seq: request.seq,
            op: request.op,
            epoch: request.epoch,
            reply: request.reply,
            operand,
            compare,
            ..self.header(kind)
        }
    }
}
