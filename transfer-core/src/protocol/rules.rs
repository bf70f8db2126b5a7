//! The rules that a node keeps.
//!
//! A node of a test may break one of them, to check that the simulated schedules notice it. Every other node keeps all: there
//! [`Rules::breaks`] is a constant, and what depends on it is not compiled.

/// The rules of a node, given with its configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    #[cfg(test)]
    broken: Option<Broken>,
}

impl Rules {
    /// All rules but this one.
    #[cfg(test)]
    pub(crate) fn but(broken: Option<Broken>) -> Rules {
        Rules { broken }
    }

    /// Whether the node breaks this rule.
    #[cfg(test)]
    pub(crate) fn breaks(self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Whether the node breaks this rule: it does not.
    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "a node of a test has rules")]
    pub(crate) const fn breaks(self, _: Broken) -> bool {
        false
    }
}

/// A mistake: a rule of the protocol that is broken. The simulated fabric and host make some of them, and the node the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "the simulation makes some of them"))]
pub(crate) enum Broken {
    /// Delivers landed data before the fabric has confirmed that its slot is closed.
    DeliversBeforeRevoke,
    /// Reuses the slot of an abandoned fetch without waiting for CANCELLED.
    SkipsQuarantine,
    /// Ends a fetch into the memory of a worker before the memory is closed.
    ReturnsBeforeClosed,
    /// Closes only the first of the ranges in which a version has landed.
    ClosesOneRange,
    /// Gives back one credit too few with each message.
    ForgetsCredits,
    /// Reports that an operation on a counter was not carried out when its link died, although it may have been.
    DeniesLostAdds,
    /// Delivers the landed data of a flow in the order in which its slots are closed, not in the order of arrival.
    DeliversOutOfOrder,
    /// Reuses recalled slots without waiting for RECALLED.
    ReclaimsAtOnce,
    /// Trusts the slot number and the length in a landed header.
    BelievesHeaders,
    /// Accepts RECALLED for any round of slots.
    MixesRounds,
    /// Gives a number of a full table of names a new meaning without telling the peer.
    ReusesNames,
    /// Does not return the bytes that a request took of the pool's speculative share.
    KeepsSpeculation,
    /// Does not count a released lease as released.
    ForgetsReleases,
    /// Frees a withdrawn version even while a hazard pointer holds its ticket.
    ForgetsMarks,
    /// Answers a request for a key with a notice from the versions known so far, without asking for newer ones.
    AnswersAtOnce,
    /// Does not release a reference to the peer that gave it.
    KeepsReferences,
    /// Drops the versions that a peer held when its link was lost, even while they are read.
    ForgetsReaders,
    /// Keeps a key that the directory has given to another owner.
    KeepsLostKeys,
    /// Gives a tensor to workers of other tenants, too.
    ServesStrangers,
    /// Answers a fetch with what a request brings that was sent before the fetch came.
    SharesEarlierAnswers,
    /// Finds a closed slot by its key, which other slots may have had too.
    NamesSlotsByKey,
    /// Takes a version of a sharded state for whole, although one of its ranks has changed since its manifest was made.
    PublishesOtherRanks,
    /// Does not say which versions of a sharded state are held.
    ForgetsHolds,
    /// Counts the commit of a rank of an earlier restart of a sharded state.
    AcceptsOlderRestarts,
    /// Takes any version with the number of its base for the base of a delta.
    ProvesBasesByNumber,
    /// Sends the delta of a version to a node that has another version than its base.
    SendsDeltasToAll,
    /// Takes the deltas before its own that a push names for those of its base.
    BelievesChains,
    /// Sends another node a version that has landed before its slot is closed.
    RelaysBeforeRevoke,
    /// Takes what a node has sent that its owner has named, without comparing it with the owner's digest.
    BelievesRelays,
    /// Does not say to the next home of a sharded state what its workers have committed.
    ForgetsCommits,
    /// Lets the commit of a rank take the place of one that the same worker has made at another node, whichever is the later.
    ReplacesMovedRanks,
}
