//! Long work of calls, on threads of its own: a call that is awaited does not hold up the runtime that polls it.

use super::Session;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// The work of a session that no thread has begun, and how many threads there are. They end when there is none.
#[derive(Default)]
pub(crate) struct Background(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    works: VecDeque<Work>,
    threads: usize,
}

impl Session {
    /// Does this on another thread, of which there are at most `threads` at a time, or here if there can be none. The receiver is
    /// ready once it is done.
    pub(crate) fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        threads: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, result) = oneshot::channel();
        // Nobody may wait for it any more.
        let work: Work = Box::new(move || drop(done.send(work())));
        if self.is_forked() {
            // The threads are the parent's.
            work();
            return result;
        }
        let mut waiting = self.background.0.lock();
        waiting.works.push_back(work);
        if waiting.threads < threads {
            let session = self.clone();
            let thread = std::thread::Builder::new().name("transfer-delta".into());
            let started = thread.spawn(move || while session.do_next() {});
            waiting.threads += usize::from(started.is_ok());
        }
        if waiting.threads == 0 {
            let work = waiting.works.pop_back();
            drop(waiting);
            work.into_iter().for_each(|work| work());
        }
        result
    }

    /// Does what waits for longest. Returns whether there was anything; else one thread less is there.
    fn do_next(&self) -> bool {
        let work = {
            let mut waiting = self.background.0.lock();
            let work = waiting.works.pop_front();
            waiting.threads -= usize::from(work.is_none());
            work
        };
        work.map(|work| work()).is_some()
    }
}
