//! The events of a fabric.

use super::{DownReason, LinkId, WorkId};
use crate::memory::{RemoteKey, RemoteSlice, SegmentId};

/// An event that [`super::Fabric::poll`] reports. Bytes are borrowed for the duration of the call.
#[derive(Debug)]
#[non_exhaustive]
pub enum FabricEvent<'a> {
    /// The link can be used. Before this event, only [`FabricEvent::LinkDown`] is reported for a link.
    Connected {
        /// The link.
        link: LinkId,
    },
    /// A write is placed at the peer.
    WriteDone {
        /// The link.
        link: LinkId,
        /// The work id, as posted.
        work: WorkId,
    },
    /// A message lies in a receive slot of the peer.
    SendDone {
        /// The link.
        link: LinkId,
        /// The work id, as posted.
        work: WorkId,
    },
    /// A grant is in force.
    Granted {
        /// The link.
        link: LinkId,
        /// The tag that was passed to [`super::Fabric::grant`].
        tag: u64,
        /// The whole granted range, with the keys that the peer needs to write there.
        remote: RemoteSlice,
    },
    /// A grant has ended. Nothing can be written through it from now on.
    Revoked {
        /// The link.
        link: LinkId,
        /// The grant's key.
        key: RemoteKey,
        /// The tag that was passed to [`super::Fabric::grant`].
        tag: u64,
    },
    /// The peer sent a message.
    Message {
        /// The link.
        link: LinkId,
        /// The message's bytes, unchecked.
        bytes: &'a [u8],
    },
    /// The peer's write with this immediate is placed, and so are all writes that the peer posted before it.
    Immediate {
        /// The link.
        link: LinkId,
        /// The immediate data.
        value: u32,
        /// The length of the write that carried the immediate, in bytes. An immediate proves nothing by itself, because
        /// a write of zero bytes needs no grant (docs/adr/0001, correction 8).
        len_bytes: u64,
        /// The number of bytes that a CPU copied on this side for the writes since the link's last immediate.
        copied: u64,
    },
    /// An atomic operation on a word of the peer is done: the word was read, and changed if the operation changes it.
    AtomicDone {
        /// The link.
        link: LinkId,
        /// The work id, as posted.
        work: WorkId,
        /// The value of the word before the operation.
        old: u64,
    },
    /// An atomic operation on a word of this side is done.
    LocalAtomicDone {
        /// The work id, as posted.
        work: WorkId,
        /// The value of the word before the operation, or the device's error text. After an error the word may or may
        /// not have been changed.
        old: Result<u64, String>,
    },
    /// The two sides of this link may refer to each other's memory instead of sending its contents. This event follows
    /// [`FabricEvent::Connected`], and only on fabrics that have [`super::Sharing`].
    References {
        /// The link.
        link: LinkId,
        /// The link's number, the same on both sides. Readers mark what they read by this number; see
        /// [`super::Sharing::share`].
        mark: u64,
    },
    /// The peer has passed a segment. [`super::Sharing::keep`] takes it. Only on links with references.
    SegmentCame {
        /// The link.
        link: LinkId,
        /// The peer's own number for the segment.
        handle: u32,
    },
    /// The peer has kept that segment of this side. From now on its reader marks show whether a worker of the peer
    /// reads it.
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
        /// The handle of the segment's [`FabricEvent::SegmentCame`].
        handle: u32,
    },
    /// One rail of a link with several rails is dead and drained on this side. The other rails carry the traffic,
    /// including what the dead rail did not deliver. For the last rail, [`FabricEvent::LinkDown`] is reported instead.
    RailDown {
        /// The link.
        link: LinkId,
        /// The rail's number.
        rail: usize,
        /// The reason.
        reason: DownReason,
        /// The number of rails left.
        left: usize,
    },
    /// The link is dead and drained. This is its last event.
    LinkDown {
        /// The link.
        link: LinkId,
        /// The reason.
        reason: DownReason,
    },
}
