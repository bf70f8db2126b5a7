//! Places: a peer has a limited number of parts that are packed, or have long gather lists, at a time.

use crate::fabric::LinkId;
use crate::memory::padded;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::{BlobId, CopyId};
use crate::protocol::node::flows::Answering;
use crate::protocol::tenant::Tenant;
use crate::tensor::Cut;

/// The most runs of a part that is sent from where it lies without a place: those of ranges. The lists of others take
/// memory until they are sent.
const FEW_RUNS: u64 = 64;

/// The most ranges of the arena of which a version that is sent without a place consists, and so a part of it.
const FEW_RANGES: u32 = 4096;

/// Where a version lies that a fabric cannot read.
const UNREADABLE: &str = "in memory from before a restart of the sidecar, which the fabric cannot read";

impl Answering<'_> {
    /// Whether what a peer has asked for takes a place: it is packed before it is sent, or has a long gather list. `None`: it
    /// takes none. An error: it is too long to be packed.
    pub(in crate::protocol::node) fn takes_place(&self, link: LinkId, index: u32) -> Option<Result<(), Failure>> {
        let serve = self.transfers.serve(link, index)?;
        let b = self.keys.blob(serve.blob?)?;
        let has_many_ranges = b.range_count() > FEW_RANGES;
        let Some(part) = serve.part() else { return has_many_ranges.then_some(Ok(())) };
        let where_it_lies = self.where_copied_from(link, serve.blob?);
        let cut = b.cut_by(Some(part)).filter(|_| where_it_lies.is_none());
        let is_large = |cut: &Cut| cut.is_packed() || cut.packing.runs() > FEW_RUNS || has_many_ranges;
        if !cut.as_ref().is_none_or(is_large) {
            return None;
        }
        if cut.is_some_and(|cut| cut.may_be_gathered()) {
            return Some(Ok(()));
        }
        let what = format!("the part of key {:?} lies {}", serve.key(), where_it_lies.unwrap_or("in many short runs"));
        Some(self.has_room_to_copy(b.domain, b.len_of(Some(part)), &what))
    }

    /// Returns where a version lies that is copied into the landing pool before it is sent by this link, in words. `None`: it is
    /// sent from where it lies.
    pub(in crate::protocol::node) fn where_copied_from(&self, link: LinkId, blob: BlobId) -> Option<&'static str> {
        let is_on_disk = self.keys.blob(blob)?.on_disk().is_some();
        let is_unreadable = || access!(self).is_unreadable(link, blob).then_some(UNREADABLE);
        is_on_disk.then_some("on disk").or_else(is_unreadable)
    }

    /// Checks that what is copied before it is sent fits the landing pool of its tenant. `what` says what lies where.
    pub(in crate::protocol::node) fn has_room_to_copy(
        &self,
        domain: Tenant,
        len: u64,
        what: &str,
    ) -> Result<(), Failure> {
        let room = self.landing.pool_bytes(domain);
        if padded(len).is_some_and(|len| len <= room) {
            return Ok(());
        }
        let text = format!(
            "{what} at node {:?}, and its {len} bytes do not fit the landing pool of {room} there, from which it is sent: fetch \
             slices of it",
            self.config.name
        );
        Err(Failure::new(FailureCode::TooLarge, text))
    }

    /// Frees the place of a part that is packed no longer.
    pub(in crate::protocol::node) fn free_place(&mut self, place: Option<LinkId>) {
        if let Some(link) = place {
            self.transfers.free_place(link);
        }
    }

    /// Forgets how long a copy may wait for room.
    pub(in crate::protocol::node) fn waits_no_longer(&mut self, copying: CopyId) {
        // At most as many wait as the peers have places.
        self.packs_waiting.retain(|(_, waiting)| *waiting != copying);
    }
}
