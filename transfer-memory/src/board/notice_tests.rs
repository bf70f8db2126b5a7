use super::tests::{Scene, as_others_map_it, key, meta, scene, segment};
use super::*;
use crate::segment::Mapping;
use proptest::prelude::*;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::op::MAX_NOTICES;
use transfer_core::tensor::{DType, TensorMeta, Version};

const NOTICES: SegmentId = SegmentId(20);
const ARENA: SegmentId = SegmentId(21);
/// The notice under test.
const NOTICE: u16 = 3;

/// A worker's notices, as it writes them and as others map them.
struct Notices {
    writer: NoticeWriter,
    own: Arc<Mapping>,
    others: Arc<Mapping>,
}

fn notices() -> Notices {
    let segment = segment(NOTICES_BYTES);
    let own = segment.mapping().clone();
    Notices { writer: NoticeWriter::new(own.clone()).unwrap(), own, others: as_others_map_it(segment) }
}

impl Notices {
    fn find(&self, reader: &BoardReader, text: &str) -> Option<Watch> {
        let found = reader.find(&key(text), |segment| (segment == NOTICES).then(|| self.others.clone()))?;
        match found {
            Lookup::Notice(watch) => Some(watch),
            Lookup::Version(snapshot) => panic!("{snapshot:?}"),
        }
    }

    fn announce(&self, ticket: u64) {
        self.writer.begin_update(NOTICE);
        self.publish(ticket);
    }

    fn publish(&self, ticket: u64) {
        self.writer.publish(NOTICE, ticket, Version(ticket + 100), &meta(&[2, 3]), ticket * 64);
        self.writer.wake(NOTICE);
    }
}

fn name(board: &mut BoardWriter, text: &str, ticket: u64) {
    board.publish_notice(&key(text), ticket, (NOTICES, NOTICE), ARENA).unwrap();
}

/// A board whose only entry, of ticket 1, names a notice that shows nothing yet.
fn named() -> (Scene, Notices, Watch) {
    let (mut s, n) = (scene(8), notices());
    name(&mut s.writer, "k", 1);
    let watch = n.find(&s.reader, "k").unwrap();
    (s, n, watch)
}

#[test]
fn published_notice_is_found_whole_and_can_be_held() {
    let (mut s, n, watch) = named();
    assert_eq!((watch.look().snapshot, watch.look().is_open()), (None, false));
    n.announce(5);
    let look = watch.look();
    let snapshot = look.snapshot.clone().unwrap();
    assert_eq!((snapshot.version, &snapshot.meta), (Version(105), &meta(&[2, 3])));
    assert_eq!(snapshot.slice, LocalSlice { segment: ARENA, offset: 320, len: 24 });
    assert!(watch.is_as(&look) && watch.is_named(&s.reader) && !look.is_open());
    let hazard = s.reader.hold(&snapshot).unwrap();
    assert_eq!(hazard.ticket(), 5);
    s.writer.fence_before_scan();
    assert!(s.hazards.is_protected(5));
    assert!(!s.reader.release(&hazard), "it is still published, so the sidecar does not wait");
    assert!(!s.hazards.is_protected(5));
    n.announce(6);
    assert!(!watch.is_as(&look));
    assert_eq!(watch.look().snapshot.unwrap().version, Version(106));
    s.writer.unlink(1);
    assert!(!watch.is_named(&s.reader));
}

type End = fn(&mut Scene, &Notices);

#[test]
fn withdrawn_version_of_a_notice_stays_protected_while_it_is_held() {
    let ends: [(&str, End); 6] = [
        ("being updated", |_, n| n.writer.begin_update(NOTICE)),
        ("replaced", |_, n| n.announce(6)),
        ("cleared", |_, n| {
            n.writer.begin_update(NOTICE);
            n.writer.clear(NOTICE);
        }),
        ("unlinked", |s, _| s.writer.unlink(1)),
        ("a version in its place", |s, _| publish_version(&mut s.writer)),
        ("named again", |s, _| name(&mut s.writer, "k", 2)),
    ];
    for (what, end) in ends {
        let (mut s, n, watch) = named();
        n.announce(5);
        let snapshot = watch.look().snapshot.unwrap();
        let hazard = s.reader.hold(&snapshot).unwrap();
        end(&mut s, &n);
        s.writer.fence_before_scan();
        assert!(s.hazards.is_protected(5), "{what}");
        assert_eq!(s.reader.hold(&snapshot), Err(NotHeld::Gone { tell: Some(5) }), "{what}: too late");
        assert!(s.reader.release(&hazard), "{what}: the sidecar waits for that");
        assert!(!s.hazards.is_protected(5), "{what}");
    }
}

fn publish_version(board: &mut BoardWriter) {
    let slice = LocalSlice { segment: ARENA, offset: 0, len: 24 };
    board.publish(&key("k"), 2, Version(2), &meta(&[2, 3]), slice).unwrap();
}

#[test]
fn notice_shows_no_version_during_an_update() {
    let (_, n, watch) = named();
    n.announce(5);
    n.writer.begin_update(NOTICE);
    let down = watch.look();
    assert_eq!((&down.snapshot, down.is_open(), watch.is_as(&down)), (&None, true, true));
    n.writer.begin_update(NOTICE);
    assert!(watch.is_as(&down), "an update has already begun");
    n.writer.clear(NOTICE);
    let cleared = watch.look();
    assert_eq!((&cleared.snapshot, cleared.is_open(), watch.is_as(&down)), (&None, false, false));
    n.announce(6);
    assert_eq!(watch.look().snapshot.unwrap().version, Version(106));
}

#[test]
fn eleven_dimensions_fit_a_notice_and_twelve_do_not() {
    let (_, n, watch) = named();
    for rank in [0, 1, 11] {
        let meta = TensorMeta::of(DType::C64, &(1..=rank).collect::<Vec<u64>>()).unwrap();
        assert!(NoticeWriter::fits(&meta));
        n.writer.begin_update(NOTICE);
        n.writer.publish(NOTICE, 5, Version(u64::MAX), &meta, 64);
        let snapshot = watch.look().snapshot.unwrap();
        assert_eq!((snapshot.slice.len, snapshot.meta, snapshot.version), (meta.len_bytes(), meta, Version(u64::MAX)));
    }
    assert!(!NoticeWriter::fits(&meta(&[1; 12])));
    assert!(!NoticeWriter::fits(&meta(&[1]).with_metadata(1).unwrap()));
}

#[test]
fn notices_do_not_overlap_and_stay_within_their_segment() {
    let (mut s, n) = (scene(8), notices());
    let mut find = |segment, notice, ticket| {
        s.writer.publish_notice(&key("k"), ticket, (segment, notice), ARENA).unwrap();
        n.find(&s.reader, "k")
    };
    let watches: Vec<Watch> = (0..MAX_NOTICES).map(|i| find(NOTICES, i, u64::from(i) + 1).unwrap()).collect();
    assert_eq!(find(NOTICES, MAX_NOTICES, 1000), None, "behind the last one");
    assert_eq!(find(NOTICES, u16::MAX, 1001), None);
    assert_eq!(find(ARENA, 0, 1002), None, "a segment that is not mapped");
    let meta = meta(&[1; 11]);
    for i in 0..=MAX_NOTICES {
        n.writer.begin_update(i);
        n.writer.publish(i, 1, Version(i.into()), &meta, 0);
    }
    for (i, watch) in watches.iter().enumerate() {
        assert_eq!(
            watch.look().snapshot.map(|snapshot| (snapshot.version, snapshot.meta)),
            Some((Version(i as u64), meta.clone()))
        );
    }
}

/// Writes words as a hostile worker may.
fn scribble(n: &Notices, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    n.own.copy_in(u64::from(NOTICE) * NOTICE_BYTES, &bytes).unwrap();
}

#[test]
fn notice_that_names_no_tensor_of_the_arena_is_ignored() {
    let (_, n, watch) = named();
    let f32 = DType::F32 as u64;
    // Sequence, ticket, version, shape, offset, two dimensions.
    let sees = |words: [u64; 7]| {
        scribble(&n, &words);
        watch.look().snapshot.is_some()
    };
    assert!(sees([2, 5, 7, f32 | 2 << 8, 64, 2, 3]));
    for (what, words) in [
        ("being written", [3, 5, 7, f32 | 2 << 8, 64, 2, 3]),
        ("ticket 0", [2, 0, 7, f32 | 2 << 8, 64, 2, 3]),
        ("no element type", [2, 5, 7, 2 << 8, 64, 2, 3]),
        ("an unknown element type", [2, 5, 7, 99 | 2 << 8, 64, 2, 3]),
        ("another notice", [2, 5, 7, 0xff | 2 << 8, 64, 2, 3]),
        ("more dimensions than there are", [2, 5, 7, f32 | 12 << 8, 64, 2, 3]),
        ("far more dimensions", [2, 5, 7, f32 | 255 << 8, 64, 2, 3]),
        ("not aligned", [2, 5, 7, f32 | 2 << 8, 32, 2, 3]),
        ("larger than any memory", [2, 5, 7, f32 | 2 << 8, 64, 1 << 40, 1 << 40]),
    ] {
        assert!(!sees(words), "{what}");
    }
}

fn hostile_word() -> impl Strategy<Value = u64> {
    let shape = (0..20_u64, 0..14_u64).prop_map(|(dtype, rank)| dtype | rank << 8);
    prop_oneof![0..4_u64, shape, (0..1000_u64).prop_map(|n| n * 32), any::<u64>()]
}

proptest! {
    #[test]
    fn notice_with_random_words_names_a_tensor_of_the_arena_or_nothing(
        words in prop::collection::vec(hostile_word(), NOTICE_BYTES as usize / 8),
    ) {
        let (s, n, watch) = named();
        scribble(&n, &words);
        let look = watch.look();
        prop_assert_eq!(look.is_open(), words[0] % 2 == 1);
        if let Some(snapshot) = look.snapshot {
            prop_assert!(words[0].is_multiple_of(2) && words[1] != 0);
            prop_assert_eq!((snapshot.slice.segment, snapshot.slice.offset % 64), (ARENA, 0));
            prop_assert_eq!(snapshot.slice.len, snapshot.meta.len_bytes());
            prop_assert!(snapshot.meta.shape().dims().len() <= 11);
            let hazard = s.reader.hold(&snapshot).unwrap();
            prop_assert!(!s.reader.release(&hazard));
        }
    }
}

/// A deadline that no test reaches.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn can_wait() -> bool {
    let can = Watch::is_possible();
    if !can {
        eprintln!("not tested: this system has no futex_waitv");
    }
    can
}

/// Starts a thread that waits on several words. Returns once it sleeps.
fn asleep<'s>(scope: &'s Scope<'s, '_>, wait: impl FnOnce() -> bool + Send + 's) -> ScopedJoinHandle<'s, bool> {
    let (tell, told) = mpsc::channel();
    let waiter = scope.spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        wait()
    });
    let path = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
    let call = libc::SYS_futex_waitv.to_string();
    // If it has ended instead, there is no such file.
    while std::fs::read_to_string(&path).unwrap().split_whitespace().next() != Some(&call) {
        thread::yield_now();
    }
    waiter
}

/// Everything that must wake a waiting thread.
struct Wakers<'a> {
    board: &'a mut BoardWriter,
    hazards: &'a SessionHazards,
    notices: &'a Notices,
    alarm: &'a Alarm,
}

type Wake = fn(Wakers<'_>);

// Promise: woken-waiters, seen to fail
#[test]
fn sleeping_waiter_is_woken_by_every_relevant_change() {
    let all: [(&str, bool, Wake); 9] = [
        ("replaced", false, |w| w.notices.announce(6)),
        ("cleared", false, |w| {
            w.notices.writer.begin_update(NOTICE);
            w.notices.writer.clear(NOTICE);
            w.notices.writer.wake(NOTICE);
        }),
        ("published", true, |w| w.notices.publish(6)),
        ("unlinked during an update", true, |w| w.board.unlink(1)),
        ("unlinked", false, |w| w.board.unlink(1)),
        ("a version in its place", false, |w| publish_version(w.board)),
        ("named again", false, |w| name(w.board, "k", 2)),
        ("the alarm", false, |w| w.alarm.ring()),
        ("hazard pointers no longer honoured", false, |w| w.hazards.set_open(false)),
    ];
    for (what, is_updating, wake) in all {
        if !can_wait() {
            return;
        }
        let (mut s, n, watch) = named();
        let alarm = Alarm::default();
        n.announce(5);
        if is_updating {
            n.writer.begin_update(NOTICE);
        }
        let look = watch.look();
        assert_eq!(look.is_open(), is_updating);
        let reader = &s.reader;
        let wait = || watch.wait(reader, &look, &alarm, far());
        thread::scope(|scope| {
            let waiters = [asleep(scope, wait), asleep(scope, wait)];
            wake(Wakers { board: &mut s.writer, hazards: &s.hazards, notices: &n, alarm: &alarm });
            for waiter in waiters {
                assert!(waiter.join().unwrap(), "{what}: it was not woken");
            }
        });
        assert!(wait(), "{what}: a later waiter would sleep");
    }
}

type EndLife = fn(Option<Liveness>);

/// The kernel wakes only one waiter, and that one wakes the others.
#[test]
fn all_sleeping_waiters_are_woken_when_the_sidecar_s_thread_ends() {
    // `mem::forget`: as in a process that is killed, the mutex is not unlocked.
    let ends: [(&str, EndLife); 2] = [("killed", mem::forget), ("in order", drop)];
    for (how, end_life) in ends {
        if !can_wait() {
            return;
        }
        let (n, alarm) = (notices(), Alarm::default());
        let (to_workers, from_sidecar) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let sidecar = scope.spawn(move || {
                let mut s = scene(8);
                name(&mut s.writer, "k", 1);
                to_workers.send(s.reader).unwrap();
                let _ = ended.recv();
                end_life(s.life);
            });
            let reader = &from_sidecar.recv().unwrap();
            let watch = n.find(reader, "k").unwrap();
            let look = watch.look();
            thread::scope(|scope| {
                let wait = || watch.wait(reader, &look, &alarm, far());
                let waiters: Vec<_> = (0..3).map(|_| asleep(scope, wait)).collect();
                drop(end);
                for waiter in waiters {
                    assert!(waiter.join().unwrap(), "{how}: it was not woken");
                }
                assert!(wait(), "{how}: a later waiter would sleep");
            });
            sidecar.join().unwrap();
        });
    }
}

#[test]
fn waiter_returns_at_its_deadline() {
    if !can_wait() {
        return;
    }
    let (s, n, watch) = named();
    n.announce(5);
    let alarm = Alarm::default();
    for left in [Duration::ZERO, Duration::from_millis(1)] {
        assert!(!watch.wait(&s.reader, &watch.look(), &alarm, Instant::now() + left));
    }
}

#[test]
fn waiter_finds_each_version() {
    const VERSIONS: u64 = 5_000;
    if !can_wait() {
        return;
    }
    let (s, n, watch) = named();
    let (alarm, found) = (Alarm::default(), AtomicU64::new(0));
    let reader = &s.reader;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            for ticket in 1..=VERSIONS {
                loop {
                    let look = watch.look();
                    if look.snapshot.as_ref().is_some_and(|snapshot| snapshot.version == Version(ticket + 100)) {
                        break;
                    }
                    assert!(watch.wait(reader, &look, &alarm, far()), "it was not woken for {ticket}");
                }
                found.store(ticket, Ordering::Relaxed);
            }
        });
        for ticket in 1..=VERSIONS {
            n.announce(ticket);
            while found.load(Ordering::Relaxed) != ticket && !waiter.is_finished() {
                thread::yield_now();
            }
        }
    });
}

/// A worker announces versions, and the sidecar returns the memory of each as soon as no hazard pointer names it.
/// Other threads look them up. The versions that they hold must not change.
#[test]
fn held_version_of_a_notice_is_never_overwritten() {
    const SLOTS: u64 = 4;
    const VERSIONS: u64 = 20_000;
    let (s, n, watch) = named();
    let memory: [AtomicU64; SLOTS as usize] = Default::default();
    let (stop, held) = (AtomicBool::new(false), AtomicU64::new(0));
    let (push, pushed) = mpsc::channel();
    let (give_back, given_back) = mpsc::channel();
    let reader = &s.reader;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(snapshot) = watch.look().snapshot else {
                        thread::yield_now();
                        continue;
                    };
                    // It may be replaced by then.
                    thread::yield_now();
                    let Ok(hazard) = reader.hold(&snapshot) else { continue };
                    let slot = &memory[snapshot.slice.offset as usize / 64];
                    for _ in 0..3 {
                        assert_eq!(slot.load(Ordering::Relaxed), snapshot.version.0, "it changed while it was held");
                        thread::yield_now();
                    }
                    held.fetch_add(1, Ordering::Relaxed);
                    let _ = reader.release(&hazard);
                }
            });
        }
        let (n, memory) = (&n, &memory);
        scope.spawn(move || {
            for (ticket, slot) in (1..=VERSIONS).zip((0..SLOTS).chain(given_back)) {
                memory[slot as usize].store(ticket, Ordering::Relaxed);
                n.writer.begin_update(NOTICE);
                push.send((ticket, slot)).unwrap();
                // Let the sidecar be faster.
                thread::yield_now();
                n.writer.publish(NOTICE, ticket, Version(ticket), &meta(&[2]), slot * 64);
                n.writer.wake(NOTICE);
            }
        });
        let mut pending: Vec<(u64, u64)> = Vec::new();
        let mut newest: Option<(u64, u64)> = None;
        loop {
            match pushed.try_recv() {
                Ok(new) => {
                    pending.extend(newest.replace(new));
                    s.writer.fence_before_scan();
                }
                Err(mpsc::TryRecvError::Empty) => thread::yield_now(),
                Err(mpsc::TryRecvError::Disconnected) => break,
            }
            pending.retain(|(ticket, slot)| {
                let is_protected = s.hazards.is_protected(*ticket);
                if !is_protected {
                    // The worker may have finished.
                    let _ = give_back.send(*slot);
                }
                is_protected
            });
        }
        // On one core the readers may not have run yet.
        while held.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
