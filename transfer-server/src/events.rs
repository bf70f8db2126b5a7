//! The events of the sidecar. They are numbered, the newest are kept, and any number of readers can receive them.
//!
//! A reader reads the kept events at its own speed. A slow reader delays nothing and takes no memory; it receives the
//! number of events that it has missed.

use crate::admin::uid_of;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use transfer_core::protocol::NodeEvent;
use transfer_proto::v1;
use v1::event::What;

/// The number of kept events.
const KEPT_EVENTS: usize = 1024;

/// The number of events of one stream that wait for its reader, besides the kept ones.
const MAX_WAITING_EVENTS: usize = 16;

/// The longest text of another process in an event, in characters.
const MAX_TEXT_CHARS: usize = 1024;

/// The events of a sidecar. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<EventsShared>);

#[derive(Debug)]
struct EventsShared {
    kept: Mutex<VecDeque<v1::Event>>,
    /// The number of the latest event.
    latest: watch::Sender<u64>,
}

impl Events {
    /// Makes an empty list.
    pub(crate) fn new() -> Events {
        Events(Arc::new(EventsShared { kept: Mutex::default(), latest: watch::Sender::new(0) }))
    }

    /// Adds an event. Never waits for a reader.
    pub(crate) fn tell(&self, text: String, what: What) {
        let mut kept = self.0.kept.lock();
        let sequence = *self.0.latest.borrow() + 1;
        if kept.len() == KEPT_EVENTS {
            kept.pop_front();
        }
        let text = crate::text::printable(&text, MAX_TEXT_CHARS);
        kept.push_back(v1::Event { sequence, unix_ns: unix_nanos(SystemTime::now()), text, what: Some(what) });
        self.0.latest.send_replace(sequence);
    }

    /// Adds an event of the engine's node.
    pub(crate) fn tell_of_node(&self, event: NodeEvent) {
        match event {
            NodeEvent::KeyTakenOver { key, from, to } => self.tell(
                format!("worker {to} has taken key {key:?} over from {from}"),
                What::KeyTakenOver(v1::KeyTakenOver {
                    key: key.to_string(),
                    from: from.to_string(),
                    to: to.to_string(),
                }),
            ),
            NodeEvent::PoolFull { domain, tenant, bytes } => self.tell(
                format!("somebody waits for room in the landing pool of tenant {tenant}, of {bytes} bytes"),
                What::PoolFull(v1::PoolFull { uid: uid_of(domain), tenant: tenant.to_string(), bytes }),
            ),
            NodeEvent::PoolFree { domain, tenant, after } => self.tell(
                format!("nobody waits for room in the landing pool of tenant {tenant} any more, after {after:?}"),
                What::PoolFree(v1::PoolFree { uid: uid_of(domain), tenant: tenant.to_string(), full_ns: nanos(after) }),
            ),
            NodeEvent::DeltaRefused { key, peer, why, untold } => self.tell(
                format!("a delta of key {key:?} from node {peer} was refused: {why}"),
                What::DeltaRefused(v1::DeltaRefused { key: key.to_string(), peer: peer.to_string(), why, untold }),
            ),
            NodeEvent::RelayRefused { key, peer, untold } => self.tell(
                format!(
                    "key {key:?} came from node {peer} with other bytes than its owner has, and was fetched elsewhere"
                ),
                What::RelayRefused(v1::RelayRefused { key: key.to_string(), peer: peer.to_string(), untold }),
            ),
            NodeEvent::Failed { worker, failure, untold } => self.tell(
                format!("an operation of worker {worker} failed: {}", failure.text),
                What::Failed(v1::Failed {
                    worker: worker.to_string(),
                    code: format!("{:?}", failure.code),
                    why: crate::text::printable(&failure.text, MAX_TEXT_CHARS),
                    untold,
                }),
            ),
        }
    }

    /// Returns at most `most` events after `number`, and the number of events after it that are no longer kept.
    fn after(&self, number: u64, most: usize) -> (u64, Vec<v1::Event>) {
        let kept = self.0.kept.lock();
        let Some(first) = kept.front().map(|event| event.sequence) else { return (0, Vec::new()) };
        let missed = first.saturating_sub(number.saturating_add(1));
        let from = usize::try_from(number.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        (missed, kept.iter().skip(from).take(most).cloned().collect())
    }

    /// Returns a stream of the events from now on, or after the number `after`, until the reader ends it or `stop` is
    /// true.
    ///
    /// # Errors
    /// `after` is higher than the number of the latest event.
    pub(crate) fn stream(
        &self,
        after: Option<u64>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<ReceiverStream<Result<v1::Event, Status>>, Status> {
        let mut latest = self.0.latest.subscribe();
        let now = *latest.borrow_and_update();
        if let Some(after) = after.filter(|after| *after > now) {
            let why = format!(
                "after is {after}, the latest event is {now}: the sidecar has been restarted; begin without after, or at 0"
            );
            return Err(Status::invalid_argument(why));
        }
        let (tell, told) = mpsc::channel(MAX_WAITING_EVENTS);
        let events = self.clone();
        let reading = async move {
            let mut at = after.unwrap_or(now);
            loop {
                let (missed, next) = events.after(at, MAX_WAITING_EVENTS);
                let gap = (missed > 0).then(|| missing(at, missed));
                for event in gap.into_iter().chain(next) {
                    at = event.sequence;
                    if tell.send(Ok(event)).await.is_err() {
                        return;
                    }
                }
                if at >= *latest.borrow_and_update() {
                    tokio::select! {
                        changed = latest.changed() => if changed.is_err() { return },
                        () = tell.closed() => return,
                    }
                }
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = reading => {}
                // An error means that the sidecar is gone.
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
        Ok(ReceiverStream::new(told))
    }
}

fn missing(at: u64, count: u64) -> v1::Event {
    let text = format!("{count} events were missed");
    v1::Event { sequence: at + count, unix_ns: 0, text, what: Some(What::Missed(v1::Missed { count })) }
}

/// Converts a duration to nanoseconds for a message.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a moment to nanoseconds since 1970 for a message.
pub(crate) fn unix_nanos(at: SystemTime) -> u64 {
    nanos(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt;

    fn changed(n: u64) -> What {
        What::Changed(v1::Changed { call: n.to_string() })
    }

    #[tokio::test]
    async fn reader_receives_kept_and_new_events() {
        let events = Events::new();
        let (stop, stopping) = watch::channel(false);
        events.tell("1".into(), changed(1));
        let mut from_now = events.stream(None, stopping.clone()).unwrap();
        let mut from_the_start = events.stream(Some(0), stopping.clone()).unwrap();
        events.tell("2".into(), changed(2));
        assert_eq!(from_now.next().await.unwrap().unwrap().sequence, 2);
        for n in [1, 2] {
            let event = from_the_start.next().await.unwrap().unwrap();
            assert_eq!((event.sequence, event.text), (n, n.to_string()));
        }
        let future = events.stream(Some(3), stopping).unwrap_err();
        assert!(future.message().contains("the latest event is 2"), "{future}");
        stop.send(true).unwrap();
        assert!(from_now.next().await.is_none());
    }

    #[tokio::test]
    async fn slow_reader_learns_how_many_events_it_missed() {
        let events = Events::new();
        let (_stop, stopping) = watch::channel(false);
        let mut slow = events.stream(None, stopping).unwrap();
        let all = 3 * KEPT_EVENTS as u64;
        for n in 1..=all {
            events.tell(n.to_string(), changed(n));
        }
        assert_eq!(events.0.kept.lock().len(), KEPT_EVENTS);
        let (mut heard, mut missed, mut at) = (0, 0, 0);
        while at < all {
            let event = slow.next().await.unwrap().unwrap();
            match event.what {
                Some(What::Missed(m)) => missed += m.count,
                _ => heard += 1,
            }
            assert_eq!(event.sequence, heard + missed, "no event is left out unsaid");
            at = event.sequence;
        }
        assert!(missed >= all - (KEPT_EVENTS + MAX_WAITING_EVENTS) as u64 - 1, "{missed}");
    }
}
