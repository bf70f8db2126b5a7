//! Making and applying deltas, beside copies of the same bytes.
#![forbid(unsafe_code)]

use std::hint::black_box;
use transfer_benches::Runner;
use transfer_core::delta::{Buffers, Chain, NotApplied, encode};

/// The length of a version: longer than what the caches hold.
const LEN: usize = 128 << 20;

fn main() -> Result<(), NotApplied> {
    let runner = Runner::from_arguments();
    let base: Vec<u8> = (0..LEN as u64 / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    let mut made = vec![0; LEN];
    runner.measure("copy: 128 MiB", LEN as u64, || made.copy_from_slice(black_box(&base)));
    for (name, percent) in [("0 %", 0), ("0.3 %", 3), ("3 %", 30), ("10 %", 100)] {
        let mut new = base.clone();
        // Elements of two bytes, at places that cannot be foretold.
        let mut x = 1_u64;
        for element in new.chunks_exact_mut(2) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            if x % 1000 < percent {
                element.copy_from_slice(&(x >> 32).to_le_bytes()[..2]);
            }
        }
        let read = |from: &[u8], at: u64, to: &mut [u8]| to.copy_from_slice(&from[at as usize..][..to.len()]);
        let make = || encode(LEN as u64, |at, to| read(&base, at, to), |at, to| read(&new, at, to), LEN as u64);
        let Ok(delta) = make() else { continue };
        println!(
            "{name}: {} B for each changed element",
            delta.bytes.len() as f64 / (delta.density.changed as f64 / 2.0)
        );
        runner.measure(&format!("encode: {name}, B of base and version"), 2 * LEN as u64, make);
        runner.measure(&format!("apply: {name}"), LEN as u64, || apply(&base, black_box(&delta.bytes), &mut made));
        apply(&base, &delta.bytes, &mut made)?;
    }
    Ok(())
}

/// Applies a delta as the engine does.
fn apply(base: &[u8], delta: &[u8], made: &mut [u8]) -> Result<(), NotApplied> {
    let read = |from: &[u8], at: u64, to: &mut [u8]| {
        to.copy_from_slice(&from[at as usize..][..to.len()]);
        Ok(())
    };
    let chain = Chain::read(base.len() as u64, delta.len() as u64, |at, to| read(delta, at, to))?;
    let mut buffers = Buffers::default();
    for section in 0..chain.sections() {
        let write = |at: u64, block: &[u8]| {
            made[at as usize..][..block.len()].copy_from_slice(block);
            Ok(())
        };
        chain.make(section, &mut buffers, |at, to| read(base, at, to), |at, to| read(delta, at, to), write)?;
    }
    Ok(())
}
