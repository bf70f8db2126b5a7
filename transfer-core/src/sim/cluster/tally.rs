//! What a schedule has done, so that a test can tell that its faults and ways have come.

/// The results of a schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) local_fetches: u64,
    pub(crate) remote_fetches: u64,
    /// Fetches that found their version on the board.
    pub(crate) look_ups: u64,
    pub(crate) announced: u64,
    /// Look-ups that found their version in a notice.
    pub(crate) noticed: u64,
    /// Fetches that were answered by reference.
    pub(crate) by_reference: u64,
    /// Fetches of ranges of several versions that have landed together, and slices that came alone.
    pub(crate) gathered: u64,
    pub(crate) sliced: u64,
    /// Fetches that have landed in the memory of their worker, and those that may have left it half new.
    pub(crate) landed: u64,
    /// Those of them that have landed in several ranges.
    pub(crate) scattered: u64,
    pub(crate) torn: u64,
    pub(crate) local_pushes: u64,
    pub(crate) remote_pushes: u64,
    pub(crate) prepared: u64,
    pub(crate) one_sided: u64,
    pub(crate) by_message: u64,
    pub(crate) at_home: u64,
    pub(crate) met: u64,
    /// Commits of ranks that were answered, versions that their workers have made whole, and holds that were listed.
    pub(crate) committed: u64,
    pub(crate) whole: u64,
    pub(crate) held: u64,
    pub(crate) failures: [u64; 22],
    pub(crate) links: u64,
    pub(crate) links_lost: u64,
    pub(crate) rails_lost: u64,
    pub(crate) restarts: u64,
    /// Deltas that were applied, and how often it was several in one body.
    pub(crate) deltas: u64,
    pub(crate) chains: u64,
    /// Deltas of bases that workers have lent: those that have made their version, and those that have not.
    pub(crate) lent_bases: u64,
    pub(crate) wrong_bases: u64,
    /// Versions that came from other nodes than their owner, and those of them that were damaged.
    pub(crate) relayed: u64,
    pub(crate) damaged: u64,
    /// Versions that were written to disk, and reads of them.
    pub(crate) spilled: u64,
    pub(crate) read_back: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.local_fetches += other.local_fetches;
        self.remote_fetches += other.remote_fetches;
        self.look_ups += other.look_ups;
        self.announced += other.announced;
        self.noticed += other.noticed;
        self.by_reference += other.by_reference;
        self.gathered += other.gathered;
        self.sliced += other.sliced;
        self.landed += other.landed;
        self.scattered += other.scattered;
        self.torn += other.torn;
        self.local_pushes += other.local_pushes;
        self.remote_pushes += other.remote_pushes;
        self.prepared += other.prepared;
        self.one_sided += other.one_sided;
        self.by_message += other.by_message;
        self.at_home += other.at_home;
        self.met += other.met;
        self.committed += other.committed;
        self.whole += other.whole;
        self.held += other.held;
        self.links += other.links;
        self.links_lost += other.links_lost;
        self.rails_lost += other.rails_lost;
        self.restarts += other.restarts;
        self.deltas += other.deltas;
        self.chains += other.chains;
        self.lent_bases += other.lent_bases;
        self.wrong_bases += other.wrong_bases;
        self.relayed += other.relayed;
        self.damaged += other.damaged;
        self.spilled += other.spilled;
        self.read_back += other.read_back;
        for (sum, n) in self.failures.iter_mut().zip(other.failures) {
            *sum += n;
        }
    }
}
