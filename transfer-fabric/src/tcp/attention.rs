//! Decides which sockets a round looks at, because each look is a system call.
//!
//! Mostly one link is busy at a time. Its socket is read directly: what would be a query and a read is one read. The
//! others are found by a query of all sockets, which is made when a direct read finds nothing and the caller's wait has
//! reported the fabric, and every few rounds. Around a wait nothing is looked at twice: the descriptors are
//! level-triggered, so a wait ends at once if anything is there, and says whether it is of this fabric.

use transfer_core::fabric::LinkId;

/// All sockets are queried at least once in this many rounds while the direct reads find something.
const QUERY_BUSY: u8 = 16;

/// All sockets are queried once in this many rounds while the looks find nothing.
const QUERY_IDLE: u8 = 4;

/// The number of looks in a row that have to find the same link, and no other, before it is read directly.
const STREAK: u8 = 4;

/// What a round looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing: it was read to its end a moment ago, or a wait looks at it.
    Nowhere,
    /// The socket of this link, and all sockets if it has nothing and `query` is set.
    At { link: LinkId, query: bool },
    /// All sockets.
    Everywhere,
}

#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The link that the last looks found, and how many of them.
    busy: Option<LinkId>,
    streak: u8,
    /// The number of rounds since the last query.
    rounds: u8,
    /// Whether the last query has found nothing.
    quiet: bool,
    /// Whether the busy link's socket was read to its end in the last round.
    dry: bool,
    /// The number of rounds for which a wait looks.
    waiting: u8,
    woken: bool,
}

impl Attention {
    /// The caller will wait after one more round.
    pub(super) fn arm(&mut self) {
        self.waiting = 2;
    }

    /// The caller has waited, and the fabric's descriptor was readable.
    pub(super) fn wake(&mut self) {
        self.woken = true;
    }

    /// Chooses what to look at. `can_read` returns whether a link's socket can be read directly.
    pub(super) fn next(&mut self, can_read: impl FnOnce(LinkId) -> bool) -> Look {
        let (woken, dry, waiting) = (std::mem::take(&mut self.woken), std::mem::take(&mut self.dry), self.waiting > 0);
        self.waiting = self.waiting.saturating_sub(1);
        self.rounds = self.rounds.saturating_add(1);
        if woken {
            self.waiting = 0;
        }
        if self.rounds >= QUERY_BUSY {
            return Look::Everywhere;
        }
        if !woken && waiting {
            return Look::Nowhere;
        }
        match self.busy.filter(|link| self.streak >= STREAK && can_read(*link)) {
            None if self.quiet && !woken && self.rounds < QUERY_IDLE => Look::Nowhere,
            None => Look::Everywhere,
            Some(_) if dry && !woken => Look::Nowhere,
            Some(link) => Look::At { link, query: woken || self.rounds >= QUERY_IDLE },
        }
    }

    /// A link was read directly and had something; `dry` if all of it was read.
    pub(super) fn read(&mut self, dry: bool) {
        self.dry = dry;
    }

    /// A query is made.
    pub(super) fn query(&mut self) {
        self.rounds = 0;
        self.quiet = true;
    }

    /// The query has found something.
    pub(super) fn found_some(&mut self) {
        self.quiet = false;
    }

    /// The query has found these links readable.
    pub(super) fn found(&mut self, readable: &[LinkId]) {
        match readable {
            [] => {}
            [link] if self.busy == Some(*link) => self.streak = self.streak.saturating_add(1),
            [link] => (self.busy, self.streak) = (Some(*link), 1),
            _ => self.streak = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LinkId = LinkId(1);
    const B: LinkId = LinkId(2);

    /// One that has found link A often.
    fn busy() -> Attention {
        let mut attention = Attention::default();
        for _ in 0..STREAK {
            assert_eq!(attention.next(|_| true), Look::Everywhere);
            attention.query();
            attention.found_some();
            attention.found(&[A]);
        }
        attention
    }

    #[test]
    fn without_a_busy_link_all_are_queried_seldom_while_nothing_comes() {
        let mut attention = Attention::default();
        assert_eq!(attention.next(|_| true), Look::Everywhere);
        attention.query();
        let looks: Vec<_> = (0..QUERY_IDLE).map(|_| attention.next(|_| true)).collect();
        assert_eq!(looks.last(), Some(&Look::Everywhere));
        assert_eq!(looks.iter().filter(|look| **look == Look::Nowhere).count(), usize::from(QUERY_IDLE) - 1);
        attention.query();
        attention.wake();
        assert_eq!(attention.next(|_| true), Look::Everywhere, "the caller's wait has found something");
        attention.query();
        attention.found_some();
        assert_eq!(attention.next(|_| true), Look::Everywhere, "more may have come");
    }

    #[test]
    fn the_busy_link_is_read_directly_and_the_others_are_not_forgotten() {
        let mut attention = busy();
        let mut looks = Vec::new();
        for _ in 0..QUERY_BUSY {
            looks.push(attention.next(|_| true));
        }
        assert_eq!(looks[..3], [Look::At { link: A, query: false }; 3]);
        assert_eq!(looks[3], Look::At { link: A, query: true }, "nothing was found in these rounds");
        assert_eq!(looks[15], Look::Everywhere, "even if the busy link always has something");
        attention.query();
        attention.found_some();
        assert_eq!(attention.next(|_| false), Look::Everywhere, "it cannot be read");
    }

    #[test]
    fn a_socket_that_was_read_to_its_end_is_left_alone_for_a_round() {
        let mut attention = busy();
        attention.read(true);
        assert_eq!(attention.next(|_| true), Look::Nowhere);
        assert_eq!(attention.next(|_| true), Look::At { link: A, query: false });
        attention.read(false);
        assert_ne!(attention.next(|_| true), Look::Nowhere);
    }

    #[test]
    fn nothing_is_looked_at_around_a_wait_unless_it_reports_the_fabric() {
        let mut attention = busy();
        attention.arm();
        assert_eq!(attention.next(|_| true), Look::Nowhere, "the wait that follows looks");
        assert_eq!(attention.next(|_| true), Look::Nowhere, "it has reported something else");
        assert_eq!(attention.next(|_| true), Look::At { link: A, query: false });
        attention.query();
        attention.arm();
        assert_eq!(attention.next(|_| true), Look::Nowhere);
        attention.wake();
        assert_eq!(attention.next(|_| true), Look::At { link: A, query: true });
        // A caller that never says what it waited for still gets everything.
        let mut attention = busy();
        let looks = (0..QUERY_BUSY).map(|_| {
            attention.arm();
            attention.next(|_| true)
        });
        assert_eq!(looks.last(), Some(Look::Everywhere));
    }

    #[test]
    fn several_busy_links_are_found_by_queries() {
        let mut attention = busy();
        attention.found(&[A, B]);
        assert_eq!(attention.next(|_| true), Look::Everywhere);
        for _ in 0..10 {
            attention.found(&[A]);
            attention.found(&[B]);
            assert_eq!(attention.next(|_| true), Look::Everywhere);
            attention.query();
            attention.found_some();
        }
    }
}
