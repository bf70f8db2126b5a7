//! Limits connections that have not sent anything yet, and chooses the one to close when there are too many.
//!
//! A connection costs its maker nothing, so silent connections must not keep others out. Each source (a user or an
//! address) has a share. A source that exceeds its share loses its own oldest silent connection. If all sources
//! together exceed the total, the source with the most silent connections loses its oldest one. So a new connection is
//! always admitted, and a connection that sends something promptly has left this list before its turn comes.

use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::hash::Hash;

/// The number of a silent connection. Later connections have higher numbers.
pub type Ticket = u64;

/// The silent connections, grouped by their source `S`.
#[derive(Debug)]
pub struct Silent<S> {
    most: usize,
    share: usize,
    next: Ticket,
    len: usize,
    of: HashMap<S, BTreeSet<Ticket>>,
}

impl<S: Eq + Hash + Copy> Silent<S> {
    /// Creates an empty list that holds at most `most` connections in all, and `share` from one source.
    #[must_use]
    pub fn new(most: usize, share: usize) -> Silent<S> {
        Silent { most: most.max(1), share: share.max(1), next: 0, len: 0, of: HashMap::new() }
    }

    /// Enters a new connection from `source`. Returns its ticket, and the ticket of the connection that must be closed
    /// for it, if any. That connection is removed from the list.
    pub fn enter(&mut self, source: S) -> (Ticket, Option<Ticket>) {
        let own = self.of.get(&source).map_or(0, BTreeSet::len);
        let from = if own >= self.share {
            Some(source)
        } else if self.len >= self.most {
            // Among sources with equally many connections, choose the one with the oldest.
            let oldest = |tickets: &BTreeSet<Ticket>| std::cmp::Reverse(tickets.first().copied());
            self.of.iter().max_by_key(|(_, tickets)| (tickets.len(), oldest(tickets))).map(|(source, _)| *source)
        } else {
            None
        };
        let gone = from.and_then(|from| Some((self.of.get(&from)?.first().copied()?, from)));
        if let Some((ticket, from)) = gone {
            self.leave(from, ticket);
        }
        let ticket = self.next;
        self.next += 1;
        self.of.entry(source).or_default().insert(ticket);
        self.len += 1;
        (ticket, gone.map(|(ticket, _)| ticket))
    }

    /// Removes a connection that has sent something or is closed. Returns `false` if it was removed before.
    pub fn leave(&mut self, source: S, ticket: Ticket) -> bool {
        let Some(tickets) = self.of.get_mut(&source) else { return false };
        let found = tickets.remove(&ticket);
        self.len -= usize::from(found);
        if tickets.is_empty() {
            self.of.remove(&source);
        }
        found
    }

    /// Returns the number of connections that were ever entered.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.next
    }

    /// Returns the number of silent connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no silent connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_beyond_its_share_loses_its_own_oldest() {
        let mut silent = Silent::new(10, 2);
        assert_eq!(silent.enter('a'), (0, None));
        assert_eq!(silent.enter('b'), (1, None));
        assert_eq!(silent.enter('a'), (2, None));
        assert_eq!(silent.enter('a'), (3, Some(0)));
        assert!(!silent.leave('a', 0), "it has gone");
        assert!(silent.leave('a', 2));
        assert_eq!(silent.enter('a'), (4, None));
        assert_eq!(silent.len(), 3);
    }

    #[test]
    fn source_with_most_connections_loses_one_when_full() {
        let mut silent = Silent::new(4, 3);
        for source in ['x', 'a', 'a', 'a'] {
            assert_eq!(silent.enter(source).1, None);
        }
        assert_eq!(silent.enter('b'), (4, Some(1)), "not the oldest of all, which is alone");
        // Now `b` and `x` have one each, and `a` has two.
        assert_eq!(silent.enter('c'), (5, Some(2)));
        assert_eq!(silent.enter('d'), (6, Some(0)), "all have one: the oldest");
        for (source, ticket) in [('a', 3), ('b', 4), ('c', 5), ('d', 6)] {
            assert!(silent.leave(source, ticket));
        }
        assert!(silent.is_empty() && silent.of.is_empty());
    }
}
