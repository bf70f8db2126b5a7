//! Where a node looks for the directory: at its one host, or at that of several which leads.

use super::connection::Place;
use super::election::Takeover;
use super::election::coordinator::{Coordinator, Outlook, watch};
use super::host::Directory;
use crate::security::Security;
use parking_lot::Mutex;
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
    hosts: Hosts,
    takeover: Takeover,
}

#[derive(Debug, Clone)]
enum Hosts {
    /// The names are those of several hosts.
    Listed { all: Arc<[(Option<Name>, Place)]>, at: Arc<AtomicUsize> },
    /// A coordinator says which host leads: an etcd, or Kubernetes.
    Named(Arc<NamedHosts>),
}

#[derive(Debug)]
struct NamedHosts {
    outlook: Outlook,
    security: Security,
    /// If this node is one of the hosts.
    hosted: Option<Directory>,
    /// The host that leads, and its term.
    present: Mutex<(Option<Name>, Place, u64)>,
}

impl From<Place> for Places {
    fn from(place: Place) -> Places {
        let hosts = Hosts::Listed { all: [(None, place)].into(), at: Arc::default() };
        Places { hosts, takeover: Takeover(Duration::ZERO) }
    }
}

impl Places {
    /// Several hosts, of which one leads. There is at least one.
    pub(crate) fn among(hosts: impl IntoIterator<Item = (Name, Place)>, takeover: Takeover) -> Places {
        let all = hosts.into_iter().map(|(name, place)| (Some(name), place)).collect();
        Places { hosts: Hosts::Listed { all, at: Arc::default() }, takeover }
    }

    /// The hosts of which a coordinator says which leads, and starts to ask it on the current runtime. `hosted`: this node is one of them.
    pub(crate) fn by_coordinator(
        coordinator: Coordinator,
        outlook: Outlook,
        hosted: Option<Directory>,
        security: Security,
        takeover: Takeover,
    ) -> Places {
        match &hosted {
            Some(hosted) => hosted.stand_at(coordinator, outlook.clone()),
            None => drop(tokio::spawn(watch(coordinator, outlook.clone(), takeover))),
        }
        let present = Mutex::new((None, Place::Unknown(outlook.location().into()), 0));
        Places { hosts: Hosts::Named(Arc::new(NamedHosts { outlook, security, hosted, present })), takeover }
    }

    /// Where this node is attached, or tries to attach.
    pub(crate) fn present(&self) -> Place {
        match &self.hosts {
            Hosts::Listed { all, at } => all[at.load(Ordering::Relaxed) % all.len()].1.clone(),
            Hosts::Named(hosts) => hosts.present.lock().1.clone(),
        }
    }

    /// The name of the host there, if there are several.
    pub(super) fn present_name(&self) -> Option<Name> {
        match &self.hosts {
            Hosts::Listed { all, at } => all[at.load(Ordering::Relaxed) % all.len()].0.clone(),
            Hosts::Named(hosts) => hosts.present.lock().0.clone(),
        }
    }

    /// Returns where to attach. Asks for it, if it is not listed; then for a while it is not the host that has fallen silent, so long ago.
    ///
    /// # Errors
    /// It is not known, in words.
    pub(super) async fn look(&self, silent: Option<(u64, Duration)>) -> Result<Place, String> {
        let hosts = match &self.hosts {
            Hosts::Listed { .. } => return Ok(self.present()),
            Hosts::Named(hosts) => hosts,
        };
        let (leader, term) = hosts.outlook.look().await?;
        if silent.is_some_and(|(silent, since)| silent == term && since < self.takeover.0) {
            return Err(format!("host {:?} of the directory is silent, and no other leads it yet", leader.node));
        }
        let place = match &hosts.hosted {
            Some(hosted) if *hosted.host() == leader.node => Place::Local(hosted.clone()),
            _ => {
                let scheme = if hosts.security.has_tls() { "https" } else { "http" };
                let place = Place::there(&format!("{scheme}://{}", leader.address), hosts.security.clone());
                place
                    .map_err(|e| format!("host {:?} is at {:?} as it says itself: {e}", leader.node, leader.address))?
            }
        };
        *hosts.present.lock() = (Some(leader.node), place.clone(), term);
        Ok(place)
    }

    /// Goes to the host that leads, or to the next one. Returns whether all have been tried. For a while it does not go to the one
    /// that has fallen silent, so long ago: that may take a connection, and answer nothing while another host takes over.
    pub(super) fn go_on(&self, leader: Option<&Name>, silent: Option<(u64, Duration)>) -> bool {
        // A coordinator is asked each time.
        let Hosts::Listed { all, at: place } = &self.hosts else { return true };
        let at = place.load(Ordering::Relaxed);
        let avoided = |host, time| silent.is_some_and(|(silent, since)| silent == host as u64 && since < time);
        let leads = all.iter().position(|(name, _)| name.as_ref() == leader && leader.is_some());
        // Who names it after this has promised it since.
        let leads = leads.filter(|host| !avoided(*host, self.takeover.lease()));
        let after = |host| (host + 1) % all.len();
        let next = after(at);
        let next = leads.unwrap_or(if avoided(next, self.takeover.0) { after(next) } else { next });
        place.store(next, Ordering::Relaxed);
        leads.is_none() && next <= at
    }

    /// Which host it is where this node is attached, or tries to attach: its place among those listed, or its term.
    pub(super) fn at(&self) -> u64 {
        match &self.hosts {
            Hosts::Listed { at, .. } => at.load(Ordering::Relaxed) as u64,
            Hosts::Named(hosts) => hosts.present.lock().2,
        }
    }

    /// The hosts by name, if there are several, with their URLs. This node's is "embedded".
    pub(crate) fn hosts(&self) -> Vec<(Name, String)> {
        match &self.hosts {
            Hosts::Listed { all, .. } => {
                all.iter().filter_map(|(name, place)| Some((name.clone()?, place.describe()))).collect()
            }
            Hosts::Named(hosts) => {
                let scheme = if hosts.security.has_tls() { "https" } else { "http" };
                let here = hosts.hosted.as_ref().map(Directory::host);
                let location = |node: &Name, address| match here == Some(node) {
                    true => "embedded".to_owned(),
                    false => format!("{scheme}://{address}"),
                };
                hosts.outlook.hosts().into_iter().map(|(node, at)| (node.clone(), location(&node, at))).collect()
            }
        }
    }

    /// The directory, if this node is one of its hosts.
    pub(crate) fn hosted(&self) -> Option<&Directory> {
        match &self.hosts {
            Hosts::Listed { all, .. } => all.iter().find_map(|(_, place)| match place {
                Place::Local(hosted) => Some(hosted),
                Place::Remote(_) | Place::Unknown(_) => None,
            }),
            Hosts::Named(hosts) => hosts.hosted.as_ref(),
        }
    }

    /// What this node reads at the coordinator, if one says who leads.
    pub(crate) fn outlook(&self) -> Option<&Outlook> {
        match &self.hosts {
            Hosts::Listed { .. } => None,
            Hosts::Named(hosts) => Some(&hosts.outlook),
        }
    }

    pub(super) fn are_several(&self) -> bool {
        match &self.hosts {
            Hosts::Listed { all, .. } => all.len() > 1,
            Hosts::Named(_) => true,
        }
    }

    /// The time after which a node goes on without the directory: longer than another host needs to take over.
    pub(super) fn patience(&self) -> Duration {
        DIRECTORY_TIMEOUT + self.takeover.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
