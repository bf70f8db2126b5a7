//! Versions that are read back from disk.

use crate::op::{Failure, FailureCode};
use crate::protocol::node::Node;
use crate::protocol::node::answering::{CopyReader, Copying};
use crate::protocol::node::flows::Ownership;
use crate::protocol::slab::Id;
use crate::time::Time;

impl Node {
    /// Handles the answer to [`HostAction::SpillRead`](crate::protocol::HostAction::SpillRead). With an error, the version is lost: the disk did not return what
    /// was written.
    pub fn spill_read(&mut self, now: Time, tag: u64, result: Result<(), &str>) {
        self.common.latest = now;
        ownership!(self).spill_read(now, tag, result);
    }
}

impl Ownership<'_> {
    /// Handles the answer to [`HostAction::SpillRead`](crate::protocol::HostAction::SpillRead). With an error, the version is lost: the disk did not return what
    /// was written.
    fn spill_read(&mut self, now: Time, tag: u64, result: Result<(), &str>) {
        let Some(len) = self.copies.get(Id::from_u64(tag)).map(|copying| copying.len) else { return };
        self.spills.was_read(len, result.is_ok());
        let Err(why) = result else {
            // A push sends nothing from disk.
            let _none = answering!(self).copied(now, tag);
            return;
        };
        let Some(Copying { wanted_by, key, from, reader, to, place, is_fetch, .. }) =
            self.copies.remove(Id::from_u64(tag))
        else {
            return;
        };
        answering!(self).free_place(place);
        if let Some(range) = to {
            self.landing.free(reader, range);
        }
        let failure = Failure::new(FailureCode::VersionGone, format!("key {key:?} is lost: {why}"));
        match wanted_by {
            Some(CopyReader::Op(op) | CopyReader::Push(op, ..)) => answering!(self).fail_op(op, failure),
            Some(CopyReader::Peer(link, index)) => answering!(self).end_serve(now, link, index, failure),
            // A base is not on disk.
            Some(CopyReader::Pull(..)) | None => {}
        }
        self.spilled_is_lost(now, &key, from);
        answering!(self).copied_from(now, (&key, is_fetch), from, false);
    }
}
