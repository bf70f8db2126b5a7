//! Deltas that are applied on threads of their own, since that takes longer than the data plane may be held up. A block is copied out,
//! changed in the cache of the core, and copied to the target.

use super::run::Run;
use crate::disk::MemoryRange;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use transfer_core::delta::{Applying, BLOCK_BYTES, Head, NotApplied, Part};
use transfer_core::memory::LocalSlice;

/// The most blocks that a thread makes of one version before another one has its turn: 1 MiB.
const BLOCKS_PER_TURN: usize = (1 << 20) / BLOCK_BYTES;

impl Run {
    pub(super) fn apply(&mut self, base: &[LocalSlice], (delta, to): (LocalSlice, LocalSlice), len: u64, tag: u64) {
        let base: Option<Vec<_>> = base.iter().map(|slice| self.place(*slice)).collect();
        let (Some(base), Some((delta, to))) = (base, self.place(delta).zip(self.place(to))) else {
            // The state machine names segments that exist.
            debug_assert!(false, "{delta}, {to}");
            return self.deltas.refuse(tag);
        };
        self.deltas.add(Delta { base, delta, to, len, tag, applying: None });
    }
}

/// The tag of a delta that was applied, and what has come of it.
type Applied = (u64, Result<(), NotApplied>);

/// The handle of the threads. They start when there is something to do. A drop gives up what is not done, and waits for their end.
pub(super) struct Deltas {
    /// `None` ends a thread.
    to_apply: Sender<Option<Delta>>,
    queue: Receiver<Option<Delta>>,
    tell: Sender<Applied>,
    applied: Receiver<Applied>,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    max_threads: usize,
    /// How many deltas are not applied yet.
    pending: usize,
}

/// A delta to apply. The state machine bounds how many there are: each has a range of a pool.
pub(super) struct Delta {
    /// The ranges of the base, back to back.
    pub(super) base: Vec<MemoryRange>,
    pub(super) delta: MemoryRange,
    pub(super) to: MemoryRange,
    /// The length of the version.
    pub(super) len: u64,
    pub(super) tag: u64,
    /// How far it is applied, once it has begun.
    pub(super) applying: Option<Applying>,
}

impl Deltas {
    /// The threads are to ring this bell for each delta that is applied.
    pub(super) fn new(bell: Arc<OwnedFd>) -> Deltas {
        let ((to_apply, queue), (tell, applied)) = (unbounded(), unbounded());
        let (is_over, threads, max_threads) = (Arc::default(), Vec::new(), crate::helping_threads());
        Deltas { to_apply, queue, tell, applied, bell, is_over, threads, max_threads, pending: 0 }
    }

    pub(super) fn add(&mut self, delta: Delta) {
        self.pending += 1;
        if self.threads.len() < self.pending.min(self.max_threads) {
            let (worker, thread) = (self.worker(), std::thread::Builder::new().name("transfer-delta".into()));
            self.threads.extend(thread.spawn(move || worker.run()).ok());
        }
        match self.threads.is_empty() {
            // The system allows no thread.
            true => self.worker().take_turns(delta),
            false => drop(self.to_apply.send(Some(delta))),
        }
    }

    /// Says that the memory of a delta is not there.
    fn refuse(&mut self, tag: u64) {
        self.pending += 1;
        self.worker().tell(tag, Err(NotApplied::OtherBytes));
    }

    fn worker(&self) -> Worker {
        Worker {
            queue: self.queue.clone(),
            others: self.to_apply.clone(),
            tell: self.tell.clone(),
            bell: self.bell.clone(),
            is_over: self.is_over.clone(),
            block: vec![0; BLOCK_BYTES],
            part: vec![0; BLOCK_BYTES],
        }
    }

    /// Returns one that is applied.
    pub(super) fn applied(&mut self) -> Option<Applied> {
        let applied = self.applied.try_recv().ok()?;
        self.pending -= 1;
        Some(applied)
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for _ in &self.threads {
            let _ = self.to_apply.send(None);
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that applies deltas has panicked");
            }
        }
    }
}

struct Worker {
    queue: Receiver<Option<Delta>>,
    /// The other end of the queue, for what goes on when others have had their turn.
    others: Sender<Option<Delta>>,
    tell: Sender<Applied>,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    /// A block, and its part of a delta.
    block: Vec<u8>,
    part: Vec<u8>,
}

impl Worker {
    fn run(mut self) {
        while let Ok(Some(delta)) = self.queue.recv() {
            self.take_turns(delta);
        }
    }

    /// Applies a delta until it is done, or others wait.
    fn take_turns(&mut self, mut delta: Delta) {
        while !self.is_over.load(Ordering::Relaxed) {
            let turn = catch_unwind(AssertUnwindSafe(|| delta.turn(&mut self.block, &mut self.part)));
            // Of a panic, whose text is on standard error, the engine hears: the whole version comes in its place.
            let result = match turn.unwrap_or(Err(NotApplied::OtherBytes)) {
                Ok(false) if self.queue.is_empty() => continue,
                Ok(false) => return drop(self.others.send(Some(delta))),
                Ok(true) => Ok(()),
                Err(why) => Err(why),
            };
            let tag = delta.tag;
            // Its segments may be gone once the engine knows.
            drop(delta);
            return self.tell(tag, result);
        }
    }

    fn tell(&self, tag: u64, result: Result<(), NotApplied>) {
        let _ = self.tell.send((tag, result));
        // The write fails only when the counter is full, and then the engine is being woken already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }
}

/// Copies out of a list of ranges, from this place of all of them on. Returns whether it has so many bytes.
pub(super) fn copy_out(from: &[MemoryRange], mut at: u64, mut to: &mut [u8]) -> bool {
    for range in from {
        let Some(len) = range.len.checked_sub(at).filter(|len| *len > 0) else {
            at -= range.len;
            continue;
        };
        let (part, rest) = to.split_at_mut((to.len() as u64).min(len) as usize);
        if range.segment.mapping().copy_out(range.offset + at, part).is_err() {
            return false;
        }
        (at, to) = (0, rest);
        if to.is_empty() {
            return true;
        }
    }
    to.is_empty()
}

impl Delta {
    /// Makes some blocks. Returns whether all are made.
    fn turn(&mut self, block: &mut [u8], part: &mut [u8]) -> Result<bool, NotApplied> {
        let mut applying = match self.applying.take() {
            Some(applying) => applying,
            None => self.begin()?,
        };
        for _ in 0..BLOCKS_PER_TURN {
            let Some(next) = applying.next_part() else {
                self.zeros();
                return applying.finish().map(|()| true);
            };
            self.make(&mut applying, &next, &mut block[..next.len], &mut part[..next.part_len])?;
        }
        self.applying = Some(applying);
        Ok(false)
    }

    /// Reads what stands in front of the parts. It is copied out before it is checked, and its length follows from that of the
    /// version, which is here.
    fn begin(&self) -> Result<Applying, NotApplied> {
        let mut head = [0; Head::BYTES];
        let delta = std::slice::from_ref(&self.delta);
        // Bytes that are not there stay zeros, which are no delta.
        copy_out(delta, 0, &mut head);
        let head = Head::read(&head, self.len)?;
        let mut index = vec![0; head.index_bytes() as usize];
        copy_out(delta, Head::BYTES as u64, &mut index);
        Applying::begin(head, &index, self.delta.len)
    }

    fn make(&self, applying: &mut Applying, next: &Part, block: &mut [u8], part: &mut [u8]) -> Result<(), NotApplied> {
        let is_there = !next.needs_base || copy_out(&self.base, next.at, block);
        let is_there = is_there && copy_out(std::slice::from_ref(&self.delta), next.from, part);
        applying.make(next, block, part)?;
        let to = &self.to;
        let has_room = to.len.checked_sub(next.at).is_some_and(|room| room >= block.len() as u64);
        let is_written = has_room && to.segment.mapping().copy_in(to.offset + next.at, block).is_ok();
        // The state machine names ranges that lie within their segments.
        debug_assert!(is_there && is_written, "{next:?} of {} bytes in {}", self.delta.len, to.len);
        if is_there && is_written { Ok(()) } else { Err(NotApplied::OtherBytes) }
    }

    /// What the room behind the version held before reaches nobody.
    fn zeros(&self) {
        let behind = self.to.len.saturating_sub(self.len);
        if behind > 0 {
            let zeroed = self.to.segment.mapping().zero(self.to.offset + self.len, behind);
            debug_assert!(zeroed.is_ok(), "{behind} bytes behind {}", self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use transfer_core::delta::encode;
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

    const LEN: usize = 3 << 20 | 1000;

    /// A segment with a base in two ranges at the front and at 8 MiB, a delta at 16 MiB, and room at 24 MiB.
    fn delta(damage: impl Fn(&mut Vec<u8>)) -> (Delta, Vec<u8>) {
        let base: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut new = base.clone();
        (0..LEN).step_by(100).for_each(|at| new[at] ^= 0xa5);
        let read = |from: &[u8], at: u64, to: &mut [u8]| to.copy_from_slice(&from[at as usize..][..to.len()]);
        let made = encode(LEN as u64, |at, to| read(&base, at, to), |at, to| read(&new, at, to), u64::MAX);
        let mut bytes = made.unwrap().bytes;
        damage(&mut bytes);
        let options = SegmentOptions { len: 32 << 20, pages: Pages::Base, lock: Lock::No };
        let segment = Arc::new(Segment::create("deltas-test", &options, &PinnedBudget::new(1 << 30)).unwrap());
        let part = |offset: u64, len: usize| MemoryRange { segment: segment.clone(), offset, len: len as u64 };
        let (first, rest) = base.split_at(70_001);
        for (offset, bytes) in [(0, first), (8 << 20, rest), (16 << 20, &bytes), (24 << 20, &[0xee; LEN + 24][..])] {
            segment.mapping().copy_in(offset, bytes).unwrap();
        }
        let delta = Delta {
            base: vec![part(0, first.len()), part(8 << 20, rest.len())],
            delta: part(16 << 20, bytes.len()),
            to: part(24 << 20, LEN + 24),
            len: LEN as u64,
            tag: 7,
            applying: None,
        };
        (delta, new)
    }

    fn deltas() -> Deltas {
        Deltas::new(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()))
    }

    /// Sleeps until the bell rings, as the engine does.
    fn next(deltas: &mut Deltas) -> Applied {
        loop {
            if let Some(applied) = deltas.applied() {
                return applied;
            }
            poll(&mut [PollFd::new(&deltas.bell, PollFlags::IN)], None).unwrap();
            let _ = rustix::io::read(&*deltas.bell, &mut [0; 8]);
        }
    }

    fn result_of(delta: Delta) -> Result<(), NotApplied> {
        let mut deltas = deltas();
        deltas.add(delta);
        next(&mut deltas).1
    }

    // Promise: deltas, seen to fail
    #[test]
    fn delta_makes_its_version_on_a_thread_and_zeros_behind_it() {
        let (delta, new) = delta(|_| {});
        let (segment, offset, len) = (delta.to.segment.clone(), delta.to.offset, delta.to.len);
        let mut deltas = deltas();
        deltas.add(delta);
        assert_eq!(next(&mut deltas), (7, Ok(())));
        assert_eq!((deltas.pending, deltas.threads.len()), (0, 1));
        let mut made = vec![1; len as usize];
        segment.mapping().copy_out(offset, &mut made).unwrap();
        assert!(made[..LEN] == new && made[LEN..] == [0; 24]);
        drop(deltas);
        assert_eq!(Arc::strong_count(&segment), 1, "nothing is held");
    }

    // Promise: deltas, seen to fail
    #[test]
    fn damaged_delta_is_refused() {
        let (delta_of, _) = delta(|delta| *delta.last_mut().unwrap() ^= 1);
        assert_eq!(result_of(delta_of), Err(NotApplied::OtherBytes));
        for damage in [|delta: &mut Vec<u8>| delta[32] ^= 1, |delta: &mut Vec<u8>| delta.truncate(40)] {
            assert!(matches!(result_of(delta(damage).0), Err(NotApplied::Malformed(_))));
        }
    }

    /// Deltas take turns of 1 MiB on one thread, so a long one does not hold up the others.
    #[test]
    fn deltas_take_turns() {
        let mut deltas = deltas();
        deltas.max_threads = 0;
        let (long, _) = delta(|_| {});
        let (short, _) = delta(|_| {});
        let none = MemoryRange { segment: long.to.segment.clone(), offset: 0, len: 0 };
        let made = encode(0, |_, _| {}, |_, _| {}, u64::MAX).unwrap().bytes;
        short.delta.segment.mapping().copy_in(short.delta.offset, &made).unwrap();
        let delta = MemoryRange { len: made.len() as u64, ..short.delta };
        let short = Delta { base: vec![], delta, to: none, len: 0, tag: 8, applying: None };
        for delta in [long, short] {
            deltas.to_apply.send(Some(delta)).unwrap();
        }
        (deltas.pending, deltas.max_threads) = (2, 1);
        let (more, _) = self::delta(|_| {});
        deltas.add(Delta { tag: 9, ..more });
        let tags = [(); 3].map(|()| next(&mut deltas).0);
        assert_eq!(tags, [8, 7, 9]);
    }

    /// The same range, of this length.
    fn part_of(range: &MemoryRange, len: u64) -> MemoryRange {
        MemoryRange { segment: range.segment.clone(), offset: range.offset, len }
    }

    /// The same delta into so many bytes.
    fn again(of: &Delta, room: u64, tag: u64) -> Delta {
        let base = of.base.iter().map(|range| part_of(range, range.len)).collect();
        let (delta, to) = (part_of(&of.delta, of.delta.len), part_of(&of.to, room));
        Delta { base, delta, to, len: of.len, tag, applying: None }
    }

    #[test]
    fn deltas_that_are_not_applied_are_given_up_with_their_threads() {
        const MANY: usize = 200;
        let mut deltas = deltas();
        deltas.max_threads = 1;
        let (first, _) = delta(|_| {});
        let segment = first.to.segment.clone();
        (0..MANY).for_each(|_| deltas.add(again(&first, first.to.len, 7)));
        drop(first);
        let applied = deltas.applied.clone();
        drop(deltas);
        assert!(applied.len() < MANY, "the thread has applied all");
        assert_eq!(Arc::strong_count(&segment), 1);
    }

    // Promise: deltas, seen to fail
    #[test]
    #[cfg(debug_assertions)]
    fn panic_ends_one_delta_and_no_thread() {
        let mut deltas = deltas();
        deltas.max_threads = 1;
        let (first, _) = delta(|_| {});
        // The state machine gives no room that is too short.
        deltas.add(again(&first, 1, 7));
        assert_eq!(next(&mut deltas), (7, Err(NotApplied::OtherBytes)));
        deltas.add(again(&first, first.to.len, 8));
        assert_eq!((next(&mut deltas), deltas.threads.len()), ((8, Ok(())), 1));
    }

    #[test]
    fn delta_is_applied_where_there_is_no_thread() {
        let mut deltas = deltas();
        deltas.max_threads = 0;
        deltas.add(delta(|_| {}).0);
        assert_eq!(deltas.applied(), Some((7, Ok(()))));
    }
}
