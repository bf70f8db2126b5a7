//! Reading by reference: what follows a request, a passed segment and a lost link. The state machine is in
//! `protocol/references`.

use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::protocol::action::FabricAction;
use crate::protocol::node::Node;
use crate::protocol::node::ownership::Ending;

impl Node {
    /// Handles the message RELEASE_REFERENCE: the peer no longer reads the version.
    pub(in crate::protocol::node) fn reference_released(&mut self, link: LinkId, lease: u32) {
        match self.references.released(link, lease) {
            Some(blob) => memory!(self).release(blob),
            None => {
                sending!(self).violation(link, &format!("it releases reference {lease:#x}, which it does not hold"))
            }
        }
    }

    /// Handles the answer to [`HostAction::AskReaders`](crate::protocol::HostAction::AskReaders): `read` tells whether
    /// a process may still read the segment by reference over the link with this mark.
    pub fn readers_answered(&mut self, segment: SegmentId, mark: u64, read: bool) {
        if !read {
            let blobs = self.references.answered(segment, mark);
            ownership!(self).end(self.common.latest, Ending::Read(blobs.into_iter()));
        }
    }

    /// Handles a segment that the peer has passed.
    pub(in crate::protocol::node) fn segment_came(&mut self, link: LinkId, handle: u32) {
        if self.references.are_allowed(link) && self.links.get(link).is_some_and(|l| !l.is_ending()) {
            self.actions.push(FabricAction::Keep { link, handle });
        }
    }

    /// Handles the answer to [`FabricAction::Keep`]: a peer's segment is kept for workers of this node, under a number
    /// of this node. Returns `false` if the segment is no longer of use.
    pub fn keep_segment(&mut self, link: LinkId, handle: u32, segment: SegmentId, len_bytes: u64) -> bool {
        self.references.keep(link, handle, segment, len_bytes)
    }
}
