//! Long work of calls, on threads of its own: a call that is awaited does not hold up the runtime that polls it. What is done for one
//! key is done in order.

use super::Session;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use tokio::sync::oneshot;
use transfer_core::tensor::Key;

/// Whether the result of background work is still wanted; the waker is woken when it is not any more.
pub(crate) type IsWanted<'a> = &'a mut dyn FnMut(&Waker) -> bool;

type Work = Box<dyn FnOnce() + Send>;

/// The unfinished background work of a session. A thread ends when no work is left that it may begin.
#[derive(Default)]
pub(crate) struct Background {
    waiting: Mutex<Waiting>,
    /// How much is not done. It saves the lock where there is none, which is nearly always.
    pending: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    works: VecDeque<(Key, Work)>,
    /// The keys for which threads are at work.
    begun: Vec<Key>,
    threads: usize,
}

impl Waiting {
    /// Takes what waits for longest for the key of the `last` work, or else of what may begin.
    fn next(&mut self, last: Option<&Key>) -> Option<(Key, Work)> {
        let Waiting { works, begun, .. } = self;
        // The thread that is at work for a key goes on with what waits for that.
        let may_begin = |key: &Key| !begun.contains(key);
        let next = works.iter().position(|(key, _)| Some(key) == last && may_begin(key));
        let next = next.or_else(|| works.iter().position(|(key, _)| may_begin(key)));
        let (key, work) = next.and_then(|at| works.remove(at))?;
        begun.push(key.clone());
        Some((key, work))
    }
}

impl Session {
    /// Does this on another thread, of which there are at most `threads` at a time, or here if there can be none, once what came
    /// before it for the same key is done. It is told whether its result is still wanted, and is not begun if it is not. The
    /// receiver is ready once it is done, or has panicked.
    pub(crate) fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        key: Key,
        threads: usize,
        work: impl FnOnce(IsWanted<'_>) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (mut done, result) = oneshot::channel();
        let work: Work = Box::new(move || {
            if !done.is_closed() {
                let made = work(&mut |waker| done.poll_closed(&mut Context::from_waker(waker)).is_pending());
                // Nobody may wait for it any more.
                drop(done.send(made));
            }
        });
        let mut waiting = self.background.waiting.lock();
        waiting.works.push_back((key, work));
        self.background.pending.fetch_add(1, Ordering::SeqCst);
        if waiting.threads < threads {
            let session = self.clone();
            let thread = std::thread::Builder::new().name("transfer-push".into());
            let started = thread.spawn(move || session.do_all());
            waiting.threads += usize::from(started.is_ok());
        }
        if waiting.threads == 0 {
            waiting.threads = 1;
            drop(waiting);
            self.do_all();
        }
        result
    }

    /// Whether there is work for this key that is not done.
    pub(crate) fn has_background(&self, key: &Key) -> bool {
        self.has_any_background() && {
            let waiting = self.background.waiting.lock();
            waiting.begun.contains(key) || waiting.works.iter().any(|(of, _)| of == key)
        }
    }

    /// Whether there is work for any key that is not done.
    pub(crate) fn has_any_background(&self) -> bool {
        // The threads, and what they have locked, are those of a child's parent.
        !self.is_forked() && self.background.pending.load(Ordering::SeqCst) > 0
    }

    /// Does all that may begin.
    fn do_all(&self) {
        let mut last = None;
        while let Some(key) = self.do_next(last.as_ref()) {
            last = Some(key);
        }
    }

    /// Does what is next after the `last` work. Returns its key; if there is nothing, one thread less is there.
    fn do_next(&self, last: Option<&Key>) -> Option<Key> {
        let (key, work) = {
            let mut waiting = self.background.waiting.lock();
            let Some(next) = waiting.next(last) else {
                waiting.threads -= 1;
                return None;
            };
            next
        };
        // The caller of what panics finds that its sender is gone, and the others go on.
        let _ = catch_unwind(AssertUnwindSafe(work));
        let mut waiting = self.background.waiting.lock();
        waiting.begun.retain(|of| *of != key);
        self.background.pending.fetch_sub(1, Ordering::SeqCst);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: deltas, seen to fail
    #[test]
    fn work_for_a_key_does_not_wait_for_that_of_others() {
        let [a, b, c] = ["a", "b", "c"].map(|key| Key::new(key).unwrap());
        let mut waiting = Waiting::default();
        let mut add = |keys: &[&Key]| {
            let works = keys.iter().map(|key| ((*key).clone(), Box::new(|| {}) as Work));
            waiting.works.extend(works);
        };
        add(&[&a, &b, &c, &a, &b]);
        let mut next = |last| waiting.next(last).map(|(key, _)| key);
        assert_eq!(next(None), Some(a.clone()));
        // Another thread, while this one is at work.
        assert_eq!(next(None), Some(b.clone()));
        waiting.begun.retain(|key| *key != a);
        let mut next = |last| waiting.next(last).map(|(key, _)| key);
        assert_eq!(next(Some(&a)), Some(a.clone()), "and not c, which has waited for longer");
        assert_eq!((next(Some(&a)), next(Some(&c))), (Some(c.clone()), None), "each key has one thread");
    }
}
