//! Who is stopped with SIGSTOP, and until when.

use std::time::{Duration, Instant};

/// From here on a stop of a sidecar may cost its peers their links: the tcp fabric and gRPC give a silent peer up after 15 seconds, and calls
/// that need an answer of it sooner. What is shorter than this must cost nobody anything but time.
pub(super) const LONG: Duration = Duration::from_millis(1000);

/// Who can be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// This worker.
    Worker(usize),
    /// The sidecar of this node.
    Sidecar(usize),
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    member: Member,
    until: Instant,
    is_long: bool,
}

/// Those who are stopped now.
#[derive(Debug, Default)]
pub(super) struct Stops {
    now: Vec<Stop>,
    /// How many long stops of a sidecar have begun.
    long: u64,
}

impl Stops {
    /// Notes one. `false` where it is stopped already.
    pub(super) fn add(&mut self, member: Member, lasts: Duration) -> bool {
        if self.now.iter().any(|stop| stop.member == member) {
            return false;
        }
        let is_long = matches!(member, Member::Sidecar(_)) && lasts > LONG;
        self.long += u64::from(is_long);
        self.now.push(Stop { member, until: Instant::now() + lasts, is_long });
        true
    }

    /// Takes out who may go on by now; and whether a sidecar that was stopped for long is among them.
    pub(super) fn take_due(&mut self) -> (Vec<Member>, bool) {
        let now = Instant::now();
        let due: Vec<Stop> = self.now.extract_if(.., |stop| stop.until <= now).collect();
        (due.iter().map(|stop| stop.member).collect(), due.iter().any(|stop| stop.is_long))
    }

    /// Takes out everybody.
    pub(super) fn take_all(&mut self) -> Vec<Member> {
        self.now.drain(..).map(|stop| stop.member).collect()
    }

    /// Takes out this one. Whether it was stopped.
    pub(super) fn take_if(&mut self, member: Member) -> bool {
        self.now.extract_if(.., |stop| stop.member == member).count() > 0
    }

    /// Whether a sidecar is in a long stop now.
    pub(super) fn has_long(&self) -> bool {
        self.now.iter().any(|stop| stop.is_long)
    }

    /// How many long stops of sidecars have begun.
    pub(super) fn long(&self) -> u64 {
        self.long
    }
}
