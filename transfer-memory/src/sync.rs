//! The atomics of this crate, in one place, so that a model checker's can take their place: those of the crate `transfer-loom`.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
