//! Places: a peer has a limited number of parts that are packed, or have long gather lists, at a time.

use crate::fabric::LinkId;
use crate::memory::padded;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::CopyId;
use crate::protocol::node::flows::Answering;
use crate::tensor::Cut;

/// The most runs of a part that is sent from where it lies without a place: those of ranges. The lists of others take
/// memory until they are sent.
const FEW_RUNS: u64 = 64;

/// The most ranges of the arena of which a version that is sent without a place consists, and so a part of it.
const FEW_RANGES: u32 = 4096;

impl Answering<'_> {
    /// Whether what a peer has asked for takes a place: it is packed before it is sent, or has a long gather list. `None`: it
    /// takes none. An error: it is too long to be packed.
    pub(in crate::protocol::node) fn takes_place(&self, link: LinkId, index: u32) -> Option<Result<(), Failure>> {
        let serve = self.transfers.serve(link, index)?;
        let b = self.keys.blob(serve.blob?)?;
        let has_many_ranges = b.range_count() > FEW_RANGES;
        let Some(part) = serve.part() else { return has_many_ranges.then_some(Ok(())) };
        let is_on_disk = b.on_disk().is_some();
        let cut = b.cut_by(Some(part)).filter(|_| !is_on_disk);
        let is_large = |cut: &Cut| cut.is_packed() || cut.packing.runs() > FEW_RUNS || has_many_ranges;
        if !cut.as_ref().is_none_or(is_large) {
            return None;
        }
        let (len, room) = (b.len_of(Some(part)), self.landing.pool_bytes(b.domain));
        if cut.is_some_and(|cut| cut.may_be_gathered()) || padded(len).is_some_and(|len| len <= room) {
            return Some(Ok(()));
        }
        let (key, name, what) =
            (serve.key(), &self.config.name, if is_on_disk { "on its disk" } else { "in many short runs" });
        let text = format!(
            "the part of key {key:?} lies at node {name:?} {what}, and its {len} bytes do not fit the landing pool of {room} there: \
             fetch smaller parts"
        );
        Some(Err(Failure::new(FailureCode::TooLarge, text)))
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
