//! Sockets that are connected and have not shown whose they are.

use hashbrown::HashMap;
use std::hash::Hash;
use transfer_core::silent::{Silent, Ticket};

/// How many there may be.
pub(crate) const MAX_GUESTS: usize = 128;

/// How many of them may be of one source: an address, or a user.
pub(crate) const MAX_GUESTS_OF_ONE: usize = 64;

/// Guests `G` from sources `S`.
#[derive(Debug)]
pub(crate) struct Guests<S, G> {
    silent: Silent<S>,
    all: HashMap<u32, (S, Ticket, G)>,
}

/// What a poller calls it. There are too few at a time for two to have one number.
#[allow(clippy::cast_possible_truncation)]
fn number(ticket: Ticket) -> u32 {
    ticket as u32
}

impl<S: Eq + Hash + Copy, G> Guests<S, G> {
    pub(crate) fn new() -> Guests<S, G> {
        Guests { silent: Silent::new(MAX_GUESTS, MAX_GUESTS_OF_ONE), all: HashMap::new() }
    }

    /// One more. Answers its number, and who has to go for it.
    pub(crate) fn enter(&mut self, source: S, guest: G) -> (u32, Option<G>) {
        let (ticket, gone) = self.silent.enter(source);
        let gone = gone.and_then(|gone| self.all.remove(&number(gone))).map(|(_, _, guest)| guest);
        self.all.insert(number(ticket), (source, ticket, guest));
        (number(ticket), gone)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut G> {
        self.all.get_mut(&number).map(|(_, _, guest)| guest)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<G> {
        let (source, ticket, guest) = self.all.remove(&number)?;
        self.silent.leave(source, ticket);
        Some(guest)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&G) -> bool) {
        let Guests { silent, all } = self;
        all.retain(|_, (source, ticket, guest)| {
            let stays = keep(guest);
            if !stays {
                silent.leave(*source, *ticket);
            }
            stays
        });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &G> {
        self.all.values().map(|(_, _, guest)| guest)
    }

    /// How many have ever come.
    #[cfg(test)]
    pub(crate) fn seen(&self) -> u64 {
        self.silent.seen()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
