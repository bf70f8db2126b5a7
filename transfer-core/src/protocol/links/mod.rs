//! What one link consists of, as small machines that know nothing of blobs' versions, sessions or each other.
//!
//! # Layout
//! - `credits`: the receive slots of both ends.
//! - `outbox`: what waits to be posted.
//! - `cells`: the memory of landing headers, which all links share.
//! - `names`, `descriptions`: what both ends call by number.

mod cells;
mod credits;
mod descriptions;
mod names;
mod outbox;

pub(super) use cells::HeaderCells;
pub(super) use credits::Credits;
pub(super) use descriptions::Descriptions;
pub(super) use names::{NamesIn, NamesOut};
pub(super) use outbox::{InFlight, Out, OutWrite, Outbox, Purpose};

/// What both ends of a link call by number.
pub(super) struct Numbers {
    /// The names that this side has numbered.
    pub(super) names_out: NamesOut,
    /// The names that the peer has numbered.
    pub(super) names_in: NamesIn,
    /// The descriptions of tensors.
    pub(super) descriptions: Descriptions,
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers { names_out: NamesOut::default(), names_in: NamesIn::default(), descriptions: Descriptions::new() }
    }
}
