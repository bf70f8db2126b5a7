//! A worker publishes a tensor each millisecond, and a worker of another sidecar fetches it by reference, as in
//! [`handover`].
//!
//! The baseline has both workers at one sidecar.

use super::{KIB, handover, worker};
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::Sidecar;
use transfer_terminal::units;

/// Runs the measurement between two sidecars that share memory.
///
/// # Errors
/// Any [`BenchError`].
pub(super) fn run(bench: &Bench, a: &Sidecar, b: &Sidecar) -> Result<Vec<Figure>, BenchError> {
    let len = 4 * KIB;
    let size = units::bytes(len);
    let mut producer = worker(&bench.stage, a, "producer", 16 << 20)?;
    producer.ask(WorkerTask::Prefill { len, tensors: handover::TENSORS as usize })?;
    let (what, goal) = (format!("{size} by reference, beside hand-over: p50"), Goal::AtMost(15.0));
    let mut p50 = Figure::beside(what, Unit::Micros, Versus::Difference, goal);
    let mut copied = Figure::alone(format!("{size} by reference: copied by a CPU"), Unit::Bytes, Goal::AtMost(0.0));
    let count = bench.pick(1000u64, 200) + handover::WARM_UP as u64;
    let mut next = 1;
    for run in 0..bench.runs {
        bench.says(format!("{size} by reference, run {} of {}", run + 1, bench.runs));
        let mut measure = |consumer| {
            // `hand_over` fills this only for tensors that take long to read.
            let mut read = Figure::alone("read", Unit::GigabytesPerSecond, Goal::Open);
            let versions = next..next + count;
            next += count;
            handover::hand_over(bench, consumer, &mut producer, len, versions, &mut read)
        };
        let (mut away, bytes) = measure((b, "consumer-away"))?;
        let (mut here, _) = measure((a, "consumer-here"))?;
        p50.run_beside(percentile(&mut away, 50.0), percentile(&mut here, 50.0));
        copied.run(bytes as f64 / count as f64);
    }
    Ok(vec![p50, copied])
}
