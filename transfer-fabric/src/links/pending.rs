//! Pending connections: the other side has connected, and has not sent its Hello yet.

use super::{FabricLink, LinkTable, WaitingLink};
use crate::poller::{Poller, Source};
use hashbrown::HashMap;
use rustix::fd::AsFd;
use std::hash::Hash;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricError;
use transfer_core::silent::{Silent, Ticket};

/// The most pending connections of a fabric.
pub(crate) const MAX_PENDING: usize = 128;

/// The most pending connections of one source: an address, or a user.
pub(crate) const MAX_PENDING_OF_ONE: usize = 64;

/// The most connections that are accepted in one round.
const ACCEPTS: usize = 16;

/// The pause in accepting connections after an accept has failed, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The result of an attempt to accept a connection `C` of a source `S`.
pub(crate) enum Accepted<S, C> {
    New(S, C),
    /// That connection is gone. The next one may be fine.
    Gone,
    /// None waits.
    Nothing,
    Failed(String),
}

/// A listener `A`, and its pending connections `C`, which come from sources `S`. If there is no room for a new
/// connection, an older one has to go.
#[derive(Debug)]
pub(crate) struct PendingConnections<A, S, C> {
    listener: A,
    /// What the log calls the listener.
    name: &'static str,
    /// Whether the listener is not watched, because an accept has failed.
    is_paused: bool,
    silent: Silent<S>,
    all: HashMap<u32, Pending<S, C>>,
}

#[derive(Debug)]
struct Pending<S, C> {
    source: S,
    ticket: Ticket,
    deadline: Instant,
    connection: C,
}

/// Returns the number by which a poller knows a connection. So few are pending at a time that no two have the same
/// number.
#[allow(clippy::cast_possible_truncation)]
fn number(ticket: Ticket) -> u32 {
    ticket as u32
}

impl<A: AsFd, S: Eq + Hash + Copy, C: AsFd> PendingConnections<A, S, C> {
    /// Begins to watch the listener.
    pub(crate) fn new(poller: &Poller, listener: A, name: &'static str) -> Result<Self, FabricError> {
        poller.add(&listener, Source::Listener)?;
        let silent = Silent::new(MAX_PENDING, MAX_PENDING_OF_ONE);
        Ok(PendingConnections { listener, name, is_paused: false, silent, all: HashMap::new() })
    }

    pub(crate) fn listener(&self) -> &A {
        &self.listener
    }

    /// Accepts the connections that wait. Each has to send its Hello within `timeout`.
    pub(crate) fn accept<L: FabricLink, W: WaitingLink>(
        &mut self,
        poller: &Poller,
        links: &mut LinkTable<L, W>,
        timeout: Duration,
        accept: impl Fn(&A) -> Accepted<S, C>,
    ) {
        let name = self.name;
        for _ in 0..ACCEPTS {
            match accept(&self.listener) {
                Accepted::New(source, connection) => {
                    let (number, gone) = self.enter(source, connection, links.deadline_after(timeout));
                    if let Some(gone) = gone {
                        tracing::warn!("{name} has closed a connection for another one: it had not shown a token");
                        poller.remove(&gone);
                    }
                    let Some(connection) = self.get_mut(number) else { continue };
                    if let Err(error) = poller.add(&*connection, Source::Pending(number)) {
                        tracing::warn!(%error, "{name} has closed a connection");
                        self.remove(number);
                    }
                }
                Accepted::Gone => {}
                Accepted::Nothing => return,
                Accepted::Failed(error) => {
                    tracing::warn!(error, "{name} cannot accept connections");
                    poller.remove(&self.listener);
                    self.is_paused = true;
                    links.deadline_after(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Adds a connection. Returns its number, and the connection that has to go to make room.
    fn enter(&mut self, source: S, connection: C, deadline: Instant) -> (u32, Option<C>) {
        let (ticket, gone) = self.silent.enter(source);
        let gone = gone.and_then(|gone| self.all.remove(&number(gone))).map(|gone| gone.connection);
        self.all.insert(number(ticket), Pending { source, ticket, deadline, connection });
        (number(ticket), gone)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut C> {
        self.all.get_mut(&number).map(|pending| &mut pending.connection)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<C> {
        let Pending { source, ticket, connection, .. } = self.all.remove(&number)?;
        self.silent.leave(source, ticket);
        Some(connection)
    }

    /// Drops the connections whose deadline has passed, and accepts again after a pause.
    pub(crate) fn check(&mut self, poller: &Poller, now: Instant) {
        if std::mem::take(&mut self.is_paused)
            && let Err(error) = poller.add(&self.listener, Source::Listener)
        {
            tracing::error!(%error, "{} cannot be watched", self.name);
        }
        for (_, late) in self.all.extract_if(|_, pending| pending.deadline <= now) {
            self.silent.leave(late.source, late.ticket);
        }
    }

    /// Returns the earliest deadline of a connection.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.values().map(|pending| pending.deadline).min()
    }

    /// Returns the number of connections that were added since the start.
    #[cfg(test)]
    pub(crate) fn seen(&self) -> u64 {
        self.silent.seen()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::Until;
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::OwnedFd;

    const TIMEOUT: Duration = Duration::from_secs(60);

    struct Scene {
        poller: Poller,
        links: LinkTable<Until, Until>,
        pending: PendingConnections<OwnedFd, u32, OwnedFd>,
    }

    /// A descriptor that is readable.
    fn readable() -> OwnedFd {
        eventfd(1, EventfdFlags::CLOEXEC).unwrap()
    }

    impl Scene {
        fn new() -> Scene {
            let poller = Poller::new().unwrap();
            let pending = PendingConnections::new(&poller, readable(), "the listener").unwrap();
            Scene { poller, links: LinkTable::new(), pending }
        }

        /// Accepts a connection of each of these sources.
        fn accept(&mut self, sources: &[u32]) {
            for source in sources {
                let once = std::cell::Cell::new(Some(*source));
                self.attempt(|| once.take().map_or(Accepted::Nothing, |source| Accepted::New(source, readable())));
            }
        }

        fn attempt(&mut self, result: impl Fn() -> Accepted<u32, OwnedFd>) {
            self.pending.accept(&self.poller, &mut self.links, TIMEOUT, |_| result());
        }

        fn ready(&self) -> Vec<Source> {
            self.poller.ready().into_iter().map(|ready| ready.token).collect()
        }
    }

    #[test]
    fn a_connection_is_watched_until_it_is_taken_or_late() {
        let mut scene = Scene::new();
        scene.accept(&[1, 2]);
        let ready = scene.ready();
        let number = ready.iter().find_map(|source| match source {
            Source::Pending(number) => Some(*number),
            _ => None,
        });
        assert_eq!((ready.len(), scene.pending.len()), (3, 2), "the listener and both: {ready:?}");
        assert!(scene.pending.remove(number.unwrap()).is_some());
        let due = scene.pending.deadline().unwrap();
        assert!(scene.links.alarm().is_some_and(|alarm| alarm <= due));
        scene.pending.check(&scene.poller, due - TIMEOUT / 2);
        assert_eq!(scene.pending.len(), 1);
        scene.pending.check(&scene.poller, due);
        assert!(scene.pending.is_empty() && scene.pending.deadline().is_none());
        assert_eq!(scene.ready(), [Source::Listener]);
    }

    #[test]
    fn a_source_with_many_connections_loses_its_oldest() {
        let mut scene = Scene::new();
        scene.accept(&[7]);
        scene.accept(&[1; MAX_PENDING_OF_ONE + 1]);
        assert_eq!(scene.pending.len(), 1 + MAX_PENDING_OF_ONE);
        assert_eq!(scene.pending.seen(), 2 + MAX_PENDING_OF_ONE as u64);
    }

    #[test]
    fn accepting_pauses_after_a_failure() {
        let mut scene = Scene::new();
        scene.attempt(|| Accepted::Gone);
        assert_eq!(scene.ready(), [Source::Listener], "only that connection is gone");
        scene.attempt(|| Accepted::Failed("no descriptors".into()));
        assert_eq!(scene.ready(), []);
        assert!(scene.links.alarm().is_some(), "it is checked again");
        scene.pending.check(&scene.poller, Instant::now());
        assert_eq!(scene.ready(), [Source::Listener]);
    }
}
