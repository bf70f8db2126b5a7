//! Copies of memory into the arena, and of the same bytes to ordinary memory by as many threads.

use super::answer::{Answer, Failed};
use crate::clock::now_ns;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::thread;
use transfer_client::{BlockingClient, DType};

/// Pushes `len` bytes of the process's own memory, then copies them to memory of its own, `rounds` times. Answers with
/// the durations of both. The client copies with as many threads as there are CPUs, so with one thread this process is
/// confined to one CPU.
pub(super) fn copy_in(client: &BlockingClient, len: usize, rounds: u64, threads: usize) -> Result<Answer, Failed> {
    let all = sched_getaffinity(None)?;
    if threads == 1 {
        let mut one = CpuSet::new();
        // The last CPU, because the first one usually handles the interrupts.
        let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu));
        one.set(last.unwrap_or(0));
        sched_setaffinity(None, &one)?;
    }
    let result = measure(client, len, rounds, threads);
    sched_setaffinity(None, &all)?;
    result
}

fn measure(client: &BlockingClient, len: usize, rounds: u64, threads: usize) -> Result<Answer, Failed> {
    // Both buffers are written once, so that their pages exist.
    let (source, mut sink) = (vec![3u8; len], vec![1u8; len]);
    let mut pairs = Vec::new();
    for round in 0..=rounds {
        let started = now_ns();
        let pushed = client.push_bytes("copyin", DType::U8, [len as u64], &source).call();
        let pushed = pushed.map_err(transfer_client::Error::from)?;
        let ours = now_ns() - started;
        if pushed.report.copied != len as u64 {
            return Err(format!("{} bytes were copied into the arena instead of {len}", pushed.report.copied).into());
        }
        // This returns the range to the arena.
        client.delete("copyin").call()?;

        let started = now_ns();
        copy(&source, &mut sink, threads);
        let baseline = now_ns() - started;
        // The first round warms up, and does not count.
        if round > 0 {
            pairs.push((ours, baseline));
        }
    }
    Ok(Answer::Pairs(pairs))
}

/// Copies buffers of a process to others, one after the other, `rounds` times. Answers with the duration of each round.
pub(super) fn bare(len: usize, buffers: usize, rounds: u64, threads: usize) -> Result<Answer, Failed> {
    let whole = len.checked_mul(buffers).filter(|whole| *whole > 0).ok_or("nothing is copied")?;
    // Both buffers are written once, so that their pages exist.
    let (source, mut sink) = (vec![3u8; whole], vec![1u8; whole]);
    let rounds = (0..=rounds).map(|_| {
        let started = now_ns();
        source.chunks(len).zip(sink.chunks_mut(len)).for_each(|(source, sink)| copy(source, sink, threads));
        now_ns() - started
    });
    // The first round warms up, and does not count.
    Ok(Answer::Times { ns: rounds.skip(1).collect(), copied: 0 })
}

fn copy(source: &[u8], sink: &mut [u8], threads: usize) {
    let share = source.len().div_ceil(threads);
    thread::scope(|scope| {
        let mut shares = sink.chunks_mut(share).zip(source.chunks(share));
        let own = shares.next();
        for (sink, source) in shares {
            scope.spawn(|| sink.copy_from_slice(source));
        }
        if let Some((sink, source)) = own {
            sink.copy_from_slice(source);
        }
    });
    std::hint::black_box(sink);
}
