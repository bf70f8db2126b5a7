//! Counters and barriers of the job, and the calls on them.

mod barrier;
mod counter;
mod counting;

pub use barrier::{Barrier, Round};
pub use counter::{Counted, Counter, Swapped};
pub use counting::Counting;
