//! What an application is told, and what it may not do.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::rack::Rack;
use super::reports::{counters, number, reports};
use super::scenarios::as_user;

/// For one program.
const LIMIT: Duration = Duration::from_secs(200);

/// Notifications by spin, by wait and by handler, over a wire that reorders.
pub(super) fn notify(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let [_, notified] = reports(rack, &as_user("rig-notify"), LIMIT)?;
    let busy = &notified["busy"];
    let share = |way: &str| {
        busy[way]
            .as_f64()
            .with_context(|| format!("no {way} in {notified}"))
    };
    let (spin, wait, handler) = (share("spin")?, share("wait")?, share("handler")?);
    ensure!(wait < 25.0, "a waiter is busy {wait} % of the time");
    ensure!(wait * 2.0 < spin, "a waiter is busy {wait} %, a spinner {spin} %");
    counters(rack)?;
    Ok(format!(
        "{} signals each way; busy: spin {spin} %, wait {wait} %, handler {handler} %",
        number(&notified, "rounds")?
    ))
}

/// A mapping of two processes under two names; memory that may only be read.
pub(super) fn shared(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let [visitor, _] = reports(rack, &as_user("rig-shared"), LIMIT)?;
    counters(rack)?;
    Ok(format!("refused: {}", visitor["refused"]))
}
