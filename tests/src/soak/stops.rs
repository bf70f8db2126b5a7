//! The processes that are stopped with SIGSTOP, and until when.

use std::time::{Duration, Instant};

/// A sidecar's stop that is longer than this may cost its peers their links: the tcp fabric and gRPC give a silent
/// peer up after 15 seconds, and calls that need an answer of it give up sooner. A shorter stop must cost nothing but
/// time.
pub(super) const COSTLY_STOP: Duration = Duration::from_millis(1000);

/// A process that can be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// The worker with this number.
    Worker(usize),
    /// The sidecar of the node with this number.
    Sidecar(usize),
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    member: Member,
    until: Instant,
    is_long: bool,
}

/// The processes that are stopped now.
#[derive(Debug, Default)]
pub(super) struct Stops {
    now: Vec<Stop>,
    /// How many long stops of a sidecar have begun.
    long: u64,
}

impl Stops {
    /// Records a stop. Returns `false` if the member is stopped already.
    pub(super) fn add(&mut self, member: Member, lasts: Duration) -> bool {
        if self.now.iter().any(|stop| stop.member == member) {
            return false;
        }
        let is_long = matches!(member, Member::Sidecar(_)) && lasts > COSTLY_STOP;
        self.long += u64::from(is_long);
        self.now.push(Stop { member, until: Instant::now() + lasts, is_long });
        true
    }

    /// Removes and returns the members whose stop is over. Also returns whether one of them is a sidecar after a long
    /// stop.
    pub(super) fn take_due(&mut self) -> (Vec<Member>, bool) {
        let now = Instant::now();
        let due: Vec<Stop> = self.now.extract_if(.., |stop| stop.until <= now).collect();
        (due.iter().map(|stop| stop.member).collect(), due.iter().any(|stop| stop.is_long))
    }

    /// Removes and returns all members.
    pub(super) fn take_all(&mut self) -> Vec<Member> {
        self.now.drain(..).map(|stop| stop.member).collect()
    }

    /// Removes a member. Returns whether it was stopped.
    pub(super) fn take_if(&mut self, member: Member) -> bool {
        self.now.extract_if(.., |stop| stop.member == member).count() > 0
    }

    /// Returns whether a sidecar is in a long stop now.
    pub(super) fn has_long(&self) -> bool {
        self.now.iter().any(|stop| stop.is_long)
    }

    /// How many long stops of sidecars have begun.
    pub(super) fn long(&self) -> u64 {
        self.long
    }
}
