use super::layout::line;
use super::*;
use crate::segment::{Lock, Mapping, Pages, PinnedBudget, Segment, SegmentOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::{DType, Key, TensorMeta, Version};

pub(super) fn segment(len: u64) -> Segment {
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    Segment::create("board-test", &options, &PinnedBudget::new(1 << 30)).unwrap()
}

pub(super) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(super) fn meta(dims: &[u64]) -> TensorMeta {
    TensorMeta::of(DType::F32, dims).unwrap()
}

/// Both ends of a board, in one process. The sidecar's thread is this one.
pub(super) struct Scene {
    pub(super) writer: BoardWriter,
    pub(super) life: Option<Liveness>,
    pub(super) marks: SessionMarks,
    pub(super) reader: BoardReader,
    own: Arc<Mapping>,
}

pub(super) fn scene(entries: u32) -> Scene {
    let (board, own) = (segment(board_bytes(entries)), segment(MARKS_BYTES));
    let writer = BoardWriter::new(board.mapping().clone()).unwrap();
    let life = Liveness::begin(board.mapping()).unwrap();
    let marks = SessionMarks::new(own.mapping().clone(), 0).unwrap();
    marks.set_open(true);
    let reader = BoardReader::new(as_others_map_it(board), own.mapping().clone(), 0).unwrap();
    Scene { writer, life: Some(life), marks, reader, own: own.mapping().clone() }
}

/// Who maps it from here on only reads there.
pub(super) fn as_others_map_it(segment: Segment) -> Arc<Mapping> {
    segment.seal_writers().unwrap();
    let len = segment.len();
    Segment::adopt(segment.into_fd(), crate::segment::Access::ReadOnly, len).unwrap().mapping().clone()
}

fn version(found: Option<Found>) -> Option<Seen> {
    found.map(|found| match found {
        Found::Version(seen) => seen,
        Found::Notice(notice) => panic!("{notice:?}"),
    })
}

impl Scene {
    fn find(&self, key: &Key) -> Option<Seen> {
        version(self.reader.find(key, |_| None))
    }

    fn show(&mut self, text: &str, ticket: u64) -> Result<(), NoRoom> {
        let slice = LocalSlice { segment: SegmentId(7), offset: ticket * 64, len: 24 };
        self.writer.show(&key(text), ticket, Version(ticket + 100), &meta(&[2, 3]), slice)
    }

    /// Shows it no more, and whether nobody has marked it.
    fn withdraw(&mut self, ticket: u64) -> bool {
        self.writer.hide(ticket);
        self.writer.settle();
        !self.marks.is_marked(ticket)
    }
}

#[test]
fn what_is_shown_is_found_whole_and_nothing_else_is() {
    let mut s = scene(64);
    assert_eq!(s.find(&key("a")), None);
    s.show("a", 1).unwrap();
    s.show("layer0/weights", 2).unwrap();
    let seen = s.find(&key("layer0/weights")).unwrap();
    assert_eq!((seen.version, &seen.meta), (Version(102), &meta(&[2, 3])));
    assert_eq!(seen.slice, LocalSlice { segment: SegmentId(7), offset: 128, len: 24 });
    for other in ["layer0/weight", "layer0/weights0", "b"] {
        assert_eq!(s.find(&key(other)), None, "{other}");
    }
    s.show("a", 3).unwrap();
    assert_eq!(s.find(&key("a")).unwrap().version, Version(103));
    s.writer.hide(1);
    assert!(s.find(&key("a")).is_some(), "an older ticket of the same key takes nothing away");
    s.writer.hide(3);
    assert_eq!(s.find(&key("a")), None);
}

#[test]
fn long_keys_and_shapes_fit_up_to_the_size_of_an_entry() {
    let mut s = scene(64);
    let slice = LocalSlice { segment: SegmentId(1), offset: 0, len: 4 };
    // 58 words for dimensions and key together.
    for (rank, length, fits) in [(0, 464, true), (0, 465, false), (32, 208, true), (32, 209, false), (1, 512, false)] {
        let (text, meta) = ("k".repeat(length), meta(&vec![1; rank]));
        let shown = s.writer.show(&key(&text), 1, Version(1), &meta, slice);
        assert_eq!(shown.is_ok(), fits, "{rank} dimensions, a key of {length} bytes");
        assert_eq!(s.find(&key(&text)).map(|seen| seen.meta), fits.then_some(meta));
        s.writer.hide(1);
    }
}

#[test]
fn keys_that_meet_in_one_place_are_told_apart_until_there_is_no_room() {
    let mut s = scene(16);
    // Keys that all begin at the first place of the table.
    let all: Vec<String> =
        (0..).map(|n| format!("k{n}")).filter(|k| hash_of(k).is_multiple_of(16)).take(PROBES + 1).collect();
    for (ticket, k) in (1..).zip(&all[..PROBES]) {
        s.show(k, ticket).unwrap();
    }
    assert_eq!(s.show(&all[PROBES], 99), Err(NoRoom));
    for (ticket, k) in (1..).zip(&all[..PROBES]) {
        assert_eq!(s.find(&key(k)).unwrap().version, Version(ticket + 100));
    }
    // One that goes leaves its place, and hides nobody behind it.
    s.writer.hide(1);
    assert!(s.find(&key(&all[PROBES - 1])).is_some());
    s.show(&all[PROBES], 99).unwrap();
    assert_eq!(s.find(&key(&all[PROBES])).unwrap().version, Version(199));
    // A newer version takes the place of its own key, though there is no free one.
    s.show(&all[1], 100).unwrap();
    assert_eq!(s.find(&key(&all[1])).unwrap().version, Version(200));
}

#[test]
fn what_is_held_is_marked_until_it_is_released() {
    let mut s = scene(64);
    s.show("k", 1).unwrap();
    let seen = s.find(&key("k")).unwrap();
    let (first, second) = (s.reader.hold(&seen).unwrap(), s.reader.hold(&seen).unwrap());
    assert!(!s.reader.release(&first), "it is shown still: nobody waits for that");
    s.show("k", 2).unwrap();
    assert!(!s.withdraw(1));
    // Too late for the old one.
    assert_eq!(s.reader.hold(&seen), Err(NotHeld::Gone { tell: Some(1) }));
    assert!(s.reader.release(&second), "the sidecar waits for that");
    assert!(!s.marks.is_marked(1));
    assert!(s.withdraw(2));
}

#[test]
fn a_full_bucket_is_no_mark_and_no_other_bucket_s_concern() {
    let mut s = scene(64);
    s.show("k", 5).unwrap();
    s.show("other", 6).unwrap();
    let seen = s.find(&key("k")).unwrap();
    let marks: Vec<Mark> = (0..BUCKET_MARKS).map(|_| s.reader.hold(&seen).unwrap()).collect();
    assert_eq!(s.reader.hold(&seen), Err(NotHeld::NoMark));
    let other = s.reader.hold(&s.find(&key("other")).unwrap()).unwrap();
    for mark in marks {
        assert!(!s.reader.release(&mark));
    }
    let _ = s.reader.release(&other);
    let again = s.reader.hold(&seen).unwrap();
    assert_eq!(again.ticket(), 5);
}

#[test]
fn of_a_closed_session_and_of_a_sidecar_that_has_ended_nothing_is_held() {
    let mut s = scene(64);
    s.show("k", 1).unwrap();
    let seen = s.find(&key("k")).unwrap();
    s.marks.set_open(false);
    assert_eq!(s.reader.hold(&seen), Err(NotHeld::Gone { tell: None }));
    s.marks.set_open(true);
    let _ = s.reader.hold(&seen).unwrap();
    drop(s.life.take());
    assert_eq!(s.reader.hold(&seen), Err(NotHeld::Gone { tell: None }));
}

#[test]
fn a_thread_that_ends_without_a_word_is_seen_to_have_ended() {
    let board = segment(board_bytes(8));
    let alive = || liveness::is_alive(word_of(board.mapping()));
    assert!(!alive(), "nobody has begun");
    thread::scope(|scope| {
        let ended = scope.spawn(|| {
            // As of a process that is killed: nothing is dropped, nothing unlocked.
            std::mem::forget(Liveness::begin(board.mapping()).unwrap());
            assert!(alive());
        });
        ended.join().unwrap();
    });
    // The kernel marks it before the thread counts as ended.
    assert!(!alive());
    assert_ne!(word_of(board.mapping()), 0);
}

fn word_of(mapping: &Mapping) -> u64 {
    let mut bytes = [0; 8];
    mapping.copy_out(0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn hits_are_counted() {
    let s = scene(8);
    s.reader.count(100);
    s.reader.count(1 << 40);
    assert_eq!(s.marks.hits(), (2, (1 << 40) + 100));
}

/// Whatever a worker writes over its marks: what is compared with them is a ticket or is not.
#[test]
fn scribbles_over_the_marks_are_marks_or_nothing() {
    let mut s = scene(8);
    s.show("k", 1).unwrap();
    s.own.copy_in(0, &vec![0xff; MARKS_BYTES as usize]).unwrap();
    assert!(!s.marks.is_marked(1) && s.marks.is_marked(u64::MAX));
    assert_eq!(s.marks.hits(), (u64::MAX, u64::MAX));
    // It finds no free mark, and no open session.
    assert_eq!(s.reader.hold(&s.find(&key("k")).unwrap()), Err(NotHeld::NoMark));
    s.own.zero(0, MARKS_BYTES).unwrap();
    assert_eq!(s.reader.hold(&s.find(&key("k")).unwrap()), Err(NotHeld::Gone { tell: None }));
    s.own.copy_in(8 * line::OPEN as u64, &1_u64.to_le_bytes()).unwrap();
    let _ = s.reader.hold(&s.find(&key("k")).unwrap()).unwrap();
}

/// Every word of an entry changes from version to version, so a mixture of two versions shows.
#[test]
fn an_entry_that_is_read_while_it_is_written_is_found_whole_or_not_at_all() {
    const VERSIONS: u64 = 20_000;
    let mut s = scene(8);
    let of = |version: u64| {
        let meta = meta(&vec![version % 7 + 1; (version % 5) as usize]);
        let slice = LocalSlice { segment: SegmentId(version as u32), offset: version * 64, len: meta.len_bytes() };
        (Version(version), meta, slice)
    };
    let (stop, found) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader = &s.reader;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(seen) = version(reader.find(&key("layer0/weights"), |_| None)) else { continue };
                        assert_eq!((seen.version, seen.meta, seen.slice), of(seen.version.0));
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut next = 1;
        // On a machine of one core the readers may not have come to anything by then. One that has ended has found a mixture.
        let enough = || found.load(Ordering::Relaxed) >= 1000 || readers.iter().any(|reader| reader.is_finished());
        while next <= VERSIONS || !enough() {
            let (version, meta, slice) = of(next);
            s.writer.show(&key("layer0/weights"), next, version, &meta, slice).unwrap();
            next += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// One thread shows version after version and uses the memory of each again as soon as it may; others look up, and what they hold must stay
/// as it is.
#[test]
fn what_is_held_is_never_written_again() {
    const SLOTS: usize = 4;
    const VERSIONS: u64 = 20_000;
    let mut s = scene(8);
    let memory: [AtomicU64; SLOTS] = Default::default();
    let (stop, held) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader = &s.reader;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(seen) = version(reader.find(&key("k"), |_| None)) else { continue };
                    // What it has found may be replaced, and its memory used again, before it is marked.
                    thread::yield_now();
                    let Ok(mark) = reader.hold(&seen) else { continue };
                    let slot = &memory[seen.slice.offset as usize];
                    for _ in 0..3 {
                        assert_eq!(slot.load(Ordering::Relaxed), seen.version.0, "it changed while it was held");
                        thread::yield_now();
                    }
                    held.fetch_add(1, Ordering::Relaxed);
                    let _ = reader.release(&mark);
                }
            });
        }
        let mut free: Vec<usize> = (0..SLOTS).collect();
        let mut pending: Vec<(u64, usize)> = Vec::new();
        let mut shown: Option<(u64, usize)> = None;
        for ticket in 1..=VERSIONS {
            let slot = loop {
                pending.retain(|(ticket, slot)| {
                    let is_marked = s.marks.is_marked(*ticket);
                    if !is_marked {
                        free.push(*slot);
                    }
                    is_marked
                });
                match free.pop() {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            memory[slot].store(ticket, Ordering::Relaxed);
            let slice = LocalSlice { segment: SegmentId(1), offset: slot as u64, len: 8 };
            s.writer.show(&key("k"), ticket, Version(ticket), &meta(&[2]), slice).unwrap();
            if let Some((before, slot)) = shown.replace((ticket, slot)) {
                s.writer.hide(before);
                s.writer.settle();
                pending.push((before, slot));
            }
        }
        // On a machine of one core the readers may not have come to anything yet.
        while held.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
