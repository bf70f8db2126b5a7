//! The error of a push.

use crate::error::Error;
use crate::memory::TensorMut;
use std::fmt;

/// A failed push. It contains the tensor, if no other process can reach that: push it again, or drop it.
#[derive(Debug)]
pub struct PushError(Box<(Error, Option<TensorMut>)>);

impl PushError {
    pub(crate) fn new(error: Error, tensor: Option<TensorMut>) -> PushError {
        PushError(Box::new((error, tensor)))
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// The tensor, writable as before. `None` if a transfer, or another worker, may still read it: its memory returns
    /// to the arena when that is over. `None` also for arrays and slices, which the caller still has.
    #[must_use]
    pub fn into_tensor(self) -> Option<TensorMut> {
        self.0.1
    }

    /// The error and the tensor.
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<TensorMut>) {
        *self.0
    }
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl std::error::Error for PushError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl From<PushError> for Error {
    fn from(error: PushError) -> Error {
        error.0.0
    }
}
