//! What the program tells of what happens inside: on standard error, and only if it is asked for.

use std::io;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// Says what to tell, where the command line does not.
const VARIABLE: &str = "NETVM_LOG";

/// How often the command line has `-v`.
static ASKED: OnceLock<u8> = OnceLock::new();

/// Begins to tell, if the command line or the environment asks for it.
///
/// # Errors
/// [`Failure::Usage`]: `NETVM_LOG` makes no sense.
pub(crate) fn begin(verbose: u8) -> Result<(), Failure> {
    // A second call, of a test, changes nothing.
    let _ = ASKED.set(verbose);
    let wanted = match verbose {
        0 => match std::env::var_os(VARIABLE) {
            Some(wanted) if !wanted.is_empty() => wanted.to_string_lossy().into_owned(),
            _ => return Ok(()),
        },
        1 => "netvm=info".to_owned(),
        2 => "netvm=debug".to_owned(),
        _ => "netvm=trace".to_owned(),
    };
    let filter = filter(&wanted)?;
    let told = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        // A standard error that has gone away is no reason to end.
        .log_internal_errors(false)
        .try_init();
    // There is one already only where several command lines run in one process, which is in tests.
    drop(told);
    Ok(())
}

/// The same wish, for a process that this one starts: the environment is inherited.
pub(crate) fn flags() -> Vec<&'static str> {
    let asked = ASKED.get().copied().unwrap_or(0);
    vec!["-v"; usize::from(asked)]
}

fn filter(wanted: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(wanted).map_err(|error| {
        Failure::Usage(format!(
            "{VARIABLE}={wanted}: {error}; give for example info, or netvm_soft=debug,netvm_process=info"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_that_makes_no_sense_is_refused() {
        for wanted in [
            "info",
            "netvm=debug",
            "netvm_soft=debug,netvm_process=info",
            "off",
        ] {
            assert!(filter(wanted).is_ok(), "{wanted}");
        }
        let error = filter("netvm=loud").expect_err("no such level");
        assert!(
            error.status() == 2 && error.to_string().contains(VARIABLE),
            "{error}"
        );
    }
}
