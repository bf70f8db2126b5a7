//! The job in one process, without an exchange. The distributed runs have to reproduce its result, bit for bit.

use crate::error::Error;
use crate::event::Reporter;
use crate::model;
use crate::training::{Job, Server, WORKERS, Worker};

/// The role: trains, and reports like a parameter server.
///
/// # Errors
/// Those of [`train`], and [`Error::Io`] if the report cannot be written.
pub fn run(job: Job) -> Result<(), Error> {
    let mut reporter = Reporter::new(job);
    train(job, |server| reporter.updated(server)).map(drop)
}

/// Trains from version 0 to the last one, and returns the server. `watch` is called after every update.
///
/// # Errors
/// [`Error::Data`] and [`Error::Io`] if the data set is damaged, and those of `watch`.
pub fn train(job: Job, mut watch: impl FnMut(&Server) -> Result<(), Error>) -> Result<Server, Error> {
    let workers = [Worker::new(job, 0)?, Worker::new(job, 1)?];
    let mut server = Server::new(job)?;
    let mut gradients: [Vec<f32>; WORKERS] = std::array::from_fn(|_| vec![0.0; model::PARAMETERS]);

    while server.version() < job.steps {
        for (worker, gradient) in workers.iter().zip(&mut gradients) {
            worker.gradient(server.version(), server.weights(), gradient);
        }
        server.update(gradients.each_ref().map(Vec::as_slice));
        watch(&server)?;
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::{ACCURACY_GOAL, bits};

    #[test]
    fn two_runs_are_equal_bit_for_bit() {
        let job = Job { steps: 25, seed: 1 };
        let [a, b] = [train(job, |_| Ok(())).unwrap(), train(job, |_| Ok(())).unwrap()];
        assert_eq!(bits(a.weights()), bits(b.weights()));
        let other = train(Job { seed: 2, ..job }, |_| Ok(())).unwrap();
        assert_ne!(bits(a.weights()), bits(other.weights()));
    }

    #[test]
    fn every_update_changes_the_weights() {
        let mut seen = vec![model::initial_weights(1)];
        train(Job { steps: 5, seed: 1 }, |server| {
            assert_eq!(server.version() as usize, seen.len());
            assert_ne!(seen.last().unwrap(), server.weights());
            seen.push(server.weights().to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn goal_is_reached_with_a_margin() {
        let score = train(Job { steps: 600, seed: 1 }, |_| Ok(())).unwrap().score();
        assert!(score.accuracy >= ACCURACY_GOAL, "{score:?} after 600 instead of 1000 steps");
    }
}
