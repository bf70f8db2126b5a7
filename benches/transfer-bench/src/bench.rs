//! The context that all suites share.

use crate::stage::Stage;
use indicatif::ProgressBar;

/// The stage, and the amount of measurements on it.
#[derive(Debug)]
pub struct Bench {
    /// The stage, which starts processes.
    pub stage: Stage,
    /// The number of runs of each measurement.
    pub runs: u32,
    /// Whether runs are shorter and fewer.
    pub quick: bool,
    /// The bar that shows the current step.
    pub progress: ProgressBar,
}

impl Bench {
    /// Shows the current step on the bar.
    pub fn says(&self, text: impl Into<String>) {
        self.progress.set_message(text.into());
    }

    /// Returns `short` for a quick run, else `long`.
    #[must_use]
    pub fn pick<T>(&self, long: T, short: T) -> T {
        if self.quick { short } else { long }
    }
}
