//! Room for connections to the HTTP server, and who has to leave when there is none.
//!
//! Whoever connects and says nothing takes a place. Were all places taken so, a health probe would wait until the silent ones have used up
//! their time, and whoever watches would take the sidecar for dead. So the one that has been silent for longest makes room for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How long a connection has its place for certain: who asks at once has asked by then, so that many who come together are all heard.
const PATIENCE: Duration = Duration::from_millis(100);

/// The connections that are open, oldest first.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    taken: Vec<Taken>,
}

#[derive(Debug)]
struct Taken {
    since: Instant,
    asked: WholeRequest,
    task: AbortHandle,
}

/// Whether a connection has sent a whole request.
#[derive(Debug, Clone, Default)]
pub(super) struct WholeRequest(Arc<AtomicBool>);

impl WholeRequest {
    /// It has.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

async fn free(places: &Arc<Semaphore>) -> Place {
    match places.clone().acquire_owned().await {
        Ok(place) => Place(place),
        // Nobody closes it.
        Err(_closed) => std::future::pending().await,
    }
}

/// A place in use, for as long as this is kept.
#[derive(Debug)]
pub(super) struct Place(#[expect(dead_code, reason = "kept for its drop")] OwnedSemaphorePermit);

impl Places {
    pub(super) fn new(all: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(all)), taken: Vec::new() }
    }

    /// A place for somebody who is there already. While all are taken by connections that have asked, it waits for one to be answered.
    pub(super) async fn wait(&mut self) -> Place {
        loop {
            self.taken.retain(|taken| !taken.task.is_finished());
            let silent = self.taken.iter().position(|taken| !taken.asked.is_set());
            let patience = silent.map(|i| self.taken[i].since + PATIENCE);
            let over = async {
                match patience {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                place = free(&self.free) => return place,
                () = over => {}
            }
            // It may have asked meanwhile.
            if let Some(i) = silent.filter(|i| !self.taken[*i].asked.is_set()) {
                self.taken.remove(i).task.abort();
                // Its place is free as soon as the runtime has dropped it.
                return free(&self.free).await;
            }
        }
    }

    /// Whom a place has been given to: `task` keeps the place, and sets `asked`.
    pub(super) fn give(&mut self, task: AbortHandle, asked: WholeRequest) {
        self.taken.push(Taken { since: Instant::now(), asked, task });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a loaded machine takes for anything here, and shorter than for ever.
    const LONG: Duration = Duration::from_secs(30);

    /// Takes a place and keeps it, for ever.
    async fn take(places: &mut Places) -> (WholeRequest, AbortHandle) {
        let place = tokio::time::timeout(LONG, places.wait()).await.expect("somebody makes room");
        let asked = WholeRequest::default();
        let task = tokio::spawn(async move {
            let _place = place;
            std::future::pending::<()>().await;
        });
        places.give(task.abort_handle(), asked.clone());
        (asked, task.abort_handle())
    }

    #[tokio::test]
    async fn the_oldest_that_has_not_asked_makes_room() {
        let mut places = Places::new(3);
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(take(&mut places).await);
        }
        open[0].0.set();
        open.push(take(&mut places).await);
        let finished: Vec<_> = open.iter().map(|(_, task)| task.is_finished()).collect();
        assert_eq!(finished, [false, true, false, false], "the first has asked, the second was silent for longest");
    }

    #[tokio::test]
    async fn nobody_who_has_asked_is_thrown_out() {
        let mut places = Places::new(2);
        let open = [take(&mut places).await, take(&mut places).await];
        open.iter().for_each(|(asked, _)| asked.set());
        let waited = tokio::time::timeout(PATIENCE * 3, places.wait()).await;
        assert!(waited.is_err(), "both are being answered");
        open[1].1.abort();
        take(&mut places).await;
        assert!(!open[0].1.is_finished());
    }
}
