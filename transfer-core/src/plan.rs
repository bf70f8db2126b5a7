//! Planning a transfer: which ranges go into which write.
//!
//! A landing slot is filled by one or more writes. Its layout is the header, then the body's buffers as they lie at the sender, each
//! padded to 64 bytes by the sender's own zeros. The last write to be posted carries the header, so that the header's arrival means
//! that everything has arrived.

use crate::fabric::Capabilities;
use crate::memory::{LocalSlice, RemoteSlice};
use smallvec::SmallVec;

/// A gather list.
pub type GatherList = SmallVec<[LocalSlice; 2]>;

/// One write of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What to gather, in order.
    pub sgl: GatherList,
    /// Where it lands.
    pub remote: RemoteSlice,
}

/// Splits a transfer into writes, none longer than the fabric takes, and each with as many elements as it takes. The one with the
/// header comes last. `None` where header and body do not fit into `slot`.
#[must_use]
pub fn pieces(header: LocalSlice, body: &[LocalSlice], slot: RemoteSlice, limits: &Capabilities) -> Option<Vec<Piece>> {
    let max_sge = limits.max_sge.max(1);
    let max_bytes = limits.max_write_bytes.max(header.len);
    let mut out = Vec::with_capacity(1);
    let mut sgl = GatherList::from_slice(&[header]);
    let (mut start, mut len) = (0u64, header.len);
    for buffer in body {
        let mut rest = *buffer;
        while rest.len > 0 {
            if sgl.len() == max_sge || len == max_bytes {
                out.push(Piece { sgl: std::mem::take(&mut sgl), remote: slot.sub(start, len)? });
                (start, len) = (start.checked_add(len)?, 0);
            }
            let take = rest.len.min(max_bytes - len);
            sgl.push(rest.sub(0, take)?);
            len += take;
            rest = rest.sub(take, rest.len - take)?;
        }
    }
    out.push(Piece { sgl, remote: slot.sub(start, len)? });
    let last = out.len() - 1;
    out.swap(0, last);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{RemoteKey, SegmentId};
    use proptest::prelude::*;

    fn local(offset: u64, len: u64) -> LocalSlice {
        LocalSlice { segment: SegmentId(1), offset, len }
    }

    fn limits(max_sge: usize, max_write_bytes: u64) -> Capabilities {
        Capabilities { max_sge, max_write_bytes, ..Capabilities::new() }
    }

    #[test]
    fn forty_buffers_take_as_few_writes_as_max_sge_allows() {
        let slot = RemoteSlice::new(0, 64 + 40 * 128, RemoteKey(1));
        let body: Vec<_> = (0..40).map(|i| local(i * 1000, 128)).collect();
        let out = pieces(local(9000, 64), &body, slot, &limits(16, 1 << 30)).unwrap();
        assert_eq!(out.len(), 41usize.div_ceil(16));
        assert_eq!(out.last().unwrap().sgl[0], local(9000, 64));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let slot = RemoteSlice::new(0, 100, RemoteKey(1));
        assert_eq!(pieces(local(0, 64), &[local(64, 37)], slot, &Capabilities::new()), None);
        assert!(pieces(local(0, 64), &[local(64, 36)], slot, &Capabilities::new()).is_some());
        assert_eq!(pieces(local(0, 64), &[], slot, &Capabilities::new()).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn writes_cover_the_slot_once_in_order(
            lens in proptest::collection::vec(0u64..500, 0..20), max_sge in 1usize..6, max_bytes in 64u64..300
        ) {
            let total: u64 = 64 + lens.iter().sum::<u64>();
            let slot = RemoteSlice::new(1 << 20, total, RemoteKey(1));
            let mut at = 10_000;
            let body: Vec<_> = lens.iter().map(|l| { at += 600; local(at, *l) }).collect();
            let out = pieces(local(0, 64), &body, slot, &limits(max_sge, max_bytes)).unwrap();
            prop_assert_eq!(out.last().unwrap().sgl[0], local(0, 64));
            let mut sorted = out.clone();
            sorted.sort_by_key(|p| p.remote.address);
            let mut address = slot.address;
            for p in &sorted {
                prop_assert!(p.sgl.len() <= max_sge && p.remote.len <= max_bytes);
                prop_assert_eq!(p.remote.address, address);
                prop_assert_eq!(p.sgl.iter().map(|s| s.len).sum::<u64>(), p.remote.len);
                address += p.remote.len;
            }
            prop_assert_eq!(address, slot.address + total);
            let flat: Vec<u64> = sorted.iter().flat_map(|p| p.sgl.iter().flat_map(|s| s.offset..s.offset + s.len)).collect();
            let want: Vec<u64> = (0..64).chain(body.iter().flat_map(|s| s.offset..s.offset + s.len)).collect();
            prop_assert_eq!(flat, want);
        }
    }
}
