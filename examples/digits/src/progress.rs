//! A progress bar. If standard error is no terminal, it writes lines for a log instead.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};

/// A progress bar, or lines for a log. The bar stays on the screen when this is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Makes a bar of `length`, at 0.
    #[must_use]
    pub fn new(name: &'static str, length: u64) -> Progress {
        // The template is a valid constant, so the default is never used.
        let style = ProgressStyle::with_template("{prefix:>10} {bar:32} {pos:>5}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        Progress(ProgressBar::new(length).with_style(style).with_prefix(name))
    }

    /// Shows the position and a message.
    pub fn show(&self, position: u64, message: &str) {
        let Progress(bar) = self;
        bar.set_position(position);
        bar.set_message(message.to_owned());
        if bar.is_hidden() {
            let (name, length) = (bar.prefix(), bar.length().unwrap_or_default());
            // The job goes on without its progress.
            let _ = writeln!(io::stderr(), "{name:>10} {position:>5}/{length} {message}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
