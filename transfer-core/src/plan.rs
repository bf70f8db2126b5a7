//! Plans a transfer: splits it into writes, and a write into shares for the rails.
//!
//! A landing slot is filled by one or more writes. Its layout is the header, then the body's buffers as they lie at the
//! sender, each padded to 64 bytes by the sender's own zeros. A body that lands apart from its header has writes of its own, at
//! least one for each of its ranges.
//! The last write to be posted carries the header, so the header's arrival means that everything has arrived. If a link has several rails, each long write is then cut into
//! shares, one for each rail.

use crate::fabric::Capabilities;
use crate::memory::{LocalSlice, RemoteSlice};
use crate::wire::landing::SlotGrant;
use smallvec::SmallVec;
use std::iter::Peekable;

/// A list of local ranges that one write gathers.
pub type GatherList = SmallVec<[LocalSlice; 2]>;

/// One write of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The local ranges to gather, in order.
    pub sgl: GatherList,
    /// The range of the peer's memory that the write fills.
    pub remote: RemoteSlice,
}

/// The writes of a transfer. Most have one.
pub type Pieces = SmallVec<[Piece; 1]>;

/// Splits a transfer into writes. No write exceeds the fabric's limits of bytes and of elements. The write with the
/// header comes last in the result. Returns `None` if header and body do not fit into `slot`.
#[must_use]
pub fn pieces(header: LocalSlice, body: &[LocalSlice], slot: &SlotGrant, limits: &Capabilities) -> Option<Pieces> {
    let mut out = Pieces::new();
    match slot.body.as_slice() {
        [] => {
            fill(
                std::iter::once(&header).chain(body),
                slot.remote,
                limits.max_write_bytes.max(header.len),
                limits,
                &mut out,
            )?;
            let last = out.len() - 1;
            out.swap(0, last);
        }
        apart => {
            let mut rest = body.iter().copied().filter(|buffer| buffer.len > 0).peekable();
            for range in apart {
                if rest.peek().is_none() {
                    break;
                }
                let part = take(&mut rest, range.len)?;
                if part.is_empty() {
                    continue;
                }
                fill(&part, *range, limits.max_write_bytes, limits, &mut out)?;
            }
            if rest.peek().is_some() {
                return None;
            }
            out.push(Piece { sgl: GatherList::from_slice(&[header]), remote: slot.remote.sub(0, header.len)? });
        }
    }
    Some(out)
}

/// Takes the next `len` bytes of these buffers, or as many as there are.
fn take(buffers: &mut Peekable<impl Iterator<Item = LocalSlice>>, len: u64) -> Option<GatherList> {
    let (mut taken, mut left) = (GatherList::new(), len);
    while left > 0
        && let Some(buffer) = buffers.peek_mut()
    {
        let part = buffer.len.min(left);
        taken.push(buffer.sub(0, part)?);
        left -= part;
        if part == buffer.len {
            buffers.next();
        } else {
            *buffer = buffer.sub(part, buffer.len - part)?;
        }
    }
    Some(taken)
}

/// Fills the beginning of a range with these buffers. The first write begins with the first buffer.
fn fill<'a>(
    buffers: impl IntoIterator<Item = &'a LocalSlice>,
    range: RemoteSlice,
    max_bytes: u64,
    limits: &Capabilities,
    out: &mut Pieces,
) -> Option<()> {
    let (max_sge, max_bytes) = (limits.max_sge.max(1), max_bytes.max(1));
    let mut sgl = GatherList::new();
    let (mut start, mut len) = (0u64, 0u64);
    for buffer in buffers {
        let mut rest = *buffer;
        while rest.len > 0 {
            if sgl.len() == max_sge || len == max_bytes {
                out.push(Piece { sgl: std::mem::take(&mut sgl), remote: range.sub(start, len)? });
                (start, len) = (start.checked_add(len)?, 0);
            }
            let take = rest.len.min(max_bytes - len);
            sgl.push(rest.sub(0, take)?);
            len += take;
            rest = rest.sub(take, rest.len - take)?;
        }
    }
    out.push(Piece { sgl, remote: range.sub(start, len)? });
    Some(())
}

/// The part of a striped write that one rail carries: one write, or more if its gather list is too long for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The index of the rail in the caller's list of rails.
    pub rail: usize,
    /// The writes of this share, in the order of their bytes.
    pub pieces: Vec<Piece>,
}

/// Cuts a write by byte range into at most `rails` shares of about the same size. Each share begins at a multiple of
/// `align` in the write, and the first share has the write's first bytes. No piece has more than `max_sge` elements.
/// Returns `None` if the lengths of `sgl` do not add up to `remote.len`.
#[must_use]
pub fn stripe(sgl: &[LocalSlice], remote: RemoteSlice, rails: usize, align: u64, max_sge: usize) -> Option<Vec<Share>> {
    let gathered = sgl.iter().try_fold(0_u64, |sum, slice| sum.checked_add(slice.len))?;
    if gathered != remote.len {
        return None;
    }
    let rails = u64::try_from(rails.max(1)).ok()?;
    let size = remote.len.div_ceil(rails).checked_next_multiple_of(align.max(1))?.max(align.max(1));
    let mut shares = Vec::with_capacity(usize::try_from(remote.len.div_ceil(size)).ok()?.max(1));
    let mut source = sgl.iter().copied();
    let mut rest = LocalSlice { len: 0, ..*sgl.first()? };
    let mut start = 0;
    while start < remote.len || shares.is_empty() {
        let end = remote.len.min(start + size);
        let mut pieces = Vec::with_capacity(1);
        while start < end || pieces.is_empty() {
            let (mut list, first) = (GatherList::new(), start);
            while start < end && list.len() < max_sge.max(1) {
                if rest.len == 0 {
                    rest = source.next()?;
                    continue;
                }
                let take = rest.len.min(end - start);
                list.push(rest.sub(0, take)?);
                rest = rest.sub(take, rest.len - take)?;
                start += take;
            }
            pieces.push(Piece { sgl: list, remote: remote.sub(first, start - first)? });
        }
        shares.push(Share { rail: shares.len(), pieces });
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{RemoteKey, SegmentId};
    use crate::wire::landing::SlotNumber;
    use proptest::prelude::*;

    fn local(offset: u64, len: u64) -> LocalSlice {
        LocalSlice { segment: SegmentId(1), offset, len }
    }

    /// A slot with the body behind the header.
    fn slot(address: u64, len: u64) -> SlotGrant {
        let remote = RemoteSlice::new(address, len, RemoteKey(1));
        SlotGrant { number: SlotNumber(1), capacity: len - 64, remote, body: Vec::new() }
    }

    fn limits(max_sge: usize, max_write_bytes: u64) -> Capabilities {
        Capabilities { max_sge, max_write_bytes, ..Capabilities::new() }
    }

    #[test]
    fn forty_buffers_take_as_few_writes_as_max_sge_allows() {
        let slot = slot(0, 64 + 40 * 128);
        let body: Vec<_> = (0..40).map(|i| local(i * 1000, 128)).collect();
        let out = pieces(local(9000, 64), &body, &slot, &limits(16, 1 << 30)).unwrap();
        assert_eq!(out.len(), 41usize.div_ceil(16));
        assert_eq!(out.last().unwrap().sgl[0], local(9000, 64));
    }

    #[test]
    fn transfer_that_exceeds_the_slot_is_refused() {
        let slot = slot(0, 100);
        assert_eq!(pieces(local(0, 64), &[local(64, 37)], &slot, &Capabilities::new()), None);
        assert!(pieces(local(0, 64), &[local(64, 36)], &slot, &Capabilities::new()).is_some());
        assert_eq!(pieces(local(0, 64), &[], &slot, &Capabilities::new()).unwrap().len(), 1);
    }

    #[test]
    fn write_with_inconsistent_lengths_is_not_striped() {
        let remote = RemoteSlice::new(0, 10, RemoteKey(1));
        assert_eq!(stripe(&[local(0, 9)], remote, 2, 64, 16), None);
        assert_eq!(stripe(&[local(0, u64::MAX), local(0, 11)], remote, 2, 64, 16), None);
        assert_eq!(stripe(&[local(0, 10)], remote, 2, 64, 16).unwrap().len(), 1);
    }

    #[test]
    fn shares_of_a_write_above_four_gib_cover_it() {
        let len = (9 << 32) + 5;
        let shares = stripe(&[local(0, len)], RemoteSlice::new(1, len, RemoteKey(1)), 4, 4096, 16).unwrap();
        assert_eq!(shares.len(), 4);
        assert_eq!(shares.iter().flat_map(|s| &s.pieces).map(|p| p.remote.len).sum::<u64>(), len);
    }

    proptest! {
        #[test]
        fn shares_cover_the_write_once(
            lens in proptest::collection::vec(0u64..20_000, 1..20), rails in 1usize..5,
            align in 1u64..5000, max_sge in 1usize..6
        ) {
            let total: u64 = lens.iter().sum();
            let mut at = 0;
            let sgl: Vec<_> = lens.iter().map(|l| { at += 30_000; local(at, *l) }).collect();
            let remote = RemoteSlice::new(1 << 20, total, RemoteKey(1));
            let shares = stripe(&sgl, remote, rails, align, max_sge).unwrap();
            prop_assert!(shares.len() <= rails);
            let largest = total.div_ceil(rails as u64).next_multiple_of(align).max(align);
            let (mut address, mut sources) = (remote.address, Vec::new());
            for (i, share) in shares.iter().enumerate() {
                prop_assert_eq!(share.rail, i);
                prop_assert_eq!((address - remote.address) % align, 0);
                prop_assert!(share.pieces.iter().map(|p| p.remote.len).sum::<u64>() <= largest);
                for piece in &share.pieces {
                    prop_assert!(piece.sgl.len() <= max_sge && (piece.remote.len > 0 || total == 0));
                    prop_assert_eq!(piece.remote.address, address);
                    prop_assert_eq!(piece.sgl.iter().map(|s| s.len).sum::<u64>(), piece.remote.len);
                    address += piece.remote.len;
                    sources.extend(piece.sgl.iter().flat_map(|s| s.offset..s.offset + s.len));
                }
            }
            prop_assert_eq!(address, remote.address + total);
            let want: Vec<u64> = sgl.iter().flat_map(|s| s.offset..s.offset + s.len).collect();
            prop_assert_eq!(sources, want);
        }

        #[test]
        fn writes_fill_the_ranges_of_a_body_one_after_the_other(
            lens in proptest::collection::vec(0u64..500, 0..20), cuts in proptest::collection::vec(0u64..400, 1..24),
            max_sge in 1usize..6, max_bytes in 64u64..300
        ) {
            let total: u64 = lens.iter().sum();
            // The last range has what is left, and the ranges lie in another order than they are filled.
            let (mut ranges, mut left) = (Vec::new(), total);
            for (n, cut) in (0u64..).zip(&cuts) {
                let len = if n + 1 == cuts.len() as u64 { left } else { left.min(*cut) };
                ranges.push(RemoteSlice::new(((30 - n) << 20) + n, len, RemoteKey(2 + n as u32)));
                left -= len;
            }
            let grant = SlotGrant { remote: RemoteSlice::new(0, 64, RemoteKey(1)), body: ranges.clone(), ..slot(0, total + 64) };
            let mut at = 10_000;
            let body: Vec<_> = lens.iter().map(|l| { at += 600; local(at, *l) }).collect();
            let out = pieces(local(0, 64), &body, &grant, &limits(max_sge, max_bytes)).unwrap();
            let (last, writes) = out.split_last().unwrap();
            prop_assert_eq!((last.sgl.to_vec(), last.remote), (vec![local(0, 64)], grant.remote));
            let mut filled = ranges.iter().flat_map(|range| (0..range.len).map(|at| (range.key(), range.address + at)));
            let mut sources = body.iter().flat_map(|s| s.offset..s.offset + s.len);
            for write in writes {
                prop_assert!(write.sgl.len() <= max_sge && write.remote.len <= max_bytes && write.remote.len > 0);
                for at in 0..write.remote.len {
                    prop_assert_eq!(filled.next(), Some((write.remote.key(), write.remote.address + at)));
                }
                for source in write.sgl.iter().flat_map(|s| s.offset..s.offset + s.len) {
                    prop_assert_eq!(sources.next(), Some(source));
                }
            }
            prop_assert_eq!((filled.next(), sources.next()), (None, None));
            // One byte more does not fit.
            let longer: Vec<_> = body.iter().copied().chain([local(0, 1)]).collect();
            prop_assert_eq!(pieces(local(0, 64), &longer, &grant, &limits(max_sge, max_bytes)), None);
        }

        #[test]
        fn writes_cover_the_slot_once_in_order(
            lens in proptest::collection::vec(0u64..500, 0..20), max_sge in 1usize..6, max_bytes in 64u64..300,
            is_apart in proptest::bool::ANY
        ) {
            let total: u64 = 64 + lens.iter().sum::<u64>();
            let mut grant = slot(1 << 20, total);
            if is_apart {
                // Here too the body comes behind the header. Only the keys differ.
                grant.remote.len = 64;
                grant.body = vec![RemoteSlice::new((1 << 20) + 64, total - 64, RemoteKey(2))];
            }
            let mut at = 10_000;
            let body: Vec<_> = lens.iter().map(|l| { at += 600; local(at, *l) }).collect();
            let out = pieces(local(0, 64), &body, &grant, &limits(max_sge, max_bytes)).unwrap();
            prop_assert_eq!(out.last().unwrap().sgl[0], local(0, 64));
            let mut sorted = out.clone();
            sorted.sort_by_key(|p| p.remote.address);
            let mut address = grant.remote.address;
            for p in &sorted {
                prop_assert_eq!(p.remote.key(), RemoteKey(if is_apart && p.remote.address > 1 << 20 { 2 } else { 1 }));
                prop_assert!(p.sgl.len() <= max_sge && p.remote.len <= max_bytes);
                prop_assert_eq!(p.remote.address, address);
                prop_assert_eq!(p.sgl.iter().map(|s| s.len).sum::<u64>(), p.remote.len);
                address += p.remote.len;
            }
            prop_assert_eq!(address, grant.remote.address + total);
            let flat: Vec<u64> = sorted.iter().flat_map(|p| p.sgl.iter().flat_map(|s| s.offset..s.offset + s.len)).collect();
            let want: Vec<u64> = (0..64).chain(body.iter().flat_map(|s| s.offset..s.offset + s.len)).collect();
            prop_assert_eq!(flat, want);
        }
    }
}
