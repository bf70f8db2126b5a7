//! Fetches into the memory of buffers, under way.

use crate::client::about_of;
use crate::errors;
use crate::memory::Ours;
use crate::pending::{Going, ended};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_client::{Begun, FetchIntoError, FetchedInto};
use transfer_memory::forked::ForkGuard;

/// How long is waited at a time for the end of a call that was given up.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The buffers whose memory a fetch has. They count as pushed until they have it again.
pub(crate) trait Lenders: Send {
    /// The memory.
    type Memory: Send;

    /// Takes the memory out of what has come.
    fn memory_of(fetched: FetchedInto<Self::Memory>) -> Self::Memory;

    /// Gives the memory back to the buffers.
    fn put_back(&self, memory: Self::Memory);

    /// Gives the memory back, before anything can fail, since the views of the buffers see it. Then makes what the call returns.
    fn finish(
        &self,
        py: Python<'_>,
        fetched: FetchedInto<Self::Memory>,
        about: &(String, Instant),
        guard: &Arc<ForkGuard>,
    ) -> PyResult<Py<PyAny>>;
}

type Fetching<M> = Begun<'static, Result<FetchedInto<M>, FetchIntoError<M>>>;

/// A fetch into the memory of buffers. They have it again when it has ended, also if it is given up.
pub(crate) struct IntoCall<L: Lenders> {
    begun: Ours<Fetching<L::Memory>>,
    lenders: L,
    about: (String, Instant),
    has_ended: bool,
}

impl<L: Lenders> IntoCall<L> {
    pub(crate) fn new(begun: Fetching<L::Memory>, lenders: L, about: (String, Instant), guard: Arc<ForkGuard>) -> Self {
        IntoCall { begun: Ours::new(begun, guard), lenders, about, has_ended: false }
    }

    fn finish(
        &mut self,
        py: Python<'_>,
        result: Result<FetchedInto<L::Memory>, FetchIntoError<L::Memory>>,
    ) -> PyResult<Py<PyAny>> {
        self.has_ended = true;
        match result {
            Ok(fetched) => self.lenders.finish(py, fetched, &self.about, self.begun.guard()),
            Err(failed) => {
                let (error, memory) = failed.into_parts();
                if let Some(memory) = memory {
                    self.lenders.put_back(memory);
                }
                Err(errors::raise(py, &error, &about_of(&self.about)))
            }
        }
    }
}

impl<L: Lenders> Going for IntoCall<L> {
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> ControlFlow<PyResult<Py<PyAny>>, Instant> {
        // A step copies what has not landed in place, which takes as long as that is large.
        let Some(begun) = self.begun.get_mut() else { return ControlFlow::Break(Err(ended(py))) };
        match py.detach(|| begun.poll(waker)) {
            ControlFlow::Break(value) => ControlFlow::Break(self.finish(py, value)),
            ControlFlow::Continue(at) => ControlFlow::Continue(at),
        }
    }

    fn look(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        self.wait_only(py, Duration::ZERO)
    }

    fn wait_only(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let Some(begun) = self.begun.get_mut() else { return Some(Err(ended(py))) };
        let value = py.detach(|| begun.wait_only(time))?;
        Some(self.finish(py, value))
    }

    fn wait(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let Some(begun) = self.begun.get_mut() else { return Some(Err(ended(py))) };
        let value = py.detach(|| begun.wait(time))?;
        Some(self.finish(py, value))
    }
}

impl<L: Lenders> Drop for IntoCall<L> {
    /// Waits until no peer can write into the memory any more, and gives it back. That takes a second after the cancellation at
    /// most, and the end of a link.
    fn drop(&mut self) {
        if self.has_ended || self.begun.guard().is_forked() {
            return;
        }
        let Some(begun) = self.begun.get_mut() else { return };
        begun.cancel();
        let result = Python::attach(|py| {
            py.detach(|| {
                loop {
                    if let Some(result) = begun.wait(END_CHECK_INTERVAL) {
                        return result;
                    }
                }
            })
        });
        let memory = match result {
            Ok(fetched) => Some(L::memory_of(fetched)),
            Err(failed) => failed.into_parts().1,
        };
        if let Some(memory) = memory {
            self.lenders.put_back(memory);
        }
    }
}
