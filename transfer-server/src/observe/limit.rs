//! The limit of log lines of each call site.

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// The window in which a call site may log its number of lines.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// The target of the lines that report dropped lines. These lines are not limited: there is at most one for each call
/// site and second.
pub(super) const TARGET: &str = "transfer_log";

/// Counts lines by their call site. The number of call sites is fixed, so the counts take bounded memory.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The most lines of one call site in one window; 0: any number.
    most: u32,
    places: Mutex<HashMap<Identifier, LogSite>>,
    /// Notified when a line was dropped and not yet reported.
    to_tell: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct LogSite {
    metadata: &'static Metadata<'static>,
    began: Instant,
    written: u32,
    /// The number of lines that were dropped since the last report.
    untold: u64,
}

/// The dropped lines of one call site.
#[derive(Debug, PartialEq, Eq)]
struct Dropped {
    lines: u64,
    target: &'static str,
    file: &'static str,
    line: u32,
}

impl Limiter {
    pub(crate) fn new(most: u32) -> Limiter {
        Limiter { most, places: Mutex::default(), to_tell: Condvar::new(), dropped: AtomicU64::new(0) }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns whether a line of this call site may be written, and counts it.
    fn takes(&self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        if self.most == 0 || [TARGET, super::spans::TARGET].contains(&metadata.target()) {
            return true;
        }
        let mut places = self.places.lock();
        let place = places.entry(metadata.callsite()).or_insert_with(|| LogSite {
            metadata,
            began: now,
            written: 0,
            untold: 0,
        });
        if now.saturating_duration_since(place.began) >= RATE_WINDOW {
            (place.began, place.written) = (now, 0);
        }
        if place.written < self.most {
            place.written += 1;
            return true;
        }
        place.untold += 1;
        self.dropped.fetch_add(1, Ordering::Relaxed);
        if place.untold == 1 {
            self.to_tell.notify_one();
        }
        false
    }

    /// Returns the dropped lines that were not reported yet, by call site, and marks them as reported.
    fn take_untold(&self) -> Vec<Dropped> {
        let mut places = self.places.lock();
        let untold = places.values_mut().filter(|place| place.untold > 0).map(|place| Dropped {
            lines: std::mem::take(&mut place.untold),
            target: place.metadata.target(),
            file: place.metadata.file().unwrap_or("?"),
            line: place.metadata.line().unwrap_or(0),
        });
        untold.collect()
    }

    /// Starts the thread that reports dropped lines. It sleeps while there are none.
    pub(crate) fn start_telling(self: Arc<Self>) {
        if self.most == 0 {
            return;
        }
        let started = std::thread::Builder::new().name("transfer-log".into()).spawn(move || {
            loop {
                let mut places = self.places.lock();
                while places.values().all(|place| place.untold == 0) {
                    self.to_tell.wait(&mut places);
                }
                drop(places);
                std::thread::sleep(RATE_WINDOW);
                for Dropped { lines, target, file, line } in self.take_untold() {
                    tracing::warn!(
                        target: TARGET,
                        dropped = lines,
                        of = target,
                        at = format_args!("{file}:{line}"),
                        "log lines dropped: too many from one place"
                    );
                }
            }
        });
        if let Err(e) = started {
            // The limit still applies, and the metrics contain the dropped lines.
            tracing::warn!("no thread can be had that tells of dropped log lines: {e}");
        }
    }
}

/// Applies the limit as a layer in front of the layer that writes. It is not a filter of that layer: if such a filter
/// accepts an event and later rejects it, tracing-subscriber 0.3 keeps its decision for the thread's next event, and
/// panics in debug builds.
pub(crate) struct Limit(Arc<Limiter>);

impl Limit {
    pub(crate) fn new(limiter: Arc<Limiter>) -> Limit {
        Limit(limiter)
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.0.takes(event.metadata(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    /// Returns the call sites of two lines.
    fn places() -> (&'static Metadata<'static>, &'static Metadata<'static>) {
        struct Caught(Arc<Mutex<Vec<&'static Metadata<'static>>>>);
        impl<S: Subscriber> Layer<S> for Caught {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                self.0.lock().push(event.metadata());
            }
        }
        let caught = Arc::new(Mutex::new(Vec::new()));
        let subscriber = tracing_subscriber::registry().with(Caught(caught.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("one");
            tracing::info!("another");
        });
        let caught = caught.lock();
        (caught[0], caught[1])
    }

    #[test]
    fn lines_of_a_call_site_are_limited_per_second_and_drops_are_counted() {
        let (one, another) = places();
        let limiter = Limiter::new(3);
        let start = Instant::now();
        let written = (0..10).filter(|_| limiter.takes(one, start)).count();
        assert_eq!((written, limiter.dropped()), (3, 7));
        assert!(limiter.takes(another, start), "another place is not limited by that");
        assert!(limiter.takes(one, start + RATE_WINDOW), "a new second has begun");
        let told = limiter.take_untold();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].lines, told[0].line), (7, one.line().unwrap()));
        assert_eq!(limiter.take_untold(), [], "once is enough");
    }

    #[test]
    fn zero_means_no_limit() {
        let (one, _) = places();
        let limiter = Limiter::new(0);
        assert!((0..10_000).all(|_| limiter.takes(one, Instant::now())));
        assert_eq!(limiter.dropped(), 0);
    }
}
