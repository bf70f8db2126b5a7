use super::*;
use transfer_memory::segment::{Lock, Pages, PinnedBudget, SegmentOptions};

const LINK: LinkId = LinkId(1);
const OTHER: LinkId = LinkId(2);
const SEGMENT: SegmentId = SegmentId(7);

fn segment() -> Arc<Segment> {
    let options = SegmentOptions { len: 4096, pages: Pages::Base, lock: Lock::No };
    Arc::new(Segment::create("regions", &options, &PinnedBudget::new(1 << 20)).unwrap())
}

fn slice(offset: u64, len: u64) -> LocalSlice {
    LocalSlice { segment: SEGMENT, offset, len }
}

fn regions() -> Regions {
    let mut regions = Regions::default();
    regions.register(SEGMENT, segment()).unwrap();
    regions
}

#[test]
fn a_grant_opens_its_range_to_its_link_only() {
    let mut regions = regions();
    let remote = regions.grant(LINK, slice(64, 128), 9).unwrap();
    assert_eq!(regions.place(LINK, remote).unwrap().unwrap().offset, 64);
    assert_eq!(regions.place(LINK, remote.sub(100, 28).unwrap()).unwrap().unwrap().offset, 164);
    assert_eq!(regions.place(OTHER, remote).unwrap_err(), WriteRefused::ForeignKey(remote.key()));
    for (address, len) in [(63, 2), (64, 129), (191, 2), (192, 1), (u64::MAX, 2), (64, u64::MAX)] {
        let refused = regions.place(LINK, RemoteSlice { address, len, ..remote }).unwrap_err();
        assert!(matches!(refused, WriteRefused::OutOfBounds { .. }), "{address} {len}");
    }
    assert!(regions.place(LINK, RemoteSlice::new(0, 0, RemoteKey(1))).unwrap().is_none());
}

#[test]
fn a_grant_ends_with_its_link_its_segment_or_by_itself() {
    let mut regions = regions();
    let a = regions.grant(LINK, slice(0, 64), 1).unwrap();
    let b = regions.grant(LINK, slice(0, 64), 2).unwrap();
    let c = regions.grant(OTHER, slice(0, 64), 3).unwrap();
    assert!(!regions.revoke(OTHER, a.key(), 1));
    assert!(!regions.revoke(LINK, a.key(), 2), "it is another grant's");
    assert!(regions.revoke(LINK, a.key(), 1));
    assert!(!regions.revoke(LINK, a.key(), 1));
    assert_eq!(regions.place(LINK, a).unwrap_err(), WriteRefused::UnknownKey(a.key()));
    regions.revoke_all(LINK);
    assert_eq!(regions.place(LINK, b).unwrap_err(), WriteRefused::UnknownKey(b.key()));
    assert_eq!(regions.deregister(SEGMENT).unwrap(), [(OTHER, c.key(), 3)]);
    assert_eq!(regions.place(OTHER, c).unwrap_err(), WriteRefused::UnknownKey(c.key()));
    assert_eq!(regions.deregister(SEGMENT), Err(FabricError::UnknownSegment(SEGMENT)));
    assert_eq!(regions.grant(LINK, slice(0, 64), 9), Err(PostError::BadLocalSlice(slice(0, 64))));
}

#[test]
fn only_registered_writable_memory_is_granted() {
    let mut regions = regions();
    assert_eq!(regions.register(SEGMENT, segment()), Err(FabricError::AlreadyRegistered(SEGMENT)));
    for bad in [slice(4096, 1), slice(0, 4097), slice(u64::MAX, 1)] {
        assert_eq!(regions.grant(LINK, bad, 9), Err(PostError::BadLocalSlice(bad)));
        assert!(regions.source(&bad).is_err());
    }
    let written = segment();
    let fd = written.fd().try_clone_to_owned().unwrap();
    let read_only = Segment::adopt(fd, Access::ReadOnly, written.len()).unwrap();
    regions.register(SegmentId(8), Arc::new(read_only)).unwrap();
    let range = LocalSlice { segment: SegmentId(8), offset: 0, len: 64 };
    assert!(regions.source(&range).is_ok());
    assert_eq!(regions.grant(LINK, range, 9), Err(PostError::BadLocalSlice(range)));
}
