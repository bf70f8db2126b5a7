//! A training run as the demo sees it: a progress bar, and the result.

use crate::error::Error;
use crate::event::{Event, Trained, Transfers};
use crate::progress::Progress;
use crate::stage::{Happening, Stage};

/// A training run that the demo follows.
#[derive(Debug)]
pub struct Run {
    progress: Progress,
    trained: Option<Trained>,
    /// The transfers, with the names of their processes.
    transfers: Vec<(String, Transfers)>,
}

impl Run {
    /// Makes a run of `steps` steps, before its start.
    #[must_use]
    pub fn new(name: &'static str, steps: u64) -> Run {
        Run { progress: Progress::new(name, steps), trained: None, transfers: Vec::new() }
    }

    /// Follows the run until `processes` more of its processes have left.
    ///
    /// # Errors
    /// Those of [`Stage::next`], and [`Error::Unexpected`] for events that do not belong to a training run.
    pub async fn follow(&mut self, stage: &mut Stage, mut processes: usize) -> Result<(), Error> {
        while processes > 0 {
            if let (_, Happening::Left) = self.listen(stage).await? {
                processes -= 1;
            }
        }
        Ok(())
    }

    /// Follows the run until this process has reported its transfers, which it does at its end.
    ///
    /// # Errors
    /// Those of [`Run::follow`].
    pub async fn follow_to_transfers_of(&mut self, stage: &mut Stage, process: &str) -> Result<(), Error> {
        while !self.transfers.iter().any(|(who, _)| who == process) {
            self.listen(stage).await?;
        }
        Ok(())
    }

    /// Waits for the next event of any process, and records it.
    async fn listen(&mut self, stage: &mut Stage) -> Result<(String, Happening), Error> {
        let (who, happening) = stage.next().await?;
        match &happening {
            Happening::Said(Event::Progress { version, score }) => self.progress.show(*version, &score.to_string()),
            Happening::Said(Event::Trained(trained)) => self.trained = Some(trained.clone()),
            Happening::Said(Event::Transfers(transfers)) => self.transfers.push((who.clone(), transfers.clone())),
            Happening::Said(_) => return Err(Error::Unexpected { what: "event in a training run" }),
            Happening::Wrote(_) | Happening::Left => {}
        }
        Ok((who, happening))
    }

    /// Returns the result of the run.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if no process has reported a result.
    pub fn end(self) -> Result<(Trained, Vec<Transfers>), Error> {
        let trained = self.trained.ok_or(Error::Unexpected { what: "end of a run without a result" })?;
        Ok((trained, self.transfers.into_iter().map(|(_, transfers)| transfers).collect()))
    }
}
