//! The atomics of this crate, in one place. The crate `transfer-loom` replaces them with those of a model checker.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
