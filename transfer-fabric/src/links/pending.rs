//! Pending connections: the other side has connected, and has not sent its Hello yet.

use hashbrown::HashMap;
use std::hash::Hash;
use transfer_core::silent::{Silent, Ticket};

/// The most pending connections of a fabric.
pub(crate) const MAX_PENDING: usize = 128;

/// The most pending connections of one source: an address, or a user.
pub(crate) const MAX_PENDING_OF_ONE: usize = 64;

/// A table of pending connections `G`, which come from sources `S`. If there is no room for a new connection, an older
/// one has to go.
#[derive(Debug)]
pub(crate) struct PendingConnections<S, G> {
    silent: Silent<S>,
    all: HashMap<u32, (S, Ticket, G)>,
}

/// Returns the number by which a poller knows a connection. So few are pending at a time that no two have the same
/// number.
#[allow(clippy::cast_possible_truncation)]
fn number(ticket: Ticket) -> u32 {
    ticket as u32
}

impl<S: Eq + Hash + Copy, G> PendingConnections<S, G> {
    pub(crate) fn new() -> PendingConnections<S, G> {
        PendingConnections { silent: Silent::new(MAX_PENDING, MAX_PENDING_OF_ONE), all: HashMap::new() }
    }

    /// Adds a connection. Returns its number, and the connection that has to go to make room.
    pub(crate) fn enter(&mut self, source: S, connection: G) -> (u32, Option<G>) {
        let (ticket, gone) = self.silent.enter(source);
        let gone = gone.and_then(|gone| self.all.remove(&number(gone))).map(|(_, _, connection)| connection);
        self.all.insert(number(ticket), (source, ticket, connection));
        (number(ticket), gone)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut G> {
        self.all.get_mut(&number).map(|(_, _, connection)| connection)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<G> {
        let (source, ticket, connection) = self.all.remove(&number)?;
        self.silent.leave(source, ticket);
        Some(connection)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&G) -> bool) {
        let PendingConnections { silent, all } = self;
        all.retain(|_, (source, ticket, connection)| {
            let stays = keep(connection);
            if !stays {
                silent.leave(*source, *ticket);
            }
            stays
        });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &G> {
        self.all.values().map(|(_, _, connection)| connection)
    }

    /// Returns the number of connections that were added since the start.
    #[cfg(test)]
    pub(crate) fn seen(&self) -> u64 {
        self.silent.seen()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
