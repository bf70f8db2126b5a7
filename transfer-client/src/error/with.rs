//! The error of a call that takes something of the caller's.

use super::Error;
use std::fmt;

/// A failed call that had taken something. It gives that back, if it is the caller's alone again.
#[derive(Debug)]
pub struct ErrorWith<T>(Box<(Error, Option<T>)>);

impl<T> ErrorWith<T> {
    pub(crate) fn new(error: Error, taken: Option<T>) -> ErrorWith<T> {
        ErrorWith(Box::new((error, taken)))
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// The error, and what the call had taken.
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<T>) {
        *self.0
    }

    /// What the call had taken: a tensor, for a push and for a fetch into memory.
    #[must_use]
    pub fn into_tensor(self) -> Option<T> {
        self.0.1
    }
}

impl<T> fmt::Display for ErrorWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl<T: fmt::Debug> std::error::Error for ErrorWith<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl<T> From<ErrorWith<T>> for Error {
    fn from(error: ErrorWith<T>) -> Error {
        error.0.0
    }
}
