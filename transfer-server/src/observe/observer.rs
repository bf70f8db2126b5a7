//! Snapshots of the sidecar for HTTP. Requests within a short time share one.

use super::spans::Records;
use crate::directory::{Counts, DirectoryClient, DirectoryState, Place};
use crate::engine::{Answer, EngineClient, EngineError, Listing, Measured, PageFrom};
use crate::exchanges::{self, Exchange};
use crate::observe::logging::LogControl;
use crate::peering::Identity;
use crate::poll::PollControl;
use crate::security::{Security, TlsState};
use crate::sessions::Sessions;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Mutex;
use transfer_core::protocol::{
    LinkStatus, MAX_PATHS, Page, SessionStatus, TensorFilter, TensorStatus, TransferFilter, TransferStatus,
};
use transfer_core::time::Time;
use transfer_fabric::engine::Clock;
use transfer_fabric::verbs::datagrams::Datagrams;
use transfer_memory::segment::PinnedBudget;

/// The lifetime of a snapshot. It limits how often frequent requests ask the data plane.
const SNAPSHOT_LIFETIME: Duration = Duration::from_millis(100);

/// The most workers, tensors and transfers that are listed.
const MAX_LISTED: usize = 200;

/// The most pages that one list asks for.
const MAX_PAGES: usize = 8;

/// The observable state of a sidecar. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Observer(Arc<ObserverInner>);

#[derive(Debug)]
struct ObserverInner {
    parts: ObserverParts,
    started_at: SystemTime,
    last: Cached<Observation>,
    last_lists: Cached<Lists>,
}

/// The last value, and its time.
#[derive(Debug)]
struct Cached<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Cached<T> {
    async fn get(&self, look: impl Future<Output = Result<T, EngineError>>) -> Result<Arc<T>, EngineError> {
        // The lock is held while the engine is asked, so that concurrent requests get the same answer.
        let mut last = self.0.lock().await;
        if let Some((at, seen)) = &*last
            && at.elapsed() < SNAPSHOT_LIFETIME
        {
            return Ok(seen.clone());
        }
        let seen = Arc::new(look.await?);
        *last = Some((Instant::now(), seen.clone()));
        Ok(seen)
    }
}

/// The first entries of long lists.
#[derive(Debug)]
pub(crate) struct Lists {
    pub(crate) sessions: Vec<SessionStatus>,
    pub(crate) tensors: Vec<TensorStatus>,
    pub(crate) transfers: Vec<TransferStatus>,
    pub(crate) exchanges: Vec<Exchange>,
}

/// The parts of the sidecar that an observer reads.
#[derive(Debug)]
pub(crate) struct ObserverParts {
    pub(crate) me: Identity,
    pub(crate) clock: Clock,
    pub(crate) budget: PinnedBudget,
    pub(crate) poll: PollControl,
    pub(crate) engine: EngineClient,
    pub(crate) directory: DirectoryClient,
    pub(crate) records: Records,
    pub(crate) security: Security,
    /// The queue pair for datagrams, if there is one.
    pub(crate) datagrams: Option<Datagrams>,
    pub(crate) sessions: Sessions,
}

/// The sidecar at one moment.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) at: SystemTime,
    pub(crate) measured: Measured,
    /// At most [`MAX_PATHS`] links.
    pub(crate) links: Vec<LinkStatus>,
    pub(crate) pinned: u64,
    pub(crate) pinned_limit: u64,
    pub(crate) directory: DirectoryState,
    /// If an etcd or Kubernetes says which host leads: why it does not answer, if it does not.
    pub(crate) coordinator: Option<Option<String>>,
    /// The directory's counts, if it is hosted here.
    pub(crate) hosted: Option<Counts>,
    /// The number of sessions that were refused at a limit.
    pub(crate) sessions_refused: u64,
    pub(crate) log_lines_dropped: u64,
    pub(crate) spans_dropped: u64,
    /// The state of TLS, if there are certificates.
    pub(crate) tls: Option<TlsState>,
}

impl Observer {
    pub(crate) fn new(parts: ObserverParts) -> Observer {
        let started_at = parts.clock.wall_clock(Time::default());
        Observer(Arc::new(ObserverInner {
            parts,
            started_at,
            last: Cached(Mutex::new(None)),
            last_lists: Cached(Mutex::new(None)),
        }))
    }

    pub(crate) fn parts(&self) -> &ObserverParts {
        &self.0.parts
    }

    /// Returns the start time.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.0.started_at
    }

    /// Returns the state of the sidecar, at most [`SNAPSHOT_LIFETIME`] old.
    pub(crate) async fn look(&self) -> Result<Arc<Observation>, EngineError> {
        self.0.last.get(self.look_now()).await
    }

    async fn look_now(&self) -> Result<Observation, EngineError> {
        let ObserverParts { budget, engine, directory, records, security, sessions, .. } = self.parts();
        let measured = engine.measure().await?;
        let links = |answer| Listing::Links { peer: String::new(), answer };
        let links = self.pages(MAX_PATHS, links).await?;
        let hosted = match directory.place() {
            Place::Local(hosted) => Some(hosted.counts()),
            Place::Remote(_) | Place::Unknown(_) => None,
        };
        Ok(Observation {
            at: SystemTime::now(),
            measured,
            links,
            pinned: budget.used(),
            pinned_limit: budget.limit(),
            directory: directory.state(),
            coordinator: directory.coordinator().map(|(_, why_not)| why_not),
            hosted,
            sessions_refused: sessions.refused_for_number(),
            log_lines_dropped: LogControl::installed().map_or(0, LogControl::dropped),
            spans_dropped: records.dropped.get(),
            tls: security.tls_state(),
        })
    }

    /// Returns workers, tensors, transfers and exchanges, at most [`SNAPSHOT_LIFETIME`] old.
    pub(crate) async fn lists(&self) -> Result<Arc<Lists>, EngineError> {
        let look = async {
            let sessions = |answer| Listing::Sessions { prefix: String::new(), answer };
            let transfers = |answer| Listing::Transfers { filter: TransferFilter::default(), answer };
            let tensors = |answer| Listing::Tensors { filter: TensorFilter::default(), answer };
            let sessions = self.pages(MAX_LISTED, sessions).await?;
            let tensors = self.pages(MAX_LISTED, tensors).await?;
            let transfers = self.pages(MAX_LISTED, transfers).await?;
            let exchanges = exchanges::look(&self.parts().engine, "", false, |_| true).await?;
            Ok(Lists { sessions, tensors, transfers, exchanges })
        };
        self.0.last_lists.get(look).await
    }

    /// Returns the first entries of a list. Asks for at most [`MAX_PAGES`] pages, because a page may be short.
    async fn pages<T: Send + 'static>(
        &self,
        most: usize,
        listing: impl Fn(Answer<Page<T>>) -> Listing,
    ) -> Result<Vec<T>, EngineError> {
        let (mut entries, mut place) = (Vec::new(), 0);
        for _ in 0..MAX_PAGES {
            let from = PageFrom { place, limit: most - entries.len() };
            let page = self.parts().engine.list(from, &listing).await?;
            entries.extend(page.entries);
            match page.next {
                Some(next) if entries.len() < most => place = next,
                _ => break,
            }
        }
        Ok(entries)
    }
}
