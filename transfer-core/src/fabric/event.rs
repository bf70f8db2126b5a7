//! What a fabric reports.

use super::{DownReason, LinkId, WorkId};
use crate::memory::{RemoteKey, RemoteSlice, SegmentId};

/// What [`super::Fabric::poll`] reports. Bytes are borrowed for the call.
#[derive(Debug)]
#[non_exhaustive]
pub enum FabricEvent<'a> {
    /// The link can be used. Of no link is anything else reported before, but its end.
    Connected {
        /// The link.
        link: LinkId,
    },
    /// A write is placed at the peer.
    WriteDone {
        /// The link.
        link: LinkId,
        /// As posted.
        work: WorkId,
    },
    /// A message lies at the peer.
    SendDone {
        /// The link.
        link: LinkId,
        /// As posted.
        work: WorkId,
    },
    /// A grant is in force.
    Granted {
        /// The link.
        link: LinkId,
        /// As passed to [`super::Fabric::grant`].
        tag: u64,
        /// What the peer needs to write there: the whole range.
        remote: RemoteSlice,
    },
    /// A grant is gone: nothing can be written through it any more.
    Revoked {
        /// The link.
        link: LinkId,
        /// Its key.
        key: RemoteKey,
        /// As passed to [`super::Fabric::grant`].
        tag: u64,
    },
    /// The peer sent a message.
    Message {
        /// The link.
        link: LinkId,
        /// Its bytes, as they came.
        bytes: &'a [u8],
    },
    /// The peer's write with this immediate is placed, and so is all that it wrote before.
    Immediate {
        /// The link.
        link: LinkId,
        /// The immediate data.
        value: u32,
        /// Length of the write that brought it, in bytes. An immediate proves nothing by itself: a write of no bytes needs no grant
        /// (docs/adr/0001, correction 8).
        len_bytes: u64,
        /// How many bytes a CPU copied on this side for the writes since the last immediate of this link.
        copied: u64,
    },
    /// A remote word was read, and changed where the operation says so.
    AtomicDone {
        /// The link.
        link: LinkId,
        /// As posted.
        work: WorkId,
        /// What the word held before.
        old: u64,
    },
    /// The same for a word of this side.
    LocalAtomicDone {
        /// As posted.
        work: WorkId,
        /// What the word held before; the error says what the device said, and then the word may have been changed or not.
        old: Result<u64, String>,
    },
    /// The two sides of this link may refer to each other's memory instead of sending what lies there. Behind [`FabricEvent::Connected`],
    /// and never where the capabilities say nothing of it.
    References {
        /// The link.
        link: LinkId,
        /// The link's number, the same on both sides, by which readers mark what they read: see [`super::Sharing::share`].
        mark: u64,
    },
    /// The peer has passed a segment: [`super::Sharing::keep`] takes it. Only on links with references.
    SegmentCame {
        /// The link.
        link: LinkId,
        /// What the peer calls it: its own number.
        handle: u32,
    },
    /// The peer has that segment of this side, and keeps it: from here on a peer's reader is seen by its marks.
    SegmentKept {
        /// The link.
        link: LinkId,
        /// The segment.
        segment: SegmentId,
    },
    /// The peer will not name that segment again.
    SegmentGone {
        /// The link.
        link: LinkId,
        /// As in [`FabricEvent::SegmentCame`].
        handle: u32,
    },
    /// One rail of a link of several is dead and drained on this side; the others carry on, with what it did not bring over too.
    /// For the last one [`FabricEvent::LinkDown`] is reported instead.
    RailDown {
        /// The link.
        link: LinkId,
        /// Which of its rails.
        rail: usize,
        /// Why.
        reason: DownReason,
        /// How many are left.
        left: usize,
    },
    /// The link is dead and drained. Its last event.
    LinkDown {
        /// The link.
        link: LinkId,
        /// Why.
        reason: DownReason,
    },
}
