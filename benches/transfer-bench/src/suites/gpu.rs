//! Tensors to a GPU and back, compared with copies between the GPU and memory that its driver has allocated
//! (`cuMemHostAlloc`), and with pageable memory. Those are made by `cuMemcpyHtoDAsync` or `cuMemcpyDtoHAsync`, and
//! `cuStreamSynchronize`, and nothing else. All copies take turns, one by one.
//!
//! The suite needs a GPU, and runs in this process: its workers are those that a GPU copies for.

use super::{GIB, MIB, gigabytes_per_second};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Spread, Unit, Versus};
use std::fmt::Display;
use std::path::Path;
use std::time::Instant;
use transfer_client::gpu::{DeviceMemory, Gpu, HostMemory, Stream};
use transfer_client::{BlockingClient, DType, Error, TensorMut};
use transfer_cuda::copy_plainly;
use transfer_terminal::units;

/// The goal: as fast as the driver's own memory, but for a twentieth.
const GOAL: Goal = Goal::AtLeast(0.95);

fn failed(why: impl Display) -> BenchError {
    BenchError::Task { name: "the copy by the GPU".to_owned(), why: why.to_string() }
}

/// The figures of one length.
struct Row {
    first: Figure,
    to: Figure,
    from: Figure,
    pageable_to: Figure,
    pageable_from: Figure,
}

impl Row {
    fn new(len: u64) -> Row {
        let len = units::bytes(len);
        let beside = |what: String, goal| Figure::beside(what, Unit::GigabytesPerSecond, Versus::Ratio, goal);
        Row {
            to: beside(format!("{len}, a fetched tensor to the GPU"), GOAL),
            from: beside(format!("{len}, from the GPU into the arena"), GOAL),
            pageable_to: beside(format!("  {len} of pageable memory to the GPU"), Goal::Open),
            pageable_from: beside(format!("  {len} from the GPU into pageable memory"), Goal::Open),
            first: beside(format!("  {len}, the first copy of a segment, which registers it"), Goal::Open),
        }
    }
}

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let gpu = Gpu::open(0).map_err(failed)?;
    let stream = Stream::new(&gpu).map_err(failed)?;
    let limits = ["--max-arena-bytes", "4GiB", "--pinned-limit", "8GiB"];
    let sidecar = bench.stage.sidecar("node", None, &limits)?;
    let lengths: &[(u64, u32)] =
        bench.pick(&[(MIB, 100), (16 * MIB, 30), (256 * MIB, 5), (GIB, 3)][..], &[(MIB, 10), (16 * MIB, 3)][..]);
    let mut figures = Vec::new();
    for &(len, rounds) in lengths {
        let mut row = Row::new(len);
        for run in 0..bench.runs {
            bench.says(format!("{}: run {} of {}", units::bytes(len), run + 1, bench.runs));
            measure(&sidecar.socket, &stream, len, rounds, &mut row).map_err(failed)?;
        }
        figures.extend([row.to, row.from, row.pageable_to, row.pageable_from, row.first]);
    }
    Ok(figures)
}

/// The times of the copies of one kind, in ns.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn time<T>(&mut self, copy: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let started = Instant::now();
        let copied = copy()?;
        self.0.push(started.elapsed().as_nanos() as f64);
        Ok(copied)
    }

    /// The median rate, in 10^9 bytes per second.
    fn rate(&self, len: u64) -> f64 {
        Spread::of(&self.0).map_or(0.0, |spread| gigabytes_per_second(len, spread.median as u64))
    }
}

/// Makes one run: `rounds` copies of each kind.
fn measure(socket: &Path, stream: &Stream, len: u64, rounds: u32, row: &mut Row) -> Result<(), Error> {
    let connect = |name: &str, bytes| BlockingClient::connect(socket).name(name).arena_bytes(bytes).call();
    let (writer, reader) = (connect("writer", 2 * len + MIB)?, connect("reader", 0)?);
    let mut tensor = writer.allocate(DType::U8, [len])?;
    let numbers = tensor.as_mut_bytes().iter_mut().enumerate();
    numbers.for_each(|(i, byte)| *byte = (i * 31 / 7) as u8);
    writer.push_tensor("gpu", tensor).call()?;
    let fetched = reader.fetch("gpu").call()?;
    let bytes = len as usize;
    let mut memory = DeviceMemory::allocate(stream.gpu(), len)?;
    let (mut pinned, mut pageable) =
        (HostMemory::pinned(stream.gpu(), bytes)?, HostMemory::pageable(vec![1; bytes].into()));
    let mut target: TensorMut = writer.allocate(DType::U8, [len])?;
    let mut first = Times::default();
    memory = first.time(|| fetched.copy_into_device(memory, stream)?.wait())?;
    // The first copy in each direction, by which memory is registered, does not count.
    (target, memory) = target.copy_from_device(memory, stream)?.wait()?;
    let mut times: [Times; 6] = Default::default();
    let [to, from, pinned_to, pinned_from, pageable_to, pageable_from] = &mut times;
    for _ in 0..rounds {
        memory = to.time(|| fetched.copy_into_device(memory, stream)?.wait())?;
        (pinned, memory) = pinned_to.time(|| Ok(copy_plainly(pinned, memory, true, stream)?))?;
        (pageable, memory) = pageable_to.time(|| Ok(copy_plainly(pageable, memory, true, stream)?))?;
        (target, memory) = from.time(|| target.copy_from_device(memory, stream)?.wait())?;
        (pinned, memory) = pinned_from.time(|| Ok(copy_plainly(pinned, memory, false, stream)?))?;
        (pageable, memory) = pageable_from.time(|| Ok(copy_plainly(pageable, memory, false, stream)?))?;
    }
    let (baseline_to, baseline_from) = (pinned_to.rate(len), pinned_from.rate(len));
    row.to.run_beside(to.rate(len), baseline_to);
    row.from.run_beside(from.rate(len), baseline_from);
    row.pageable_to.run_beside(pageable_to.rate(len), baseline_to);
    row.pageable_from.run_beside(pageable_from.rate(len), baseline_from);
    row.first.run_beside(first.rate(len), baseline_to);
    Ok(())
}
