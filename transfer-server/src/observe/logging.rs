//! The log: text or JSON on standard error, a filter that can be changed while the process runs, and a limit for each
//! call site. A thread that logs never waits for the reader of standard error.
//!
//! The limit is needed because most lines are about other processes: a peer that connects and violates the protocol as
//! fast as it can must not fill a disk. Each call site may write a number of lines per second. Further lines are
//! counted, and one line then tells how many were dropped, and where. Lines of other call sites are not affected.

use super::limit::{Limit, Limiter};
use super::lines::{Lines, text_field};
use clap::{Args, ValueEnum};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::Subscriber;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The log of this process, once it is set up. A process has only one.
static INSTALLED: OnceLock<LogControl> = OnceLock::new();

/// The time for which the end of the program waits for the reader of the log.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The format of log lines
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// The settings of the log.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LogFlags {
    /// The filter of the log: a level (error, warn, info, debug, trace), or levels for parts, like
    /// "info,transfer_fabric=debug"
    #[arg(long = "log", env = "TRANSFER_LOG", value_name = "FILTER", default_value = "info")]
    pub filter: String,

    /// The format of log lines
    #[arg(long, env = "TRANSFER_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// The number of lines that one place in the code may log per second; of further lines only the number is logged.
    /// 0: any number
    #[arg(long, env = "TRANSFER_LOG_LIMIT", value_name = "LINES", default_value_t = 20)]
    pub log_limit: u32,
}

/// The reason why the log cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The filter is not valid.
    #[error(
        "{value:?} is no log level: give error, warn, info, debug, trace or off, or directives like info,transfer_fabric=debug: {why}"
    )]
    Filter {
        /// The value.
        value: String,
        /// The error.
        why: String,
    },
    /// Other code of this process has set up the log.
    #[error("the log of this process is set up already: {0}")]
    Taken(String),
    /// The system has no thread that writes the log.
    #[error("no thread can be had that writes the log: {0}")]
    Thread(String),
}

/// Controls the log of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
    /// The filter's text as it was given. The filter itself would print its parts in another order.
    text: Arc<parking_lot::Mutex<String>>,
    limiter: Arc<Limiter>,
    lines: Lines,
}

impl LogControl {
    /// Sets up the log of this process.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn install(flags: &LogFlags) -> Result<LogControl, LogError> {
        let limiter = Arc::new(Limiter::new(flags.log_limit));
        let (filter, handle) = reload::Layer::new(parse(&flags.filter)?);
        let lines = Lines::new(flags.log_format);
        let layer = layer(&lines, flags.log_format, std::io::stderr().is_terminal());
        let limit = Limit::new(limiter.clone());
        tracing_subscriber::registry()
            .with(filter)
            .with(limit)
            .with(layer)
            .try_init()
            .map_err(|e| LogError::Taken(e.to_string()))?;
        // Without a standard error there is no log.
        if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
            lines.start_writing(stderr.into()).map_err(|e| LogError::Thread(e.to_string()))?;
        }
        let text = Arc::new(parking_lot::Mutex::new(flags.filter.clone()));
        let control = LogControl { filter: handle, text, limiter: limiter.clone(), lines };
        limiter.start_telling();
        log_panics(control.clone());
        // This is the first log that could be installed, so the cell is empty.
        let _ = INSTALLED.set(control.clone());
        Ok(control)
    }

    /// Returns the log of this process. `None` in a program with its own log, such as one that embeds a sidecar.
    #[must_use]
    pub fn installed() -> Option<&'static LogControl> {
        INSTALLED.get()
    }

    /// Changes the filter. Returns the previous one.
    ///
    /// # Errors
    /// [`LogError::Filter`]. Nothing has changed then.
    pub fn set_filter(&self, filter: &str) -> Result<String, LogError> {
        let parsed = parse(filter)?;
        let mut text = self.text.lock();
        self.filter.reload(parsed).map_err(|e| LogError::Filter {
            value: filter.to_owned(),
            why: format!("it cannot be changed now: {e}"),
        })?;
        Ok(std::mem::replace(&mut *text, filter.to_owned()))
    }

    /// Returns the current filter, as it was given.
    #[must_use]
    pub fn filter(&self) -> String {
        self.text.lock().clone()
    }

    /// Returns the number of lines that were dropped: by the limit, and because standard error did not take them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.limiter.dropped() + self.lines.dropped()
    }

    /// Waits until standard error has all lines, for a second at most.
    pub fn flush(&self) {
        self.lines.flush(LAST_LINES);
    }
}

/// Returns the layer that writes to `lines`, which are of this format.
pub(super) fn layer<S>(lines: &Lines, format: LogFormat, colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(lines.clone());
    match format {
        LogFormat::Text => layer.with_ansi(colours).fmt_fields(debug_fn(text_field).delimited(" ")).boxed(),
        // The fields are put beside the message, where tools look for them.
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    }
}

/// Logs panics. The standard library would write them to standard error itself, and wait for its reader.
fn log_panics(log: LogControl) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let (thread, backtrace) = (thread.name().unwrap_or("unnamed"), Backtrace::capture());
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!(thread, %backtrace, "{panic}"),
            _ => tracing::error!(thread, "{panic}"),
        }
        // The process may be about to end.
        log.flush();
    }));
}

/// Checks a filter without setting anything up.
///
/// # Errors
/// [`LogError::Filter`].
pub(crate) fn check_filter(filter: &str) -> Result<(), LogError> {
    parse(filter).map(drop)
}

/// Parses a filter strictly, because a typing error must not silently turn the log off.
fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let wrong = |why: String| LogError::Filter { value: filter.to_owned(), why };
    if filter.trim().is_empty() {
        return Err(wrong("it is empty".to_owned()));
    }
    // The filter would take a lone word that is not a level for the name of a module, and everything else would be
    // silent.
    for part in filter.split(',').map(str::trim).filter(|part| !part.contains(['=', '[', ':'])) {
        if part.parse::<tracing_subscriber::filter::LevelFilter>().is_err() {
            return Err(wrong(format!("{part:?} is neither a level nor MODULE=LEVEL")));
        }
    }
    EnvFilter::try_new(filter).map_err(|e| wrong(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_and_levels_of_parts() {
        for good in ["info", "off", "warn,transfer_fabric=debug", "transfer_server[span{peer=b}]=trace", " debug "] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, word) in [("", "empty"), ("loud", "\"loud\""), ("info,verbose", "\"verbose\""), ("a=b=c", "a=b=c")] {
            let e = parse(bad).unwrap_err().to_string();
            assert!(e.contains(word) && e.contains("error, warn, info"), "{e}");
        }
    }
}
