//! Parts that are packed before they are sent to a peer: slices whose runs are short, and parts of versions that lie on disk, or in
//! memory that the fabric cannot read.
//!
//! The copy is made once the peer has granted its slot, so it waits for nothing but the link, and its room is soon free
//! again. It lies in the landing pool of the version's tenant. A peer has a limited number of them at a time, and of parts
//! with long gather lists. If there is no room, the part is sent from where it lies, if that is possible. If not, it waits for room, for a limited time: two
//! nodes whose pools are full of slots for each other's parts would wait forever.

use super::copying::{CopyReader, Copying};
use crate::fabric::LinkId;
use crate::memory::padded;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::CopyId;
use crate::protocol::landing::Want;
use crate::protocol::node::flows::Answering;
use crate::time::Time;
use std::time::Duration;

/// How long a part may wait for room to be packed.
pub(in crate::protocol::node) const PACK_TIMEOUT: Duration = Duration::from_secs(10);

impl Answering<'_> {
    /// Begins to pack the parts that wait for it, as far as their peers have places.
    pub(in crate::protocol::node) fn pack_parts(&mut self) {
        while let Some((link, index)) = self.transfers.next_to_pack() {
            self.pack(link, index);
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
        let len = b.len_of(excerpt.as_ref());
        if excerpt.is_none() {
            return self.gather_part(link, index);
        }
        let cut = b.cut_by(excerpt.as_ref()).filter(|_| self.where_copied_from(link, from).is_none());
        let (is_packed, may_be_gathered) = cut.map_or((true, false), |cut| (cut.is_packed(), cut.may_be_gathered()));
        let room = self.landing.pool_bytes(reader);
        let is_too_long = padded(len).is_none_or(|len| len > room);
        if !is_packed {
            return self.gather_part(link, index);
        }
        self.keys.hold(from);
        let (wanted_by, place, began) = (Some(CopyReader::Peer(link, index)), Some(link), self.common.latest);
        let (to, is_fetch, delta, also) = (None, false, None, Vec::new());
        let copying = Copying { wanted_by, also, key, from, excerpt, reader, len, to, began, place, is_fetch, delta };
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
            self.copy_unwanted(copying, CopyReader::Peer(link, index));
            return self.gather_part(link, index);
        }
        room!(self).want(reader, Want::Copy(copying));
        self.packs_waiting.push_back((self.common.latest + PACK_TIMEOUT, copying));
    }

    /// Sends a part that has a place from where it lies.
    fn gather_part(&mut self, link: LinkId, index: u32) {
        if let Some(serve) = self.transfers.serve_mut(link, index) {
            serve.gather();
        }
        self.write_served(link, index);
    }

    /// Fails the requests whose parts have waited for room long enough.
    pub(in crate::protocol::node) fn end_waiting_packs(&mut self, now: Time) {
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
