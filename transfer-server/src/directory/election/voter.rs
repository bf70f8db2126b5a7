//! What a host has promised to whom.

use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// The most terms by which another host may be ahead.
const MOST_TERMS: u64 = 1 << 32;

/// A start of a host. A restarted one does not know what it has led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The host's name.
    pub(crate) node: Name,
    /// The number of its start.
    pub(crate) incarnation: u64,
}

/// What a candidate asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To lead.
    Lead,
    /// To go on leading.
    GoOn,
    /// To be let go: it leads no longer, and this host may be promised before others.
    GiveUp { heir: Option<Name> },
}

/// A request for a promise, for a promise to last longer, or for its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ballot {
    /// Rises with each attempt to lead.
    pub(crate) term: u64,
    /// Who asks.
    pub(crate) candidate: Candidate,
    /// What for. Who leads, or has just given up, knows the members.
    pub(crate) purpose: Purpose,
    /// How long its promises last. All hosts have the same.
    pub(crate) lease: Duration,
    /// The number of the newest entry of who leads.
    pub(crate) newest: u64,
    /// The nodes that are attached to who leads, or are awaited there.
    pub(crate) members: Vec<Name>,
}

/// The answer to a [`Ballot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Vote {
    /// Whether it is promised.
    pub(crate) granted: bool,
    /// The highest term that this host has promised.
    pub(crate) term: u64,
    /// As in the last ballot of the host that led before.
    pub(crate) newest: u64,
    /// As in the last ballot of the host that led before.
    pub(crate) members: Vec<Name>,
}

/// The promise of a host. It is in memory, so a host that has just started promises nothing until what it may have promised
/// before has ended.
#[derive(Debug)]
pub(crate) struct Voter {
    lease: Duration,
    silent_until: Instant,
    term: u64,
    holder: Option<Candidate>,
    /// The end of the promise.
    until: Instant,
    /// Whether who is promised has said that it leads.
    leads: bool,
    /// The host that comes first until then, because the one that led has said so.
    heir: Option<(Name, Instant)>,
    newest: u64,
    members: Vec<Name>,
}

impl Voter {
    pub(super) fn new(now: Instant, lease: Duration) -> Voter {
        let (silent_until, until) = (now + lease, now);
        Voter {
            lease,
            silent_until,
            term: 0,
            holder: None,
            until,
            leads: false,
            heir: None,
            newest: 0,
            members: Vec::new(),
        }
    }

    pub(super) fn vote(&mut self, now: Instant, ballot: &Ballot) -> Vote {
        let is_holder = self.holder.as_ref() == Some(&ballot.candidate);
        let renews = is_holder && ballot.term == self.term;
        let is_free =
            (is_holder || now >= self.until) && self.heir(now).is_none_or(|heir| *heir == ballot.candidate.node);
        let is_new = ballot.term > self.term && self.believes(ballot.term) && is_free;
        let granted = now >= self.silent_until && (renews || is_new);
        let mut vote = Vote { granted, term: self.term, newest: self.newest, members: Vec::new() };
        // A host that has just started hears who is there, too, before it votes again.
        if ballot.purpose != Purpose::Lead && (granted || now < self.silent_until) {
            self.newest = ballot.newest;
            self.members.clone_from(&ballot.members);
        }
        if granted {
            vote.term = ballot.term;
            vote.members.clone_from(&self.members);
            self.term = ballot.term;
            self.holder = Some(ballot.candidate.clone());
            self.until = now + self.lease;
            self.leads = ballot.purpose == Purpose::GoOn;
            if let Purpose::GiveUp { heir } = &ballot.purpose {
                self.release(now);
                self.heir = heir.clone().map(|heir| (heir, now + self.lease / 2));
            }
        }
        vote
    }

    /// Returns the host that comes before the others.
    pub(super) fn heir(&self, now: Instant) -> Option<&Name> {
        self.heir.as_ref().filter(|(_, until)| now < *until).map(|(heir, _)| heir)
    }

    /// Returns whether another host can have come to this term.
    pub(super) fn believes(&self, term: u64) -> bool {
        term <= self.term.saturating_add(MOST_TERMS)
    }

    /// Takes back what this host has promised itself, and will not use.
    pub(super) fn release(&mut self, now: Instant) {
        self.until = now;
    }

    /// Returns the time from which this host may vote for another one than now.
    pub(super) fn free_at(&self) -> Instant {
        self.until.max(self.silent_until)
    }

    pub(super) fn term(&self) -> u64 {
        self.term
    }

    /// Returns who leads, and has said so itself.
    pub(super) fn leads(&self, now: Instant) -> Option<&Candidate> {
        self.leader(now).filter(|_| self.leads)
    }

    /// Returns who leads, as far as this host knows.
    pub(super) fn leader(&self, now: Instant) -> Option<&Candidate> {
        self.holder.as_ref().filter(|_| now < self.until)
    }
}
