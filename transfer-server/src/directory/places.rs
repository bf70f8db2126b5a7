//! Where a node looks for the directory: at its one host, or at that of several which leads.

use super::connection::Place;
use super::election::Takeover;
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
    takeover: Takeover,
}

impl From<Place> for Places {
    fn from(place: Place) -> Places {
        Places { all: [(None, place)].into(), at: Arc::default(), takeover: Takeover(Duration::ZERO) }
    }
}

impl Places {
    /// Several hosts, of which one leads. There is at least one.
    pub(crate) fn among(hosts: impl IntoIterator<Item = (Name, Place)>, takeover: Takeover) -> Places {
        let all = hosts.into_iter().map(|(name, place)| (Some(name), place)).collect();
        Places { all, at: Arc::default(), takeover }
    }

    /// Where this node is attached, or tries to attach.
    pub(crate) fn present(&self) -> &Place {
        let at = self.at.load(Ordering::Relaxed) % self.all.len();
        &self.all[at].1
    }

    /// The name of the host there, if there are several.
    pub(super) fn present_name(&self) -> Option<&Name> {
        let at = self.at.load(Ordering::Relaxed) % self.all.len();
        self.all[at].0.as_ref()
    }

    /// Goes to the host that leads, or to the next one. Returns whether all have been tried. For a while it does not go to the one
    /// that has fallen silent, so long ago: that may take a connection, and answer nothing while another host takes over.
    pub(super) fn go_on(&self, leader: Option<&Name>, silent: Option<(usize, Duration)>) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        let avoided = |host, time| silent.is_some_and(|(silent, since)| silent == host && since < time);
        let leads = self.all.iter().position(|(name, _)| name.as_ref() == leader && leader.is_some());
        // Who names it after this has promised it since.
        let leads = leads.filter(|host| !avoided(*host, self.takeover.lease()));
        let after = |host| (host + 1) % self.all.len();
        let next = after(at);
        let next = leads.unwrap_or(if avoided(next, self.takeover.0) { after(next) } else { next });
        self.at.store(next, Ordering::Relaxed);
        leads.is_none() && next <= at
    }

    /// The place among all of where this node is attached, or tries to attach.
    pub(super) fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// The hosts by name, if there are several.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&Name, &Place)> {
        self.all.iter().filter_map(|(name, place)| Some((name.as_ref()?, place)))
    }

    pub(super) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// The time after which a node goes on without the directory: longer than another host needs to take over.
    pub(super) fn patience(&self) -> Duration {
        DIRECTORY_TIMEOUT + self.takeover.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_host_that_has_fallen_silent_is_not_asked_while_another_one_takes_over() {
        let there = |host| (name(host), Place::Local(Directory::new(name(host))));
        let (places, silent) = (Places::among(["a", "b", "c"].map(there), Takeover(Duration::from_secs(5))), |ms| {
            Some((0, Duration::from_millis(ms)))
        });
        let went = |leader: Option<&str>, silent| {
            let was_last = places.go_on(leader.map(name).as_ref(), silent);
            (places.at(), was_last)
        };
        assert_eq!(
            [went(None, silent(0)), went(None, silent(50)), went(None, silent(90))],
            [(1, false), (2, false), (1, true)]
        );
        // The others have not noticed yet.
        assert_eq!(went(Some("a"), silent(100)), (2, false));
        assert_eq!(went(Some("b"), silent(200)), (1, false));
        // It leads after all; or it is the last one that this node reaches.
        assert_eq!(went(Some("a"), silent(2_001)), (0, false));
        assert_eq!(
            [went(None, silent(4_000)), went(None, silent(4_000)), went(None, silent(6_000))],
            [(1, false), (2, false), (0, true)]
        );
        assert_eq!(went(None, None), (1, false));
    }
}
