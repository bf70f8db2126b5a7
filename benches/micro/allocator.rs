//! The allocation of a range, and its return.
#![forbid(unsafe_code)]

use std::hint::black_box;
use transfer_benches::Runner;
use transfer_core::alloc::{Allocation, Allocator};

fn main() {
    let runner = Runner::from_arguments();
    for len in [64u64, 4 << 10, 1 << 20] {
        let mut allocator = Allocator::new(1 << 30);
        runner.measure(&format!("allocator: allocate and free {len} B, empty region"), 1, || {
            let range = allocator.allocate(black_box(len));
            range.map(|range| allocator.free(range))
        });
    }
    for (name, sizes) in
        [("4 KiB each", [4096u64; 8]), ("64 B to 1 MiB", [64, 4096, 1 << 20, 256, 65_536, 4096, 128 << 10, 1000])]
    {
        let mut allocator = Allocator::new(1 << 30);
        let (mut lent, mut state) = (fill(&mut allocator, &sizes), 1u64);
        runner.measure(&format!("allocator: replace one of {} ranges, {name}", lent.len()), 1, || {
            // A simple generator is random enough to free ranges in no particular order.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % lent.len();
            let old = lent.swap_remove(at);
            let len = old.len();
            let freed = allocator.free(old);
            if let Ok(range) = allocator.allocate(len) {
                lent.push(range);
            }
            freed
        });
    }
}

/// Allocates until half of the region is in use.
fn fill(allocator: &mut Allocator, sizes: &[u64]) -> Vec<Allocation> {
    let mut lent = Vec::new();
    for len in sizes.iter().cycle() {
        match allocator.allocate(*len) {
            Ok(range) if allocator.used_bytes() <= allocator.len_bytes() / 2 => lent.push(range),
            _ => break,
        }
    }
    lent
}
