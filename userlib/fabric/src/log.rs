//! Words to people, on standard error, as `FI_LOG_LEVEL` asks for them.

use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Silent,
    Warn,
    Trace,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("FI_LOG_LEVEL").as_deref() {
        Ok("warn" | "Warn" | "WARN" | "0") => Level::Warn,
        Ok("trace" | "info" | "debug" | "1" | "2" | "3") => Level::Trace,
        _ => Level::Silent,
    })
}

/// Something is wrong, and a call fails for it.
pub(crate) fn warn(text: &str) {
    if level() >= Level::Warn {
        eprintln!("netvm: {text}");
    }
}

/// Something that helps to find out what goes on.
pub(crate) fn trace(text: impl FnOnce() -> String) {
    if level() >= Level::Trace {
        eprintln!("netvm[{}]: {}", std::process::id(), text());
    }
}
