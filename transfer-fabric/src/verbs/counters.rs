//! The counts of a fabric.

/// The counts since the fabric's beginning, over all its links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls that handed work requests to the device.
    pub doorbells: u64,
    /// WRITEs, including those with an immediate.
    pub writes: u64,
    /// Messages.
    pub sends: u64,
    /// READs, FETCH_ADDs and CMP_AND_SWPs.
    pub atomics: u64,
    /// Windows bound.
    pub binds: u64,
    /// Windows invalidated.
    pub invalidations: u64,
    /// WRITEs of no bytes that ask whether the peer is there.
    pub probes: u64,
    /// Hellos and goodbyes.
    pub notices: u64,
    /// Requests of all kinds whose bytes were in the work request.
    pub inline: u64,
    /// Requests of all kinds that had a completion of their own.
    pub signaled: u64,
    /// Receives that completed: messages and immediates.
    pub receives: u64,
    /// Polls of completion queues.
    pub polls: u64,
    /// Completion queues made.
    pub completion_queues: u64,
}

impl Counters {
    /// Returns the number of work requests that were posted to send queues.
    #[must_use]
    pub fn work_requests(&self) -> u64 {
        self.writes + self.sends + self.atomics + self.binds + self.invalidations + self.probes + self.notices
    }

    /// Returns each count with its name.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 13] {
        [
            ("doorbells", self.doorbells),
            ("writes", self.writes),
            ("sends", self.sends),
            ("atomics", self.atomics),
            ("binds", self.binds),
            ("invalidations", self.invalidations),
            ("probes", self.probes),
            ("notices", self.notices),
            ("inline", self.inline),
            ("signaled", self.signaled),
            ("receives", self.receives),
            ("polls", self.polls),
            ("completion queues", self.completion_queues),
        ]
    }
}
