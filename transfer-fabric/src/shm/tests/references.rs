//! Segments that the peer's workers read by reference.

use super::*;
use crate::conformance::pair::{Heard, Link, Pair};
use transfer_memory::segment::is_marked;

const EXTRA: SegmentId = SegmentId(2);

/// Returns two fabrics that refer to each other's memory, their link, and the link's mark, which is the same on both
/// sides.
fn referring() -> (Pair<ShmRig>, Link, u64) {
    let mut pair = Pair::new(ShmRig::referring(), 1 << 16);
    let link = pair.connect(0);
    let marks = [0, 1].map(|side| {
        let of = move |h: &Heard| match h {
            Heard::References(_, mark) => Some(*mark),
            _ => None,
        };
        pair.hear(side, "References", of)
    });
    assert_eq!(marks[0], marks[1]);
    (pair, link, marks[0])
}

/// Makes another segment of side 0, which side 1 keeps. Returns it as each side sees it.
fn kept(pair: &mut Pair<ShmRig>, link: Link) -> [Arc<Segment>; 2] {
    let own = pair.rig.memory(8192);
    pair.fabric(0).register(EXTRA, own.clone()).unwrap();
    pair.fabric(0).sharing().unwrap().share(link.0[0], EXTRA).unwrap();
    let came = |h: &Heard| matches!(h, Heard::SegmentCame(_, 2)).then_some(());
    pair.hear(1, "SegmentCame", came);
    let (theirs, len) = pair.fabric(1).sharing().unwrap().keep(link.0[1], EXTRA.0).unwrap();
    assert_eq!(len, 8192);
    let kept = |h: &Heard| matches!(h, Heard::SegmentKept(_, EXTRA)).then_some(());
    pair.hear(0, "SegmentKept", kept);
    [own, theirs]
}

/// A kept segment can be read, and is marked until its keeper drops it, even after the end of the link. The mark of
/// another link says nothing.
#[test]
fn kept_segment_is_marked_until_it_is_dropped() {
    let (mut pair, link, mark) = referring();
    let [own, theirs] = kept(&mut pair, link);
    own.mapping().copy_in(100, b"here").unwrap();
    let mut seen = [0; 4];
    theirs.mapping().copy_out(100, &mut seen).unwrap();
    assert_eq!(&seen, b"here");
    // The first fabric of the rig has incarnation 1.
    assert!(own.is_referenced(mark) && is_marked(own.fd(), 1).unwrap() && !own.is_referenced(mark ^ 8));
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("done".into()));
    pair.dead(link);
    assert!(own.is_referenced(mark), "it is still kept");
    drop(theirs);
    pair.until("the peer to let go", |_| !own.is_referenced(mark) && !is_marked(own.fd(), 1).unwrap());
}

#[test]
fn a_segment_that_ends_is_taken_back() {
    let (mut pair, link, mark) = referring();
    let [own, theirs] = kept(&mut pair, link);
    pair.fabric(0).deregister(EXTRA).unwrap();
    let gone = |h: &Heard| matches!(h, Heard::SegmentGone(_, 2)).then_some(());
    pair.hear(1, "SegmentGone", gone);
    assert!(own.is_referenced(mark), "who keeps it decides");
    assert!(pair.fabric(1).sharing().unwrap().keep(link.0[1], EXTRA.0).is_none());
    drop(theirs);
    pair.until("the peer to let go", |_| !own.is_referenced(mark));
}

/// Both sides have to allow references, and to be in the same user namespace.
#[test]
fn references_need_both_sides() {
    for (ours, theirs) in [(1, 2), (0, 1), (1, 0), (0, 0)] {
        let mut pair = Pair::new(ShmRig::new(), 1 << 16);
        pair.fabric(0).namespace = ours;
        pair.fabric(1).namespace = theirs;
        let link = pair.connect(0);
        let segment = Pair::<ShmRig>::SEGMENT;
        let refused = pair.fabric(0).sharing().unwrap().share(link.0[0], segment).unwrap_err();
        assert!(matches!(refused, PostError::Unsupported { .. }), "{refused}");
        // A segment that is passed for copies is no reference.
        let remote = pair.grant(1, link, Pair::<ShmRig>::slice(0, 64));
        let work = pair.post_write(0, link, &[Pair::<ShmRig>::slice(64, 64)], remote, None).unwrap();
        pair.write_done(0, link, work);
        assert!(pair.fabric(1).sharing().unwrap().keep(link.0[1], segment.0).is_none());
        assert!(pair.sides.iter().all(|side| !side.heard.iter().any(|h| matches!(h, Heard::References(..)))));
    }
}
