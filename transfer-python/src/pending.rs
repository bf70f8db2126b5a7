//! Calls in progress.

use crate::bell::Bell;
use crate::{errors, options};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pyo3::PyTraverseError;
use pyo3::PyVisit;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::ops::ControlFlow;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_client::Begun;

/// The interval at which a waiting thread checks for signals, so that Ctrl-C ends a wait within 50 ms.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(40);

/// The longest wait of an event loop for a call that another thread has. The thread wakes it when it puts the call back.
const MAX_BUSY_WAIT: Duration = Duration::from_secs(1);

/// A call of any kind, with the conversion of its answer.
pub(crate) trait Going: Send {
    /// Continues without waiting.
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> ControlFlow<PyResult<Py<PyAny>>, Instant>;

    /// Looks for a result that is there, or takes the first step.
    fn look(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>>;

    /// Waits at most for `time`, without the interpreter's lock, as a caller that does nothing else.
    fn wait_only(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>>;

    /// Waits at most for `time`, without the interpreter's lock.
    fn wait(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>>;
}

struct Op<T, F> {
    begun: Begun<'static, T>,
    finish: Option<F>,
    /// Its first step computes for long, which the other threads of Python do not wait for.
    is_long: bool,
}

impl<T: Send, F: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send> Op<T, F> {
    fn finish(&mut self, py: Python<'_>, value: T) -> PyResult<Py<PyAny>> {
        match self.finish.take() {
            Some(finish) => finish(py, value),
            None => Err(ended(py)),
        }
    }
}

impl<T: Send, F: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send> Going for Op<T, F> {
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> ControlFlow<PyResult<Py<PyAny>>, Instant> {
        let begun = &mut self.begun;
        let step = if self.is_long { py.detach(|| begun.poll(waker)) } else { begun.poll(waker) };
        match step {
            ControlFlow::Break(value) => ControlFlow::Break(self.finish(py, value)),
            ControlFlow::Continue(at) => ControlFlow::Continue(at),
        }
    }

    fn look(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        if self.is_long {
            return self.wait_only(py, Duration::ZERO);
        }
        let value = self.begun.wait_only(Duration::ZERO)?;
        Some(self.finish(py, value))
    }

    fn wait_only(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let begun = &mut self.begun;
        let value = py.detach(|| begun.wait_only(time))?;
        Some(self.finish(py, value))
    }

    fn wait(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let begun = &mut self.begun;
        let value = py.detach(|| begun.wait(time))?;
        Some(self.finish(py, value))
    }
}

/// Makes the exception of a call that was given up.
pub(crate) fn ended(py: Python<'_>) -> PyErr {
    errors::own(py, "cancelled", "the call was given up")
}

/// Joins a call and the conversion of its answer.
pub(crate) fn going<T: Send + 'static>(
    begun: Begun<'static, T>,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Box<dyn Going> {
    Box::new(Op { begun, finish: Some(finish), is_long: false })
}

/// As [`going`], for a push: one with digests or a delta reads all of its memory before it is sent.
pub(crate) fn going_push<T: Send + 'static>(
    begun: Begun<'static, T>,
    is_long: bool,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Box<dyn Going> {
    Box::new(Op { begun, finish: Some(finish), is_long })
}

/// Waits for a call on this thread. If the handler of a signal raises, the wait ends and the call is given up.
pub(crate) fn run(py: Python<'_>, mut going: Box<dyn Going>) -> PyResult<Py<PyAny>> {
    // A result that is there at once needs no wait, and no release of the interpreter's lock.
    if let Some(result) = going.look(py) {
        return result;
    }
    loop {
        if let Some(result) = going.wait_only(py, SIGNAL_CHECK_INTERVAL) {
            return result;
        }
        look_up(py)?;
    }
}

/// Does what a thread that waits owes its interpreter: it handles signals, and runs a line of Python.
///
/// In free-threaded Python an object whose last reference another thread drops is freed by the thread that made it, and
/// that does so only while it runs Python. Without this, a thread that waits for room would keep that room.
pub(crate) fn look_up(py: Python<'_>) -> PyResult<()> {
    static RUN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    py.check_signals()?;
    RUN.import(py, "transferd._calls", "run_a_line")?.call0().map(drop)
}

enum State {
    Going(Box<dyn Going>),
    /// A thread is waiting for it, or taking a step.
    Busy,
    /// An error refers to the frames that it passed, and those may refer to this call, so the garbage collector must
    /// see it.
    Ended(Result<Py<PyAny>, Py<PyBaseException>>),
}

/// A call in progress, made by `fetch_later`. Dropping it, or `cancel()`, gives the call up, and a late result is
/// released.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Pending {
    shared: Mutex<PendingShared>,
    /// Notified when a thread puts the call back.
    put_back: Condvar,
}

struct PendingShared {
    state: State,
    /// The event loops that are woken when a thread puts the call back.
    wakers: Vec<Waker>,
    /// Whether `cancel()` was called. A thread that has taken the call ends it when it puts it back.
    is_given_up: bool,
}

impl Pending {
    pub(crate) fn new(going: Box<dyn Going>) -> Pending {
        Pending::with(State::Going(going))
    }

    /// Makes a call that has ended.
    pub(crate) fn ready(value: Py<PyAny>) -> Pending {
        Pending::with(State::Ended(Ok(value)))
    }

    fn with(state: State) -> Pending {
        let shared = PendingShared { state, wakers: Vec::new(), is_given_up: false };
        Pending { shared: Mutex::new(shared), put_back: Condvar::new() }
    }

    /// Takes the first step, which sends the call.
    pub(crate) fn begin(&self, py: Python<'_>) {
        let _ = self.step(py, Waker::noop());
    }

    fn take(&self) -> State {
        std::mem::replace(&mut self.shared.lock().state, State::Busy)
    }

    /// Puts back the state that `take` has returned, unless that was `Busy`. Returns the result if the call has ended.
    fn put(&self, py: Python<'_>, mut state: State) -> Option<PyResult<Py<PyAny>>> {
        if matches!(state, State::Going(_)) {
            let mut shared = self.shared.lock();
            if !shared.is_given_up {
                shared.state = state;
                self.wake(shared);
                return None;
            }
            drop(shared);
            py.detach(|| drop(state));
            state = ended_with(py, Err(ended(py)));
        }
        let answer = match &state {
            State::Ended(Ok(value)) => Some(Ok(value.clone_ref(py))),
            State::Ended(Err(error)) => Some(Err(PyErr::from_value(error.bind(py).clone().into_any()))),
            _ => None,
        };
        let mut shared = self.shared.lock();
        shared.state = state;
        self.wake(shared);
        answer
    }

    /// Wakes those that wait for the thread that had the call.
    fn wake(&self, mut shared: MutexGuard<'_, PendingShared>) {
        let wakers = std::mem::take(&mut shared.wakers);
        drop(shared);
        self.put_back.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes one step. `None` if another thread has the call, and wakes `waker` when it puts it back.
    fn step(&self, py: Python<'_>, waker: &Waker) -> Option<ControlFlow<PyResult<Py<PyAny>>, Instant>> {
        let (state, at) = match self.take() {
            State::Going(mut going) => match going.poll(py, waker) {
                ControlFlow::Break(result) => (ended_with(py, result), None),
                ControlFlow::Continue(at) => (State::Going(going), Some(at)),
            },
            State::Busy => {
                let mut shared = self.shared.lock();
                if matches!(shared.state, State::Busy) {
                    shared.wakers.push(waker.clone());
                    return None;
                }
                drop(shared);
                return Some(ControlFlow::Continue(Instant::now()));
            }
            ended => (ended, None),
        };
        let answer = self.put(py, state);
        Some(match (answer, at) {
            (Some(result), _) => ControlFlow::Break(result),
            (None, at) => ControlFlow::Continue(at.unwrap_or_else(Instant::now)),
        })
    }

    fn wait(&self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        self.wait_by(py, time, |going| going.wait(py, time))
    }

    fn wait_only(&self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        self.wait_by(py, time, |going| going.wait_only(py, time))
    }

    fn wait_by(
        &self,
        py: Python<'_>,
        time: Duration,
        wait: impl FnOnce(&mut dyn Going) -> Option<PyResult<Py<PyAny>>>,
    ) -> Option<PyResult<Py<PyAny>>> {
        let state = match self.take() {
            State::Going(mut going) => match wait(&mut *going) {
                Some(result) => ended_with(py, result),
                None => State::Going(going),
            },
            State::Busy => {
                let until = Instant::now() + time;
                py.detach(|| {
                    let mut shared = self.shared.lock();
                    let is_busy = |shared: &mut PendingShared| matches!(shared.state, State::Busy);
                    let _ = self.put_back.wait_while_until(&mut shared, is_busy, until);
                });
                return None;
            }
            ended => ended,
        };
        self.put(py, state)
    }
}

fn ended_with(py: Python<'_>, result: PyResult<Py<PyAny>>) -> State {
    State::Ended(result.map_err(|error| error.into_value(py)))
}

#[pymethods]
impl Pending {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.shared.try_lock().as_deref().map(|shared| &shared.state) {
            Some(State::Ended(Ok(value))) => visit.call(value),
            Some(State::Ended(Err(error))) => visit.call(error),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        // What is dropped may run Python, which must not find the state locked.
        drop(self.take());
    }

    /// `Pending[Tensor]`, for annotations.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, _item: &Bound<'py, PyAny>) -> Bound<'py, PyType> {
        class.clone()
    }

    /// Whether the call has ended, so that `result()` returns without waiting.
    fn done(&self, py: Python<'_>) -> bool {
        self.wait(py, Duration::ZERO).is_some()
    }

    /// The result of the call. Waits for it, at most `timeout` seconds; None waits as long as the call may take.
    ///
    /// Raises the error of the call, or `Timeout` if the call has not ended by then. It stays in progress, and can be
    /// waited for again.
    #[pyo3(signature = (timeout = options::FOR_EVER), text_signature = "($self, timeout=None)")]
    fn result(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Py<PyAny>> {
        let started = Instant::now();
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            if let Some(result) = self.wait_only(py, left.min(SIGNAL_CHECK_INTERVAL)) {
                return result;
            }
            look_up(py)?;
            if left.is_zero() {
                let text = format!("the call has not ended within {timeout:?}; it goes on");
                return Err(errors::own(py, "deadline", &text));
            }
        }
    }

    /// Gives up the call. Threads that wait for it raise `Error` with the code "cancelled" within 50 ms.
    fn cancel(&self, py: Python<'_>) {
        let state = {
            let mut shared = self.shared.lock();
            shared.is_given_up = true;
            std::mem::replace(&mut shared.state, State::Busy)
        };
        if !matches!(state, State::Busy) {
            drop(self.put(py, state));
        }
    }

    /// Takes one step for an event loop. Returns None if the call has ended, so that `result()` returns without
    /// waiting. Otherwise returns the seconds after which to call this again, unless `bell` names `number` earlier.
    fn _step(&self, py: Python<'_>, bell: &Bell, number: u64) -> Option<f64> {
        match self.step(py, &bell.waker(number)) {
            Some(ControlFlow::Break(_)) => None,
            Some(ControlFlow::Continue(at)) => Some(at.saturating_duration_since(Instant::now()).as_secs_f64()),
            None => Some(MAX_BUSY_WAIT.as_secs_f64()),
        }
    }
}
