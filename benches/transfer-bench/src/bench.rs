//! What the suites have in common.

use crate::stage::Stage;
use indicatif::ProgressBar;

/// The stage, and how much is measured on it.
#[derive(Debug)]
pub struct Bench {
    /// Where processes are started.
    pub stage: Stage,
    /// How often each measurement is made.
    pub runs: u32,
    /// Whether to ask for less.
    pub quick: bool,
    /// Where what is going on is shown.
    pub progress: ProgressBar,
}

impl Bench {
    /// Says what is going on, to whoever watches.
    pub fn says(&self, text: impl Into<String>) {
        self.progress.set_message(text.into());
    }

    /// `long`, or `short` where little is asked for.
    #[must_use]
    pub fn pick<T>(&self, long: T, short: T) -> T {
        if self.quick { short } else { long }
    }
}
