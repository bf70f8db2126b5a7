//! Parts that are packed before they are sent to a peer: slices whose runs are short, and parts of versions on disk.
//!
//! The copy is made once the peer has granted its slot, so it waits for nothing but the link, and its room is soon free
//! again. It lies in the landing pool of the version's tenant. A peer has a limited number of them at a time, and of parts
//! with long gather lists. If there is no room, the part is sent from where it lies, if that is possible. If not, it waits for room, for a limited time: two
//! nodes whose pools are full of slots for each other's parts would wait forever.

use super::Node;
use super::copying::{CopyReader, Copying};
use crate::fabric::LinkId;
use crate::memory::padded;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::CopyId;
use crate::protocol::landing::Want;
use crate::tensor::Cut;
use crate::time::Time;
use std::time::Duration;

/// The most runs of a part that is sent from where it lies without a place: those of ranges. The lists of others take
/// memory until they are sent.
const FEW_RUNS: u64 = 64;

/// The most ranges of the arena of which a version that is sent without a place consists, and so a part of it.
const FEW_RANGES: u32 = 4096;

/// How long a part may wait for room to be packed.
pub(super) const PACK_TIMEOUT: Duration = Duration::from_secs(10);

impl Node {
    /// Whether what a peer has asked for takes a place: it is packed before it is sent, or has a long gather list. `None`: it
    /// takes none. An error: it is too long to be packed.
    pub(super) fn takes_place(&self, link: LinkId, index: u32) -> Option<Result<(), Failure>> {
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

    /// Begins to pack the parts that wait for it, as far as their peers have places.
    pub(super) fn pack_parts(&mut self) {
        while let Some((link, index)) = self.transfers.next_to_pack() {
            self.pack(link, index);
        }
    }

    /// Frees the place of a part that is packed no longer.
    pub(super) fn free_place(&mut self, place: Option<LinkId>) {
        if let Some(link) = place {
            self.transfers.free_place(link);
        }
    }

    /// Packs the part of a request, which has a place.
    fn pack(&mut self, link: LinkId, index: u32) {
        let serve = self.transfers.serve(link, index).filter(|serve| serve.number_in_line().is_some());
        let found = serve.and_then(|serve| Some((serve, serve.blob?)));
        let Some(((serve, from), b)) = found.and_then(|found| Some((found, self.keys.blob(found.1)?))) else {
            return self.transfers.free_place(link);
        };
        let (key, excerpt, reader) = (serve.key().clone(), serve.excerpt().cloned(), b.domain);
        let (len, is_on_disk) = (b.len_of(excerpt.as_ref()), b.on_disk().is_some());
        if excerpt.is_none() {
            return self.gather_part(link, index);
        }
        let cut = b.cut_by(excerpt.as_ref()).filter(|_| !is_on_disk);
        let (is_packed, may_be_gathered) = cut.map_or((true, false), |cut| (cut.is_packed(), cut.may_be_gathered()));
        let room = self.landing.pool_bytes(reader);
        let is_too_long = padded(len).is_none_or(|len| len > room);
        if !is_packed {
            return self.gather_part(link, index);
        }
        self.keys.hold(from);
        self.keys.fetch_begins(&key, from);
        let (wanted_by, place, began) = (Some(CopyReader::Peer(link, index)), Some(link), self.latest);
        let copying = Copying { wanted_by, key, from, excerpt, reader, len, to: None, began, place };
        let copying = self.copies.insert(copying);
        if let Some(serve) = self.transfers.serve_mut(link, index) {
            serve.copy(copying);
        }
        if !is_too_long && !self.landing.is_contended(reader) && self.try_copy(reader, copying) {
            return;
        }
        if may_be_gathered {
            // The place stays with the request.
            if let Some(copying) = self.copies.get_mut(copying) {
                copying.place = None;
            }
            self.copy_unwanted(copying);
            return self.gather_part(link, index);
        }
        self.want(reader, Want::Copy(copying));
        self.packs_waiting.push_back((self.latest + PACK_TIMEOUT, copying));
    }

    /// Sends a part that has a place from where it lies.
    fn gather_part(&mut self, link: LinkId, index: u32) {
        if let Some(serve) = self.transfers.serve_mut(link, index) {
            serve.gather();
        }
        self.write_served(link, index);
    }

    /// Forgets how long a copy may wait for room.
    pub(super) fn waits_no_longer(&mut self, copying: CopyId) {
        // At most as many wait as the peers have places.
        self.packs_waiting.retain(|(_, waiting)| *waiting != copying);
    }

    /// Returns when the first part has waited for room long enough.
    pub(super) fn packs_due(&self) -> Option<Time> {
        self.packs_waiting.front().map(|(at, _)| *at)
    }

    /// Fails the requests whose parts have waited for room long enough.
    pub(super) fn end_waiting_packs(&mut self, now: Time) {
        while let Some((_, copying)) = self.packs_waiting.pop_front_if(|(at, _)| *at <= now) {
            self.end_waiting_pack(now, copying);
        }
    }

    fn end_waiting_pack(&mut self, now: Time, copying: CopyId) {
        let Some(Copying { wanted_by: Some(CopyReader::Peer(link, index)), key, len, to: None, .. }) =
            self.copies.get(copying)
        else {
            return;
        };
        let text = format!(
            "no room for {len} bytes of key {key:?} came free in the landing pool of node {:?}, which packs them, within \
             {PACK_TIMEOUT:?}",
            self.config.name
        );
        let (link, index) = (*link, *index);
        self.end_serve(now, link, index, Failure::new(FailureCode::PoolFull, text));
    }
}
