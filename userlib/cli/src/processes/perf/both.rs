//! Both directions at once: the server does to memory of this process what this process does to the server's.

use std::time::{Duration, Instant};

use netvm::{Access, Export, Modes};

use super::lane::{Kind, Lane};
use super::line::Line;
use crate::failure::Failure;
use crate::processes::session::{Answer, MIRROR, Order, Session, Work, nonsense};
use crate::processes::spread::Spread;
use crate::processes::{Client, PART, PATIENCE, SIGNAL, wrong};

/// How much longer the server may take than this process.
const SLACK: Duration = Duration::from_secs(60);

/// Memory that the server works on.
pub(super) struct Mirror {
    _export: Export,
}

impl Mirror {
    /// Offers it to the server's port of this session, and to no other.
    pub(super) fn open(client: &Client, session: &mut Session) -> Result<Self, Failure> {
        let memory = client.port.alloc(PART).map_err(wrong)?;
        let modes = Modes::READ | Modes::WRITE | Modes::ATOMIC;
        let access = Access::nobody().and_port(client.peer, session.port, modes);
        let export = client
            .port
            .export(MIRROR, &memory, .., access.notify(SIGNAL..=SIGNAL))
            .map_err(wrong)?;
        session.order(Order::Mirror)?;
        match session.answer(PATIENCE)? {
            Answer::Open => Ok(Self { _export: export }),
            _ => Err(nonsense()),
        }
    }

    /// Measures an operation in both directions.
    pub(super) fn measure(
        &self,
        session: &mut Session,
        lane: &mut Lane<'_>,
        kind: Kind,
        depth: u32,
        time: Duration,
    ) -> Result<Line, Failure> {
        let work = Work {
            kind,
            depth,
            millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        };
        session.order(Order::Singles(work))?;
        let begin = Instant::now();
        let times = lane.singles(kind, time).map_err(wrong)?;
        let Answer::Singles(back) = session.answer(time + begin.elapsed() + SLACK)? else {
            return Err(nonsense());
        };
        session.order(Order::Rate(work))?;
        let begin = Instant::now();
        let rate = lane.rate(kind, depth, time).map_err(wrong)?;
        let Answer::Rate { count, nanos } = session.answer(time + begin.elapsed() + SLACK)? else {
            return Err(nonsense());
        };
        let line = Line::new(kind.name(), kind.size(), rate, Spread::of(times));
        Ok(line.and_back((count, Duration::from_nanos(nanos)), back))
    }
}
