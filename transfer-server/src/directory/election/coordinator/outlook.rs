//! What a node has read at the coordinator last.

use super::record::Record;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// How long a node waits for an answer before it tries what it knew.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is logged why there is no answer. Each member of an etcd says it in other words.
const NEWS_INTERVAL: Duration = Duration::from_secs(60);

/// Who leads, or comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::directory) struct Held {
    /// `Err`: another program's text.
    pub(super) by: Result<Record, String>,
    /// Rises when another host leads.
    pub(super) term: u64,
}

/// What was read at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::directory) struct Seen {
    pub(super) held: Option<Held>,
    /// The hosts, with the numbers of their leases.
    pub(super) hosts: Vec<(Record, i64)>,
}

/// What is known.
#[derive(Debug, Clone, Default)]
struct Known {
    seen: Seen,
    looks: u64,
    /// The reason why it has not answered last.
    why_not: Option<String>,
    /// When the log was told that last, and what. None: it has answered since.
    logged: Option<(Instant, String)>,
}

/// What this node has read last. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Outlook(Arc<OutlookState>);

#[derive(Debug)]
struct OutlookState {
    known: watch::Sender<Known>,
    wanted: Notify,
    /// The coordinator, as in `--directory`.
    location: String,
}

impl Outlook {
    pub(crate) fn new(location: String) -> Outlook {
        let why_not = Some("not asked yet".to_owned());
        let known = watch::Sender::new(Known { why_not, ..Known::default() });
        Outlook(Arc::new(OutlookState { known, wanted: Notify::new(), location }))
    }

    /// The coordinator, as in `--directory`.
    pub(crate) fn location(&self) -> &str {
        &self.0.location
    }

    /// The reason why it does not answer; none: it does.
    pub(crate) fn why_not(&self) -> Option<String> {
        self.0.known.borrow().why_not.clone()
    }

    /// Looks again. Returns the host that leads, and its term.
    ///
    /// # Errors
    /// None leads, in words.
    pub(in crate::directory) async fn look(&self) -> Result<(Record, u64), String> {
        let mut known = self.0.known.subscribe();
        let before = known.borrow().looks;
        self.0.wanted.notify_one();
        // Without an answer it is as it was.
        let _ = tokio::time::timeout(LOOK_TIMEOUT, known.wait_for(|known| known.looks > before)).await;
        let known = known.borrow();
        let location = self.location();
        match (&known.seen.held, &known.why_not) {
            (Some(Held { by: Ok(record), term }), _) if record.leads => Ok((record.clone(), *term)),
            // Not in the words of one of its members: the next one has others, and each would be logged.
            (_, Some(_)) => {
                Err(format!("which host leads the directory is not known, because {location} does not answer"))
            }
            (Some(Held { by: Ok(record), .. }), _) => {
                Err(format!("host {:?} is about to lead the directory", record.node))
            }
            (Some(Held { by: Err(text), .. }), _) => Err(format!(
                "the record of who leads at {location} has {text:?}, which is no host's: delete it, or give this directory another prefix or name there"
            )),
            (None, None) if known.seen.hosts.is_empty() => Err(format!(
                "no host leads the directory, and none is there at {location}: give nodes --directory-host"
            )),
            (None, None) => Err("no host leads the directory yet".to_owned()),
        }
    }

    /// Waits until a node wants to know it at once.
    pub(super) async fn wanted(&self) {
        self.0.wanted.notified().await;
    }

    pub(super) fn tell(&self, seen: Seen) {
        if self.0.known.borrow().why_not.is_some() {
            tracing::info!(coordinator = self.location(), "which host leads the directory is known again");
        }
        self.0.known.send_modify(|known| *known = Known { seen, looks: known.looks + 1, ..Known::default() });
    }

    pub(super) fn fails(&self, why: String) {
        self.fails_at(Instant::now(), why);
    }

    /// Returns whether it was logged.
    fn fails_at(&self, now: Instant, why: String) -> bool {
        let mut is_news = false;
        self.0.known.send_modify(|known| {
            is_news = known.logged.as_ref().is_none_or(|(at, text)| *text != why && now >= *at + NEWS_INTERVAL);
            if is_news {
                known.logged = Some((now, why.clone()));
            }
            known.looks += 1;
            known.why_not = Some(why.clone());
        });
        if is_news {
            tracing::warn!(coordinator = self.location(), why, "does not answer which host leads the directory");
        }
        is_news
    }

    /// The hosts, with their addresses.
    pub(crate) fn hosts(&self) -> Vec<(Name, String)> {
        let known = self.0.known.borrow();
        known.seen.hosts.iter().map(|(host, _)| (host.node.clone(), host.address.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: directory-by-etcd
    #[tokio::test]
    async fn three_members_that_do_not_answer_are_logged_once_and_not_in_turn() {
        let outlook = Outlook::new("etcd:".to_owned());
        let now = Instant::now();
        let fail = |now| (0..30).filter(|i| outlook.fails_at(now, format!("http://e{}: no answer", i % 3))).count();
        assert_eq!(fail(now), 1);
        assert_eq!(fail(now + NEWS_INTERVAL), 1);
        outlook.tell(Seen::default());
        assert_eq!(fail(now), 1);
        let said = tokio::join!(outlook.look(), async { outlook.fails("http://e1: no".to_owned()) }).0;
        assert!(said.is_err_and(|why| !why.contains("e1")), "the same text whichever member fails");
    }
}
