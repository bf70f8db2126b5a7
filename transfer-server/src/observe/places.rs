//! The places of connections to the HTTP server, and the choice of the connection to close when there are too many.
//!
//! A silent connection takes a place. If silent connections had all places, a health probe would wait until their time
//! is over, and would report the sidecar as dead. So the connection that has been silent for longest makes room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The time for which every connection keeps its place. A normal client has sent its request by then, so that many
/// clients that arrive together are all served.
const GUARANTEED_TIME: Duration = Duration::from_millis(100);

/// The open connections, oldest first.
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
    /// Records that the connection has sent a whole request.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

async fn free(places: &Arc<Semaphore>) -> TakenPlace {
    match places.clone().acquire_owned().await {
        Ok(place) => TakenPlace(place),
        // The semaphore is never closed.
        Err(_closed) => std::future::pending().await,
    }
}

/// A taken place. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct TakenPlace(#[expect(dead_code, reason = "kept for its drop")] OwnedSemaphorePermit);

impl Places {
    pub(super) fn new(all: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(all)), taken: Vec::new() }
    }

    /// Waits for a place for a new connection. If connections that have sent requests hold all places, it waits until
    /// one of them is answered.
    pub(super) async fn wait(&mut self) -> TakenPlace {
        loop {
            self.taken.retain(|taken| !taken.task.is_finished());
            let silent = self.taken.iter().position(|taken| !taken.asked.is_set());
            let patience = silent.map(|i| self.taken[i].since + GUARANTEED_TIME);
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
            // The connection may have sent its request in the meantime.
            if let Some(i) = silent.filter(|i| !self.taken[*i].asked.is_set()) {
                self.taken.remove(i).task.abort();
                // The place is free once the runtime has dropped the task.
                return free(&self.free).await;
            }
        }
    }

    /// Records the owner of a place: `task` keeps the place, and sets `asked`.
    pub(super) fn give(&mut self, task: AbortHandle, asked: WholeRequest) {
        self.taken.push(Taken { since: Instant::now(), asked, task });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a loaded machine needs for any step here, so that a hang fails the test.
    const STEP_TIMEOUT: Duration = Duration::from_secs(30);

    /// Takes a place, and never gives it back.
    async fn take(places: &mut Places) -> (WholeRequest, AbortHandle) {
        let place = tokio::time::timeout(STEP_TIMEOUT, places.wait()).await.expect("somebody makes room");
        let asked = WholeRequest::default();
        let task = tokio::spawn(async move {
            let _place = place;
            std::future::pending::<()>().await;
        });
        places.give(task.abort_handle(), asked.clone());
        (asked, task.abort_handle())
    }

    #[tokio::test]
    async fn oldest_silent_connection_makes_room() {
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
    async fn connection_that_has_asked_is_kept() {
        let mut places = Places::new(2);
        let open = [take(&mut places).await, take(&mut places).await];
        open.iter().for_each(|(asked, _)| asked.set());
        let waited = tokio::time::timeout(GUARANTEED_TIME * 3, places.wait()).await;
        assert!(waited.is_err(), "both are being answered");
        open[1].1.abort();
        take(&mut places).await;
        assert!(!open[0].1.is_finished());
    }
}
