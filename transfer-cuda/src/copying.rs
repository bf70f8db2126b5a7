//! Copies under way.

use crate::event::Event;
use crate::{CopyReport, CudaError, keeper};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// For this long a waiting thread polls: a thread that sleeps wakes up some 50 us late.
const SPIN_TIME: Duration = Duration::from_millis(2);

/// A copy under way: `.await` it, or [`wait`](Copying::wait) for it. It owns what is read and written, `T`, and returns it
/// at its end.
///
/// Dropping it does not stop the copy: what it owns is dropped when the copy has ended.
#[derive(Debug)]
#[must_use = "what was copied is returned at the end of the copy"]
pub struct Copying<T: Send + 'static> {
    /// `None` once it has ended.
    flight: Option<Arc<Flight<T>>>,
    report: CopyReport,
}

/// What is owned by a copy, and the event of its end.
#[derive(Debug)]
struct Flight<T: Send> {
    event: Event,
    /// `None` once the handle has taken it.
    owned: Mutex<Option<T>>,
    waker: Mutex<Option<Waker>>,
    /// Whether the keeper looks for the end.
    is_kept: AtomicBool,
}

/// A copy of any kind, for the keeper.
pub(crate) trait Flying: Send + Sync {
    /// Returns whether the copy has ended, or the driver cannot say. If so, it wakes the task that awaits the copy.
    fn is_over(&self) -> bool;
}

impl<T: Send> Flying for Flight<T> {
    fn is_over(&self) -> bool {
        let is_over = self.event.has_come() != Ok(false);
        if is_over {
            // The waker may poll, so the lock is not held while it runs.
            let waker = self.waker.lock().take();
            waker.into_iter().for_each(Waker::wake);
        }
        is_over
    }
}

impl<T: Send> Drop for Flight<T> {
    fn drop(&mut self) {
        let owned = self.owned.get_mut().take();
        if owned.is_some() && self.event.wait().is_err() {
            // Nobody knows whether the GPU still reads or writes the memory.
            std::mem::forget(owned);
        }
    }
}

impl<T: Send + 'static> Copying<T> {
    /// Makes the handle of a copy that ends with `event`.
    pub(crate) fn new(event: Event, owned: T, report: CopyReport) -> Copying<T> {
        let (owned, waker) = (Mutex::new(Some(owned)), Mutex::new(None));
        let flight = Flight { event, owned, waker, is_kept: AtomicBool::new(false) };
        Copying { flight: Some(Arc::new(flight)), report }
    }

    /// What is copied, and how.
    #[must_use]
    pub fn report(&self) -> &CopyReport {
        &self.report
    }

    /// Whether the copy has ended.
    ///
    /// # Errors
    /// [`CudaError`]: earlier work of the GPU has failed, and nobody knows. What the copy owns is leaked then.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.flight.as_ref().map_or(Ok(true), |flight| flight.event.has_come())
    }

    /// Waits for the end of the copy, and returns what it owned.
    ///
    /// # Errors
    /// [`CudaError`]: earlier work of the GPU has failed, and nobody knows whether the copy has ended. What it owns is
    /// leaked.
    pub fn wait(mut self) -> Result<T, CudaError> {
        if !self.spin(SPIN_TIME)?
            && let Some(flight) = &self.flight
        {
            flight.event.wait()?;
        }
        self.take()
    }

    /// Waits for the end of the copy, at most for `time`. Returns whether it has ended; then [`wait`](Copying::wait) does
    /// not wait.
    ///
    /// # Errors
    /// Those of [`Copying::is_done`].
    pub fn wait_for(&self, time: Duration) -> Result<bool, CudaError> {
        let started = Instant::now();
        if self.spin(SPIN_TIME.min(time))? {
            return Ok(true);
        }
        loop {
            let elapsed = started.elapsed();
            if elapsed >= time {
                return self.is_done();
            }
            // Late by some hundredths at most.
            let pause = (elapsed / 100).clamp(Duration::from_micros(20), Duration::from_millis(1));
            std::thread::sleep(pause.min(time - elapsed));
            if self.is_done()? {
                return Ok(true);
            }
        }
    }

    fn spin(&self, time: Duration) -> Result<bool, CudaError> {
        let started = Instant::now();
        loop {
            if self.is_done()? {
                return Ok(true);
            }
            if started.elapsed() >= time {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Takes what the copy owned, after its end.
    fn take(&mut self) -> Result<T, CudaError> {
        let owned = self.flight.take().and_then(|flight| flight.owned.lock().take());
        // It is taken only by calls that take the handle.
        owned.ok_or(CudaError::Ended)
    }
}

impl<T: Send + 'static> Future for Copying<T> {
    type Output = Result<T, CudaError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(flight) = &self.flight {
            *flight.waker.lock() = Some(context.waker().clone());
            match flight.event.has_come() {
                Ok(true) => {}
                Ok(false) => {
                    if !flight.is_kept.swap(true, Ordering::Relaxed) {
                        keeper::keep(flight.clone());
                    }
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(self.take())
    }
}

impl<T: Send + 'static> Unpin for Copying<T> {}

impl<T: Send + 'static> Drop for Copying<T> {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        match flight.event.has_come() {
            Ok(true) => {}
            Ok(false) if flight.is_kept.load(Ordering::Relaxed) => {}
            Ok(false) => keeper::keep(flight),
            // Its drop would ask the driver again, and leak what the copy owns; a forked child must not even lock.
            Err(_) => std::mem::forget(flight),
        }
    }
}
