//! How something came into the memory of the caller.

use std::fmt;

/// How a version came into the memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Landing {
    /// It landed there, without a further copy.
    InPlace,
    /// It lies on this host, and was copied once.
    OnThisHost,
    /// It was copied out of the landing pool: the sidecar was restarted, and cannot write the arenas that it has taken back.
    ReturnedArena,
    /// It was copied out of the landing pool, since the sidecar has not opened the arena to the peer: one key opens all of a segment
    /// (`--isolation pool`), so the memory could not be closed again, or as many ranges as may be are open for other fetches of this client.
    NotOpened,
    /// It was copied out of the landing pool, since [`FetchInto::staged`](crate::FetchInto::staged) was asked for.
    Staged,
    /// It was copied when it had been compared with the digests of its push, if it has some ([`Fetch::verify`](crate::Fetch::verify)).
    Verified,
    /// It was copied from where all of the bundle had landed. Its fetches are counted, so that its table could not be asked for
    /// first, or it has come in buckets.
    Whole,
    /// It was copied from beside: it has less than 64 KiB, or less than that of it lies in one piece where it belongs.
    Short,
    /// It was copied from beside, or a part of it was: it lies apart in the arena in more pieces than its request has ranges for, about 23, or
    /// what was asked for does, and several requests could not bring it.
    TooManyRuns,
    /// It was copied: the version was replaced more than once while it landed, by several requests since its tensors lie apart.
    Replaced,
    /// It was copied: the tensors of the bundle were others when their places were chosen.
    OtherLayout,
    /// It was copied: the arena has no room for what lands beside.
    ArenaFull,
    /// It was copied: it lies in the arena of another client.
    OtherArena,
}

impl fmt::Display for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Landing::InPlace => "in place",
            Landing::OnThisHost => "copied: the version lies on this host",
            Landing::ReturnedArena => "copied: the sidecar was restarted, and maps this arena read-only",
            Landing::NotOpened => {
                "copied: one key opens all of a segment (--isolation pool), or too many ranges are open"
            }
            Landing::Staged => "copied: it landed beside first, as staged",
            Landing::Verified => "copied: it landed beside first, to be compared with its digests, if it has some",
            Landing::Whole => {
                "copied: all of the bundle has landed before, since its fetches are counted, or in buckets"
            }
            Landing::Short => "copied: it landed beside, since it has less than 64 KiB in one piece",
            Landing::TooManyRuns => "copied: it or a part of it landed beside, since its request has too few ranges",
            Landing::Replaced => "copied: the version was replaced while it landed, by several requests",
            Landing::OtherLayout => "copied: the version that came has other tensors than the one before",
            Landing::ArenaFull => "copied: the arena has no room for what lands beside",
            Landing::OtherArena => "copied: it lies in the arena of another client",
        })
    }
}
