//! Drains: the sidecar finishes the running work, takes no new work, and leaves; see `Admin.Drain`.

use crate::engine::EngineClient;
use crate::events::{Events, nanos};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use transfer_core::protocol::Unfinished;
use transfer_proto::v1;
use v1::event::What;

/// The default deadline of a drain, and the longest deadline.
const DEADLINE: Duration = Duration::from_secs(30);
const MAX_DRAIN_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The interval at which a drain checks whether work is left.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The interval of progress reports when nothing changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The drain of a sidecar. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Drain(Arc<DrainShared>);

#[derive(Debug)]
struct DrainShared {
    engine: EngineClient,
    events: Events,
    /// Held while a drain begins, so that only one begins.
    begins: Mutex<()>,
    state: watch::Sender<Option<State>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    step: v1::DrainStep,
    began: Instant,
    deadline: Instant,
    left: Unfinished,
}

impl State {
    fn to_message(self, now: Instant) -> v1::DrainProgress {
        v1::DrainProgress {
            step: self.step.into(),
            age_ns: nanos(now.saturating_duration_since(self.began)),
            left_ns: nanos(self.deadline.saturating_duration_since(now)),
            operations: self.left.operations,
            requests: self.left.requests,
            outgoing: self.left.outgoing,
            landing: self.left.landing,
        }
    }
}

impl Drain {
    /// Makes the state without a drain.
    pub(crate) fn new(engine: EngineClient, events: Events) -> Drain {
        Drain(Arc::new(DrainShared { engine, events, begins: Mutex::default(), state: watch::Sender::new(None) }))
    }

    /// Returns whether a drain is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.state.borrow().is_some()
    }

    /// Returns the progress of the drain, if there is one.
    pub(crate) fn progress(&self) -> Option<v1::DrainProgress> {
        self.0.state.borrow().map(|state| state.to_message(Instant::now()))
    }

    /// Waits until a drain has begun.
    pub(crate) async fn begun(&self) {
        self.reached(|_| true).await;
    }

    /// Waits until the sidecar has to leave.
    pub(crate) async fn over(&self) {
        self.reached(|state| state.step != v1::DrainStep::Finishing).await;
    }

    async fn reached(&self, is: impl Fn(&State) -> bool) {
        // This cannot fail, because `self` holds the sender.
        let _ = self.0.state.subscribe().wait_for(|state| state.as_ref().is_some_and(&is)).await;
    }

    /// Begins a drain, or shortens the deadline of the current one. The stream ends with the last step.
    pub(crate) fn begin(&self, deadline_ns: u64) -> Result<ReceiverStream<Result<v1::DrainProgress, Status>>, Status> {
        let patience = match Duration::from_nanos(deadline_ns) {
            Duration::ZERO => DEADLINE,
            told if told > MAX_DRAIN_TIME => {
                let why = format!("deadline_ns is {deadline_ns}: at most {} is a deadline", MAX_DRAIN_TIME.as_nanos());
                return Err(Status::invalid_argument(why));
            }
            told => told,
        };
        let now = Instant::now();
        {
            let _one = self.0.begins.lock();
            let fresh = self.0.state.borrow().is_none();
            self.0.state.send_modify(|state| {
                let step = v1::DrainStep::Finishing;
                let state = state.get_or_insert(State {
                    step,
                    began: now,
                    deadline: now + patience,
                    left: Unfinished::default(),
                });
                state.deadline = state.deadline.min(now + patience);
            });
            if fresh {
                tracing::info!(deadline = ?patience, "draining: finishing what runs, taking nothing new");
                self.tell(format!("the sidecar drains: it leaves within {patience:?}"));
                tokio::spawn(self.clone().run());
            }
        }
        Ok(self.stream())
    }

    fn tell(&self, text: String) {
        if let Some(progress) = self.progress() {
            self.0.events.tell(text, What::Drain(progress));
        }
    }

    async fn run(self) {
        let DrainShared { engine, state, .. } = &*self.0;
        let step = loop {
            // Repeating the command is harmless, and the answer holds the work that is left.
            match engine.drain().await {
                Ok(left) => {
                    state.send_if_modified(|state| {
                        state.as_mut().is_some_and(|state| std::mem::replace(&mut state.left, left) != left)
                    });
                    if left.is_nothing() {
                        break v1::DrainStep::Finished;
                    }
                }
                // A data plane that has ended has nothing left to finish. A silent one has time until the deadline.
                Err(crate::engine::EngineError::Gone(_)) => break v1::DrainStep::Finished,
                Err(why) => tracing::warn!(%why, "the data plane does not say what is left to finish"),
            }
            if state.borrow().is_none_or(|state| state.deadline <= Instant::now()) {
                break v1::DrainStep::Overdue;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        let words = match step {
            v1::DrainStep::Finished => "the sidecar has finished what ran, and leaves",
            _ => "the sidecar leaves with what is not finished: the deadline of its drain has come",
        };
        tracing::info!(left = ?state.borrow().map(|state| state.left), "{words}");
        state.send_modify(|state| {
            if let Some(state) = state {
                state.step = step;
            }
        });
        self.tell(words.to_owned());
    }

    fn stream(&self) -> ReceiverStream<Result<v1::DrainProgress, Status>> {
        let (tell, told) = mpsc::channel(4);
        let mut state = self.0.state.subscribe();
        tokio::spawn(async move {
            loop {
                let Some(now) = *state.borrow_and_update() else { return };
                let over = now.step != v1::DrainStep::Finishing;
                if tell.send(Ok(now.to_message(Instant::now()))).await.is_err() || over {
                    return;
                }
                tokio::select! {
                    changed = state.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(REPORT_INTERVAL) => {}
                    () = tell.closed() => return,
                }
            }
        });
        ReceiverStream::new(told)
    }
}
