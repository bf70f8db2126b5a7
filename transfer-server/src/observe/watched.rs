//! What is shown over HTTP is made of this: one look at the sidecar, the same for everybody who asks within a moment.

use crate::directory::{Counts, DirectoryClient, DirectoryState, Place};
use crate::engine::{EngineClient, EngineError, Measured};
use crate::observe::logging::LogControl;
use crate::peering::Identity;
use crate::poll::PollControl;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Mutex;
use transfer_memory::segment::PinnedBudget;

/// A look is good for so long: whoever asks as fast as possible costs the data plane no more than that.
const FRESH: Duration = Duration::from_millis(100);

/// A sidecar as far as others may look at it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Watched(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: WatchedParts,
    started_at: SystemTime,
    last: Mutex<Option<(Instant, Arc<Look>)>>,
}

/// What it is made of.
#[derive(Debug)]
pub(crate) struct WatchedParts {
    pub(crate) me: Identity,
    pub(crate) started: Instant,
    pub(crate) budget: PinnedBudget,
    pub(crate) poll: PollControl,
    pub(crate) engine: EngineClient,
    pub(crate) directory: DirectoryClient,
}

/// The sidecar at one moment.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) at: SystemTime,
    pub(crate) measured: Measured,
    pub(crate) pinned: u64,
    pub(crate) pinned_limit: u64,
    pub(crate) directory: DirectoryState,
    /// Where it is hosted here.
    pub(crate) hosted: Option<Counts>,
    pub(crate) log_lines_dropped: u64,
}

impl Watched {
    pub(crate) fn new(parts: WatchedParts) -> Watched {
        let started_at = SystemTime::now() - parts.started.elapsed();
        Watched(Arc::new(Inner { parts, started_at, last: Mutex::new(None) }))
    }

    pub(crate) fn parts(&self) -> &WatchedParts {
        &self.0.parts
    }

    /// When it started.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.0.started_at
    }

    /// The sidecar now, or a moment ago.
    pub(crate) async fn look(&self) -> Result<Arc<Look>, EngineError> {
        // Held while the engine is asked: those who come meanwhile get the same answer.
        let mut last = self.0.last.lock().await;
        if let Some((at, look)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(look.clone());
        }
        let WatchedParts { budget, engine, directory, .. } = self.parts();
        let measured = engine.measure().await?;
        let hosted = match directory.place() {
            Place::Here(hosted) => Some(hosted.counts()),
            Place::There(_) => None,
        };
        let look = Arc::new(Look {
            at: SystemTime::now(),
            measured,
            pinned: budget.used(),
            pinned_limit: budget.limit(),
            directory: directory.state(),
            hosted,
            log_lines_dropped: LogControl::installed().map_or(0, LogControl::dropped),
        });
        *last = Some((Instant::now(), look.clone()));
        Ok(look)
    }
}
