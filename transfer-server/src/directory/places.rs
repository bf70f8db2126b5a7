//! Where a node looks for the directory: at its one host, or at that of several which leads.

use super::connection::Place;
use super::election::TAKEOVER;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use transfer_core::tensor::Name;

/// The time for which requests wait for the directory. It is counted from the start or from the end of the last
/// attachment; while the node is attached, from the first unanswered claim.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(3);

/// The hosts of the directory. Cheap to clone; all clones look at the same one.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The names are those of several hosts.
    all: Arc<[(Option<Name>, Place)]>,
    at: Arc<AtomicUsize>,
}

impl From<Place> for Places {
    fn from(place: Place) -> Places {
        Places { all: [(None, place)].into(), at: Arc::default() }
    }
}

impl Places {
    /// Several hosts, of which one leads. There is at least one.
    pub(crate) fn among(hosts: impl IntoIterator<Item = (Name, Place)>) -> Places {
        let all = hosts.into_iter().map(|(name, place)| (Some(name), place)).collect();
        Places { all, at: Arc::default() }
    }

    /// Where this node is attached, or tries to attach.
    pub(crate) fn present(&self) -> &Place {
        let at = self.at.load(Ordering::Relaxed) % self.all.len();
        &self.all[at].1
    }

    /// Goes to the host that leads, or to the next one. Returns whether all have been tried.
    pub(super) fn go_on(&self, leader: Option<&Name>) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        let leads = self.all.iter().position(|(name, _)| name.as_ref() == leader && leader.is_some());
        let next = leads.unwrap_or((at + 1) % self.all.len());
        self.at.store(next, Ordering::Relaxed);
        leads.is_none() && next == 0
    }

    pub(super) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// The time after which a node goes on without the directory: longer than another host needs to take over.
    pub(super) fn patience(&self) -> Duration {
        if self.are_several() { DIRECTORY_TIMEOUT + TAKEOVER } else { DIRECTORY_TIMEOUT }
    }
}
