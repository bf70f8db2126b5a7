//! The two ways in which calls are made.

mod sealed {
    pub trait Sealed {}
}

/// The way in which a client's calls are made: [`Async`] or [`Blocking`].
pub trait Face: sealed::Sealed + Send + Sync + Unpin + 'static {}

/// Calls are awaited, on the tokio runtime that the client was connected on.
#[derive(Debug)]
pub enum Async {}

/// Calls end with `call()`, and the thread sleeps meanwhile. No runtime is needed.
#[derive(Debug)]
pub enum Blocking {}

impl sealed::Sealed for Async {}
impl sealed::Sealed for Blocking {}
impl Face for Async {}
impl Face for Blocking {}
