//! The atomics of this crate, and the locks of what is modelled, in one place. The crate `transfer-loom` replaces them
//! with those of a model checker.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex};
