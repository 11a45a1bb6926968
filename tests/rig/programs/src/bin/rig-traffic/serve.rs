//! The side whose memory is written and read.

use std::time::Duration;

use netvm::{Access, Error, Node, Port, PortConfig};

use crate::life::{End, Report, Trouble, digest};
use crate::{Common, LANDED, NAME};

/// Time between two looks of a wait at the clock.
const LOOK: Duration = Duration::from_millis(500);

/// Exports memory until the end has come.
pub(crate) fn serve(common: &Common, node: &Node, end: &End, report: &mut Report) -> Result<(), Trouble> {
    let port = Port::open(node, PortConfig::number(common.port))?;
    let len = common.kib << 10;
    let memory = port.alloc(len)?;
    let _export = port.export(NAME, &memory, .., Access::everyone().notify(LANDED..=LANDED))?;
    let landed = port.notification(LANDED)?;
    while !end.is_over(report) {
        match landed.wait(LOOK) {
            Ok(_) => {}
            Err(Error::TimedOut) => continue,
            Err(error) => return Err(error.into()),
        }
        landed.ack()?;
        let digest = digest(&memory, 0, len)?;
        println!("{{\"landed\":\"{digest}\"}}");
        report.round(digest);
        report.bytes += len;
    }
    Ok(())
}
