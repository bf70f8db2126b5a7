//! What is logged, and how that is changed while the program runs.
//!
//! A process has one log, so there is one of these for a process: the program that owns the log installs it, and a sidecar that
//! runs in somebody else's program finds none.

use parking_lot::Mutex;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::{Handle, Layer};

struct Control {
    present: Mutex<String>,
    change: Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>,
}

static CONTROL: OnceLock<Control> = OnceLock::new();

/// Why the log was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogLevelError {
    /// No directives.
    #[error(
        "{level:?} is no log level: give error, warn, info, debug, trace or off, or directives like info,transfer_fabric=debug: {why}"
    )]
    Directives {
        /// What was given.
        level: String,
        /// What is wrong with it.
        why: String,
    },
    /// This process has no log that could be changed.
    #[error("the program that this sidecar runs in keeps its log to itself")]
    NotInstalled,
    /// The log is gone.
    #[error("the log cannot be changed: {0}")]
    Gone(String),
}

/// Reads directives: a level, or what the variable TRANSFER_LOG takes.
///
/// # Errors
/// [`LogLevelError::Directives`].
pub fn parse(level: &str) -> Result<EnvFilter, LogLevelError> {
    let wrong = |why: String| LogLevelError::Directives { level: level.to_owned(), why };
    if level.trim().is_empty() {
        return Err(wrong("it is empty".to_owned()));
    }
    // EnvFilter takes any word for the name of a module that is to log everything.
    let is_level = |word: &str| word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    if let Some(word) = level.split(',').find(|d| !d.contains(['=', '[', ':']) && !is_level(d.trim())) {
        return Err(wrong(format!("{:?} is neither a level nor MODULE=LEVEL", word.trim())));
    }
    EnvFilter::try_new(level).map_err(|e| wrong(e.to_string()))
}

/// The filter of this process's log, for a subscriber, so that `SetLogLevel` changes it. `level` is what it begins with.
#[must_use]
pub fn changeable<S>(level: &str, filter: EnvFilter) -> Layer<EnvFilter, S>
where
    S: 'static,
{
    let (layer, handle): (_, Handle<EnvFilter, S>) = Layer::new(filter);
    let change = Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()));
    // A second log of one process would be the caller's mistake; the first stays in charge.
    let _ = CONTROL.set(Control { present: Mutex::new(level.to_owned()), change });
    layer
}

/// What is logged; empty where that cannot be changed.
pub(crate) fn present() -> String {
    CONTROL.get().map(|control| control.present.lock().clone()).unwrap_or_default()
}

/// Changes it; returns what it was before.
pub(crate) fn set(level: &str) -> Result<String, LogLevelError> {
    let filter = parse(level)?;
    let control = CONTROL.get().ok_or(LogLevelError::NotInstalled)?;
    let mut present = control.present.lock();
    (control.change)(filter).map_err(LogLevelError::Gone)?;
    Ok(std::mem::replace(&mut *present, level.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_checked() {
        for good in ["info", "DEBUG", "off", "info,transfer_fabric=debug", "transfer_server::peering=trace"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "loud", "info,verbose", "transfer_fabric=loud", "a=b=c"] {
            let why = parse(bad).unwrap_err().to_string();
            assert!(why.contains("error, warn, info"), "{bad}: {why}");
        }
    }
}
