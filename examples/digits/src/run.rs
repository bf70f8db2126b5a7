//! A training run as the demo sees it: a progress bar while it goes on, and what came of it.

use crate::error::Error;
use crate::event::{Event, Trained, Transfers};
use crate::progress::Progress;
use crate::stage::{Happening, Stage};

/// See the module.
#[derive(Debug)]
pub struct Run {
    progress: Progress,
    trained: Option<Trained>,
    transfers: Vec<Transfers>,
}

impl Run {
    /// A run of so many steps, about to start.
    #[must_use]
    pub fn new(name: &'static str, steps: u64) -> Run {
        Run { progress: Progress::new(name, steps), trained: None, transfers: Vec::new() }
    }

    /// Listens to the run until `processes` more of its processes have left.
    ///
    /// # Errors
    /// Those of [`Stage::next`], and [`Error::Unexpected`] for events that are not of a training run.
    pub async fn follow(&mut self, stage: &mut Stage, mut processes: usize) -> Result<(), Error> {
        while processes > 0 {
            match stage.next().await? {
                (_, Happening::Said(Event::Progress { version, score })) => {
                    self.progress.show(version, &score.to_string());
                }
                (_, Happening::Said(Event::Trained(trained))) => self.trained = Some(trained),
                (_, Happening::Said(Event::Transfers(transfers))) => self.transfers.push(transfers),
                (_, Happening::Said(_)) => return Err(Error::Unexpected { what: "event in a training run" }),
                (_, Happening::Wrote(_)) => {}
                (_, Happening::Left) => processes -= 1,
            }
        }
        Ok(())
    }

    /// What came of it.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if nobody has told.
    pub fn end(self) -> Result<(Trained, Vec<Transfers>), Error> {
        let trained = self.trained.ok_or(Error::Unexpected { what: "end of a run without a result" })?;
        Ok((trained, self.transfers))
    }
}
