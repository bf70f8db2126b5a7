//! Long work of calls, on threads of its own: a call that is awaited does not hold up the runtime that polls it. What is done for one
//! key is done in order.

use super::Session;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::oneshot;
use transfer_core::tensor::Key;

/// Tries to send the call of background work, unless it is given up. Returns whether another attempt is to be made; the waker is woken
/// when none is any more. An attempt says whether it was the last one: the call is sent, or cannot be.
pub(crate) type TrySend<'a> = &'a mut dyn FnMut(&Waker, &mut dyn FnMut() -> bool) -> bool;

type Work = Box<dyn FnOnce() + Send>;

/// What has become of the call of background work. It is changed under a lock, which is held while the call is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Unsent,
    /// What has come of it is waited for.
    Sent,
    /// Its caller has given it up, and it is not sent.
    GivenUp,
}

/// The result of background work that sends a call: either its caller gives it up, or it is sent.
#[derive(Debug)]
pub(crate) struct BackgroundCall<T> {
    result: oneshot::Receiver<T>,
    progress: Arc<Mutex<Progress>>,
}

impl<T> BackgroundCall<T> {
    fn new() -> (BackgroundCall<T>, oneshot::Sender<T>) {
        let (done, result) = oneshot::channel();
        (BackgroundCall { result, progress: Arc::new(Mutex::new(Progress::Unsent)) }, done)
    }

    /// Returns the result once the work is done. It is an error if the work has panicked.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<T, oneshot::error::RecvError>> {
        Pin::new(&mut self.result).poll(&mut Context::from_waker(waker))
    }

    /// Gives the call up. Returns whether it will not be sent: if it is sent already, the result is still to be waited for.
    pub(crate) fn give_up(&mut self) -> bool {
        let mut progress = self.progress.lock();
        if *progress == Progress::Sent {
            return false;
        }
        *progress = Progress::GivenUp;
        drop(progress);
        // It wakes the thread that waits for room in the ring.
        self.result.close();
        true
    }
}

/// An attempt to send, see [`TrySend`].
fn try_send(progress: &Mutex<Progress>, attempt: &mut dyn FnMut() -> bool) -> bool {
    let mut progress = progress.lock();
    if *progress == Progress::Unsent && attempt() {
        *progress = Progress::Sent;
    }
    *progress == Progress::Unsent
}

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
    /// before it for the same key is done. It sends its call by what it is given, and is not begun if the call is given up.
    pub(crate) fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        key: Key,
        threads: usize,
        work: impl FnOnce(TrySend<'_>) -> T + Send + 'static,
    ) -> BackgroundCall<T> {
        let (call, mut done) = BackgroundCall::new();
        let progress = call.progress.clone();
        let work: Work = Box::new(move || {
            if !done.is_closed() {
                let made = work(&mut |waker, attempt| {
                    done.poll_closed(&mut Context::from_waker(waker)).is_pending() && try_send(&progress, attempt)
                });
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
        call
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

    // Promise: deltas
    #[test]
    fn a_call_is_sent_or_given_up_and_not_both() {
        let (mut call, _done) = BackgroundCall::<()>::new();
        let progress = call.progress.clone();
        assert!(try_send(&progress, &mut || false), "there was no room: it may be tried again, or given up");
        assert!(!try_send(&progress, &mut || true) && !try_send(&progress, &mut || unreachable!("it is sent once")));
        assert!(!call.give_up(), "what has come of it is waited for");
        let (mut call, done) = BackgroundCall::<()>::new();
        let progress = call.progress.clone();
        assert!(try_send(&progress, &mut || false) && call.give_up() && call.give_up());
        assert!(!try_send(&progress, &mut || unreachable!("it is given up")) && done.is_closed());
    }

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
