//! The lines that a role writes to standard output: for the demo that started it one JSON object per line, for a person
//! at a terminal a sentence.

use crate::error::Error;
use crate::model::Score;
use crate::tally::Tally;
use crate::training::{self, Job, Server};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A line of a role's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A server can be reached.
    Listening {
        /// Its address.
        address: SocketAddr,
    },
    /// The parameter server has evaluated its weights.
    Progress {
        /// Their version.
        version: u64,
        /// The score on the held-out digits.
        score: Score,
    },
    /// The parameter server has made the last version.
    Trained(Trained),
    /// The sum of a process's transfers, written at its end.
    Transfers(Transfers),
    /// The producer of bulk tensors has published them all.
    Published {
        /// The number of tensors.
        tensors: u64,
    },
    /// A reader of bulk tensors has read them all.
    Read(Read),
}

/// The result of a training job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// The time from the first update to the last, without evaluations. It includes the steps alone, and no start of a
    /// process.
    pub wall: Duration,
    /// The number of steps in `wall`: one less than the job has.
    pub timed_steps: u64,
    /// The score on the held-out digits.
    pub score: Score,
    /// The final weights as bits, because decimal rounding would hide a difference.
    pub weight_bits: Vec<u32>,
}

/// The sum of a process's transfers in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfers {
    /// The node of the process.
    pub node: String,
    /// The direction.
    pub direction: Direction,
    /// Their sum.
    pub tally: Tally,
}

/// The direction of a transfer, as its caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the caller.
    Fetched,
    /// From the caller to the parameter server.
    Pushed,
    /// From the caller to the shared memory of its node, from where any worker may fetch it.
    Published,
}

/// The result of a reader of bulk tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// The node of the reader.
    pub node: String,
    /// Its fetches.
    pub tally: Tally,
    /// The time in which the reader then read every byte of the fetched tensors.
    pub reading: Duration,
}

impl Event {
    /// Writes the event to standard output, and flushes it.
    ///
    /// # Errors
    /// [`Error::Io`], usually because the demo is gone.
    pub fn emit(&self) -> Result<(), Error> {
        let mut out = std::io::stdout().lock();
        let mut line = if out.is_terminal() {
            self.to_string()
        } else {
            serde_json::to_string(self).map_err(|e| Error::io("encode an event")(e.into()))?
        };
        line.push('\n');
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("report an event"))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Listening { address } => write!(f, "listening at {address}"),
            Event::Progress { version, score } => write!(f, "version {version}: {score}"),
            Event::Trained(Trained { wall, timed_steps, .. }) => write!(f, "{timed_steps} steps took {wall:.1?}"),
            Event::Transfers(Transfers { node, direction, tally }) => {
                let how = match direction {
                    Direction::Fetched => "fetched",
                    Direction::Pushed => "pushed",
                    Direction::Published => "published",
                };
                write!(f, "{how} on node {node}: {tally}")
            }
            Event::Published { tensors } => write!(f, "{tensors} tensors are published, until Ctrl-C"),
            Event::Read(Read { node, tally, reading }) => {
                write!(f, "fetched on node {node}: {tally}; read, and right, in {reading:.1?}")
            }
        }
    }
}

/// Measures the time of a parameter server, and reports its progress. All exchanges use it, so their times can be
/// compared.
#[derive(Debug)]
pub struct Reporter {
    job: Job,
    first_update: Option<Instant>,
    evaluating: Duration,
}

impl Reporter {
    /// Makes a reporter whose clock starts with the first update.
    #[must_use]
    pub fn new(job: Job) -> Reporter {
        Reporter { job, first_update: None, evaluating: Duration::ZERO }
    }

    /// Reports an update. Call this **before** its result is published: the workers are waiting then, so an evaluation
    /// overlaps with no other work, and its time can be subtracted exactly.
    ///
    /// # Errors
    /// Those of [`Event::emit`].
    pub fn updated(&mut self, server: &Server) -> Result<(), Error> {
        let now = Instant::now();
        let first_update = *self.first_update.get_or_insert(now);
        let version = server.version();
        if self.job.is_milestone(version) {
            let score = server.score();
            Event::Progress { version, score }.emit()?;
            if version == self.job.steps {
                let wall = now.duration_since(first_update).saturating_sub(self.evaluating);
                let weight_bits = training::bits(server.weights());
                Event::Trained(Trained { wall, timed_steps: version - 1, score, weight_bits }).emit()?;
            }
            self.evaluating += now.elapsed();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_keep_their_bits_in_an_event() {
        let weights = [0.1f32, -0.0, f32::MIN_POSITIVE, f32::NAN, 1.0 / 3.0];
        let score = Score { loss: 0.1, accuracy: 0.98 };
        let wall = Duration::from_nanos(1_234_567_891);
        let sent = Event::Trained(Trained { wall, timed_steps: 9, score, weight_bits: training::bits(&weights) });
        let line = serde_json::to_string(&sent).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), sent);
    }
}
