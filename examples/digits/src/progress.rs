//! A progress bar, or, where standard error is no terminal, lines for a log.

use indicatif::{ProgressBar, ProgressStyle};

/// See the module. It stays on the screen when it is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Nothing of `length` is done yet.
    #[must_use]
    pub fn new(name: &'static str, length: u64) -> Progress {
        // The template is a constant and right; were it not, a plain bar would do.
        let style = ProgressStyle::with_template("{prefix:>10} {bar:32} {pos:>5}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        Progress(ProgressBar::new(length).with_style(style).with_prefix(name))
    }

    /// So much is done.
    pub fn show(&self, position: u64, message: &str) {
        let Progress(bar) = self;
        bar.set_position(position);
        bar.set_message(message.to_owned());
        if bar.is_hidden() {
            eprintln!("{:>10} {position:>5}/{} {message}", bar.prefix(), bar.length().unwrap_or_default());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
