//! Connections that have not said anything yet, and which of them has to go when there are too many.
//!
//! A connection costs whoever makes it nothing, so silent ones must keep nobody out. Each source, a user or an address, has a share. A source
//! that is beyond its share loses its own oldest one; where there are too many of all sources together, the one that has the most of them
//! does. So a newcomer always gets in, and who speaks at once has spoken before it is its turn to go.

use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::hash::Hash;

/// The number of a connection among the silent ones; the later it came, the higher.
pub type Ticket = u64;

/// Silent connections from sources `S`.
#[derive(Debug)]
pub struct Silent<S> {
    most: usize,
    share: usize,
    next: Ticket,
    len: usize,
    of: HashMap<S, BTreeSet<Ticket>>,
}

impl<S: Eq + Hash + Copy> Silent<S> {
    /// At most `most` of them, and `share` of one source.
    #[must_use]
    pub fn new(most: usize, share: usize) -> Silent<S> {
        Silent { most: most.max(1), share: share.max(1), next: 0, len: 0, of: HashMap::new() }
    }

    /// A connection has come from `source`. Answers its ticket, and that of the one that has to go for it, which is forgotten.
    pub fn enter(&mut self, source: S) -> (Ticket, Option<Ticket>) {
        let own = self.of.get(&source).map_or(0, BTreeSet::len);
        let from = if own >= self.share {
            Some(source)
        } else if self.len >= self.most {
            // The oldest one, where several have as many.
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

    /// It has spoken, or is gone. `false` where it had to go before.
    pub fn leave(&mut self, source: S, ticket: Ticket) -> bool {
        let Some(tickets) = self.of.get_mut(&source) else { return false };
        let found = tickets.remove(&ticket);
        self.len -= usize::from(found);
        if tickets.is_empty() {
            self.of.remove(&source);
        }
        found
    }

    /// How many have ever come.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.next
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_beyond_its_share_loses_its_own_oldest() {
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
    fn where_there_are_too_many_the_source_that_has_most_loses_one() {
        let mut silent = Silent::new(4, 3);
        for source in ['x', 'a', 'a', 'a'] {
            assert_eq!(silent.enter(source).1, None);
        }
        assert_eq!(silent.enter('b'), (4, Some(1)), "not the oldest of all, which is alone");
        // Now two have one each, and one has two.
        assert_eq!(silent.enter('c'), (5, Some(2)));
        assert_eq!(silent.enter('d'), (6, Some(0)), "all have one: the oldest");
        for (source, ticket) in [('a', 3), ('b', 4), ('c', 5), ('d', 6)] {
            assert!(silent.leave(source, ticket));
        }
        assert!(silent.is_empty() && silent.of.is_empty());
    }
}
