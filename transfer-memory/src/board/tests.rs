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
    pub(super) hazards: SessionHazards,
    pub(super) reader: BoardReader,
    own: Arc<Mapping>,
}

pub(super) fn scene(entries: u32) -> Scene {
    let (board, own) = (segment(board_bytes(entries)), segment(HAZARDS_BYTES));
    let writer = BoardWriter::new(board.mapping().clone()).unwrap();
    let life = Liveness::begin(board.mapping()).unwrap();
    let hazards = SessionHazards::new(own.mapping().clone(), 0).unwrap();
    hazards.set_open(true);
    let reader = BoardReader::new(as_others_map_it(board), own.mapping().clone(), 0).unwrap();
    Scene { writer, life: Some(life), hazards, reader, own: own.mapping().clone() }
}

/// The read-only mapping of another process.
pub(super) fn as_others_map_it(segment: Segment) -> Arc<Mapping> {
    segment.seal_writers().unwrap();
    let len = segment.len();
    Segment::adopt(segment.into_fd().unwrap(), crate::segment::Access::ReadOnly, len).unwrap().mapping().clone()
}

fn version(found: Option<Lookup>) -> Option<Snapshot> {
    found.map(|found| match found {
        Lookup::Version(snapshot) => snapshot,
        Lookup::Notice(notice) => panic!("{notice:?}"),
    })
}

impl Scene {
    fn find(&self, key: &Key) -> Option<Snapshot> {
        version(self.reader.find(key, |_| None))
    }

    fn publish(&mut self, text: &str, ticket: u64) -> Result<(), NoRoom> {
        let slice = LocalSlice { segment: SegmentId(7), offset: ticket * 64, len: 24 };
        self.writer.publish(&key(text), ticket, Version(ticket + 100), &meta(&[2, 3]), slice)
    }

    /// Unlinks the entry of a ticket. Returns whether no hazard pointer names it.
    fn withdraw(&mut self, ticket: u64) -> bool {
        self.writer.unlink(ticket);
        self.writer.fence_before_scan();
        !self.hazards.is_protected(ticket)
    }
}

#[test]
fn published_versions_are_found_whole_and_nothing_else_is() {
    let mut s = scene(64);
    assert_eq!(s.find(&key("a")), None);
    s.publish("a", 1).unwrap();
    s.publish("layer0/weights", 2).unwrap();
    let snapshot = s.find(&key("layer0/weights")).unwrap();
    assert_eq!((snapshot.version, &snapshot.meta), (Version(102), &meta(&[2, 3])));
    assert_eq!(snapshot.slice, LocalSlice { segment: SegmentId(7), offset: 128, len: 24 });
    for other in ["layer0/weight", "layer0/weights0", "b"] {
        assert_eq!(s.find(&key(other)), None, "{other}");
    }
    s.publish("a", 3).unwrap();
    assert_eq!(s.find(&key("a")).unwrap().version, Version(103));
    s.writer.unlink(1);
    assert!(s.find(&key("a")).is_some(), "an older ticket of the same key takes nothing away");
    s.writer.unlink(3);
    assert_eq!(s.find(&key("a")), None);
}

#[test]
fn long_keys_and_shapes_fit_up_to_the_size_of_an_entry() {
    let mut s = scene(64);
    let slice = LocalSlice { segment: SegmentId(1), offset: 0, len: 4 };
    // 58 words for dimensions and key together.
    for (rank, length, fits) in [(0, 464, true), (0, 465, false), (32, 208, true), (32, 209, false), (1, 512, false)] {
        let (text, meta) = ("k".repeat(length), meta(&vec![1; rank]));
        let shown = s.writer.publish(&key(&text), 1, Version(1), &meta, slice);
        assert_eq!(shown.is_ok(), fits, "{rank} dimensions, a key of {length} bytes");
        assert_eq!(s.find(&key(&text)).map(|snapshot| snapshot.meta), fits.then_some(meta));
        s.writer.unlink(1);
    }
}

#[test]
fn a_tensor_with_metadata_has_no_place_in_an_entry() {
    let mut s = scene(64);
    let slice = LocalSlice { segment: SegmentId(1), offset: 0, len: 128 };
    let meta = meta(&[4]).with_metadata(64).unwrap();
    assert!(s.writer.publish(&key("k"), 1, Version(1), &meta, slice).is_err());
    assert_eq!(s.find(&key("k")), None);
}

#[test]
fn keys_with_colliding_hashes_are_told_apart_until_no_entry_is_free() {
    let mut s = scene(16);
    // Keys whose hashes all select the first entry.
    let all: Vec<String> =
        (0..).map(|n| format!("k{n}")).filter(|k| hash_of(k).is_multiple_of(16)).take(PROBES + 1).collect();
    for (ticket, k) in (1..).zip(&all[..PROBES]) {
        s.publish(k, ticket).unwrap();
    }
    assert_eq!(s.publish(&all[PROBES], 99), Err(NoRoom));
    for (ticket, k) in (1..).zip(&all[..PROBES]) {
        assert_eq!(s.find(&key(k)).unwrap().version, Version(ticket + 100));
    }
    // An unlinked entry is free, and the entries behind it are still found.
    s.writer.unlink(1);
    assert!(s.find(&key(&all[PROBES - 1])).is_some());
    s.publish(&all[PROBES], 99).unwrap();
    assert_eq!(s.find(&key(&all[PROBES])).unwrap().version, Version(199));
    // A newer version replaces the entry of its own key, although no entry is free.
    s.publish(&all[1], 100).unwrap();
    assert_eq!(s.find(&key(&all[1])).unwrap().version, Version(200));
}

// Promise: board-lookups, seen to fail
#[test]
fn held_version_is_protected_until_it_is_released() {
    let mut s = scene(64);
    s.publish("k", 1).unwrap();
    let snapshot = s.find(&key("k")).unwrap();
    let (first, second) = (s.reader.hold(&snapshot).unwrap(), s.reader.hold(&snapshot).unwrap());
    assert!(!s.reader.release(&first), "it is still published, so the sidecar does not wait");
    s.publish("k", 2).unwrap();
    assert!(!s.withdraw(1));
    // Too late for the old one.
    assert_eq!(s.reader.hold(&snapshot), Err(NotHeld::Gone { tell: Some(1) }));
    assert!(s.reader.release(&second), "the sidecar waits for that");
    assert!(!s.hazards.is_protected(1));
    assert!(s.withdraw(2));
}

#[test]
fn full_bucket_refuses_and_leaves_other_buckets_alone() {
    let mut s = scene(64);
    s.publish("k", 5).unwrap();
    s.publish("other", 6).unwrap();
    let snapshot = s.find(&key("k")).unwrap();
    let hazards: Vec<HazardPointer> = (0..BUCKET_HAZARDS).map(|_| s.reader.hold(&snapshot).unwrap()).collect();
    assert_eq!(s.reader.hold(&snapshot), Err(NotHeld::NoHazardPointer));
    let other = s.reader.hold(&s.find(&key("other")).unwrap()).unwrap();
    for hazard in hazards {
        assert!(!s.reader.release(&hazard));
    }
    let _ = s.reader.release(&other);
    let again = s.reader.hold(&snapshot).unwrap();
    assert_eq!(again.ticket(), 5);
}

#[test]
fn nothing_is_held_once_the_session_or_the_sidecar_has_ended() {
    let mut s = scene(64);
    s.publish("k", 1).unwrap();
    let snapshot = s.find(&key("k")).unwrap();
    s.hazards.set_open(false);
    assert_eq!(s.reader.hold(&snapshot), Err(NotHeld::Gone { tell: None }));
    s.hazards.set_open(true);
    let _ = s.reader.hold(&snapshot).unwrap();
    drop(s.life.take());
    assert_eq!(s.reader.hold(&snapshot), Err(NotHeld::Gone { tell: None }));
}

#[test]
fn liveness_shows_a_thread_that_ends_without_unlocking() {
    let board = segment(board_bytes(8));
    let alive = || liveness::is_alive(word_of(board.mapping()));
    assert!(!alive(), "no thread has begun");
    thread::scope(|scope| {
        let ended = scope.spawn(|| {
            // As in a process that is killed: the mutex is not unlocked.
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
    assert_eq!(s.hazards.hits(), (2, (1 << 40) + 100));
}

/// Each word is compared with tickets, whatever a worker has written there.
#[test]
fn hazard_words_with_garbage_protect_a_ticket_or_nothing() {
    let mut s = scene(8);
    s.publish("k", 1).unwrap();
    s.own.copy_in(0, &vec![0xff; HAZARDS_BYTES as usize]).unwrap();
    assert!(!s.hazards.is_protected(1) && s.hazards.is_protected(u64::MAX));
    assert_eq!(s.hazards.hits(), (u64::MAX, u64::MAX));
    // The reader finds no free hazard pointer, and no open session.
    assert_eq!(s.reader.hold(&s.find(&key("k")).unwrap()), Err(NotHeld::NoHazardPointer));
    s.own.zero(0, HAZARDS_BYTES).unwrap();
    assert_eq!(s.reader.hold(&s.find(&key("k")).unwrap()), Err(NotHeld::Gone { tell: None }));
    s.own.copy_in(8 * line::OPEN as u64, &1_u64.to_le_bytes()).unwrap();
    let _ = s.reader.hold(&s.find(&key("k")).unwrap()).unwrap();
}

/// Every word of an entry changes from version to version, so a mixture of two versions shows.
// Promise: board-lookups, seen to fail
#[test]
fn entry_read_during_a_write_is_whole_or_absent() {
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
                        let Some(snapshot) = version(reader.find(&key("layer0/weights"), |_| None)) else { continue };
                        assert_eq!((snapshot.version, snapshot.meta, snapshot.slice), of(snapshot.version.0));
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut next = 1;
        // On one core the readers may not have run yet. A reader that has ended has found a mixture.
        let enough = || found.load(Ordering::Relaxed) >= 1000 || readers.iter().any(|reader| reader.is_finished());
        while next <= VERSIONS || !enough() {
            let (version, meta, slice) = of(next);
            s.writer.publish(&key("layer0/weights"), next, version, &meta, slice).unwrap();
            next += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// One thread publishes versions, and reuses the memory of each as soon as no hazard pointer names it. Other threads
/// look them up. The versions that they hold must not change.
// Promise: board-lookups, seen to fail
#[test]
fn held_version_is_never_overwritten() {
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
                    let Some(snapshot) = version(reader.find(&key("k"), |_| None)) else { continue };
                    // The version may be replaced, and its memory reused, before the hazard pointer is set.
                    thread::yield_now();
                    let Ok(hazard) = reader.hold(&snapshot) else { continue };
                    let slot = &memory[snapshot.slice.offset as usize];
                    for _ in 0..3 {
                        assert_eq!(slot.load(Ordering::Relaxed), snapshot.version.0, "it changed while it was held");
                        thread::yield_now();
                    }
                    held.fetch_add(1, Ordering::Relaxed);
                    let _ = reader.release(&hazard);
                }
            });
        }
        let mut free: Vec<usize> = (0..SLOTS).collect();
        let mut pending: Vec<(u64, usize)> = Vec::new();
        let mut shown: Option<(u64, usize)> = None;
        for ticket in 1..=VERSIONS {
            let slot = loop {
                pending.retain(|(ticket, slot)| {
                    let is_protected = s.hazards.is_protected(*ticket);
                    if !is_protected {
                        free.push(*slot);
                    }
                    is_protected
                });
                match free.pop() {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            memory[slot].store(ticket, Ordering::Relaxed);
            let slice = LocalSlice { segment: SegmentId(1), offset: slot as u64, len: 8 };
            s.writer.publish(&key("k"), ticket, Version(ticket), &meta(&[2]), slice).unwrap();
            if let Some((before, slot)) = shown.replace((ticket, slot)) {
                s.writer.unlink(before);
                s.writer.fence_before_scan();
                pending.push((before, slot));
            }
        }
        // On one core the readers may not have run yet.
        while held.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
