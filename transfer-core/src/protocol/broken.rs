//! Rules that can be broken on purpose, to see that the schedules notice.

/// A rule of the protocol that a node breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// What has landed is delivered before the fabric has confirmed that its slot is closed.
    DeliversBeforeRevoke,
    /// The slot of a fetch that was given up is used again without waiting for CANCELLED.
    SkipsQuarantine,
    /// Each message gives back one credit too few.
    ForgetsCredits,
    /// An operation on a counter whose link died is said not to have been done.
    DeniesLostAdds,
    /// What has landed in a flow is delivered as its slots are closed, not as it came.
    DeliversOutOfOrder,
    /// Slots that are called back are used again without waiting for RECALLED.
    ReclaimsAtOnce,
    /// What a landed header says of its slot and length is believed.
    BelievesHeaders,
    /// RECALLED counts whichever round of slots it speaks of.
    MixesRounds,
    /// A number of a full table of names gets a new meaning without a word to the peer.
    ReusesNames,
    /// What was set aside for a version to come is not given back when it has come.
    KeepsSpeculation,
    /// A released lease does not count as released.
    ForgetsReleases,
    /// What is shown no more is given back whoever has marked it.
    ForgetsMarks,
    /// Who asks for what its owner announces is answered with what was heard of by then.
    AnswersAtOnce,
    /// What a peer referred to is not given back to it.
    KeepsReferences,
    /// What a peer held when its link was lost is not held any more, whoever still reads it.
    ForgetsReaders,
    /// A key that the directory has given to another owner is kept.
    KeepsLostKeys,
    /// Workers of other tenants are given a tensor, too.
    ServesStrangers,
    /// What is closed is found by its key, which others may have too.
    NamesSlotsByKey,
}
