//! Loom's atomics and locks in place of the real ones.

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::sync::{Condvar, Mutex};
