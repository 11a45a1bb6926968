//! `netvm relay`: a bad network between nodes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_relay::{Faults, Relay};

use crate::args;
use crate::failure::Failure;
use crate::output;
use crate::signals;

/// How often it says nothing and looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Runs it.
///
/// # Errors
/// The address cannot be listened at.
pub fn run(options: &args::Relay) -> Result<(), Failure> {
    let of_thousand = |percent: f64| (percent * 10.0).round() as u32;
    let faults = Faults {
        lost: of_thousand(options.lost),
        doubled: of_thousand(options.doubled),
        late: of_thousand(options.late),
        spoilt: of_thousand(options.spoilt),
        delay: options.delay,
    };
    let relay = Relay::start(options.listen, options.target, faults, options.seed)
        .map_err(|error| Failure::Usage(format!("{}: {error}", options.listen)))?;
    if let Some(bytes) = options.longest {
        relay.takes(bytes, bytes);
    }
    let told = signals::told()?;
    output::print(&format!(
        "udp://{} is udp://{} over a bad network: of 100 datagrams {} are lost{}{}; Ctrl-C ends it\n",
        relay.address(),
        options.target,
        options.lost,
        shorter(options.longest),
        longer(options.delay)
    ))?;
    let end = options.seconds.map(Duration::from_secs);
    let begin = std::time::Instant::now();
    while end.is_none_or(|end| begin.elapsed() < end) && !told.load(Ordering::Acquire) {
        std::thread::sleep(LOOK);
    }
    let (passed, harmed) = relay.counts();
    output::print(&format!("{passed} datagrams, {harmed} of them harmed\n"))
}

/// Which datagrams are lost besides.
fn shorter(longest: Option<usize>) -> String {
    longest.map_or_else(String::new, |bytes| {
        format!(", and all that are longer than {bytes} bytes")
    })
}

/// What a delay does to a round trip.
fn longer(delay: Duration) -> String {
    if delay.is_zero() {
        return String::new();
    }
    format!(", and a round trip takes {:?} longer", 2 * delay)
}
