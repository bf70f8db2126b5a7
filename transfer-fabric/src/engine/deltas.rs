//! Deltas that are applied on threads of their own, since that takes longer than the data plane may be held up. Several threads make the
//! sections of one version. A block is copied out, changed in the cache of the core, and copied to the target.

use super::run::Run;
use crate::disk::MemoryRange;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use transfer_core::delta::{Buffers, Chain, NotApplied, section};
use transfer_core::memory::LocalSlice;

impl Run {
    pub(super) fn apply(&mut self, base: &[LocalSlice], (delta, to): (LocalSlice, LocalSlice), len: u64, tag: u64) {
        let base: Option<Vec<_>> = base.iter().map(|slice| self.place(*slice)).collect();
        let (Some(base), Some((delta, to))) = (base, self.place(delta).zip(self.place(to))) else {
            // The state machine names segments that exist.
            debug_assert!(false, "{delta}, {to}");
            return self.deltas.refuse(tag);
        };
        self.deltas.add(Delta { base, delta, to, len, tag });
    }
}

/// The tag of a delta that was applied, and what has come of it.
type Applied = (u64, Result<(), NotApplied>);

/// The handle of the threads. They start when there is something to do. A drop gives up what is not done, and waits for their end.
pub(super) struct Deltas {
    /// `None` ends a thread.
    to_apply: Sender<Option<Arc<Job>>>,
    queue: Receiver<Option<Arc<Job>>>,
    tell: Sender<Applied>,
    applied: Receiver<Applied>,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    max_threads: usize,
    /// How many deltas are not applied yet.
    pending: usize,
}

/// A delta to apply, or several in one range. The state machine bounds how many there are: each has a range of a pool.
pub(super) struct Delta {
    /// The ranges of the base, back to back.
    pub(super) base: Vec<MemoryRange>,
    pub(super) delta: MemoryRange,
    pub(super) to: MemoryRange,
    /// The length of the version.
    pub(super) len: u64,
    pub(super) tag: u64,
}

/// A delta that is being applied. Each thread that takes part has a reference to it, or the queue has it for that. The last one that
/// lets go of it tells what has come of it.
struct Job {
    delta: Delta,
    /// How many threads may take part.
    threads: usize,
    /// What stands in front of its parts, once the first thread has read it.
    chain: OnceLock<Chain>,
    /// The number of the next section.
    next: AtomicU64,
    /// Why it was not applied.
    failed: OnceLock<NotApplied>,
}

impl Deltas {
    /// The threads are to ring this bell for each delta that is applied.
    pub(super) fn new(bell: Arc<OwnedFd>) -> Deltas {
        let ((to_apply, queue), (tell, applied)) = (unbounded(), unbounded());
        // As many as copy for the shm fabric, where the data plane's thread takes part.
        let (is_over, threads, max_threads) = (Arc::default(), Vec::new(), crate::helping_threads() + 1);
        Deltas { to_apply, queue, tell, applied, bell, is_over, threads, max_threads, pending: 0 }
    }

    pub(super) fn add(&mut self, delta: Delta) {
        self.pending += 1;
        let threads = section::count(delta.len).clamp(1, self.max_threads.max(1) as u64) as usize;
        while self.threads.len() < (self.pending - 1 + threads).min(self.max_threads) {
            let (worker, thread) = (self.worker(), std::thread::Builder::new().name("transfer-delta".into()));
            let Ok(thread) = thread.spawn(move || worker.run()) else { break };
            self.threads.push(thread);
        }
        let job = Job::new(delta, threads.min(self.threads.len()));
        match self.threads.is_empty() {
            // The system allows no thread.
            true => self.worker().take_part(job),
            false => drop(self.to_apply.send(Some(job))),
        }
    }

    /// Says that the memory of a delta is not there.
    fn refuse(&mut self, tag: u64) {
        self.pending += 1;
        self.worker().tell(tag, Err(NotApplied::Internal));
    }

    fn worker(&self) -> Worker {
        Worker {
            queue: self.queue.clone(),
            others: self.to_apply.clone(),
            tell: self.tell.clone(),
            bell: self.bell.clone(),
            is_over: self.is_over.clone(),
            buffers: Buffers::default(),
        }
    }

    /// Returns one that is applied.
    pub(super) fn applied(&mut self) -> Option<Applied> {
        // Called in each round, and there is mostly none under way.
        if self.pending == 0 {
            return None;
        }
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
    queue: Receiver<Option<Arc<Job>>>,
    /// The other end of the queue, for what goes on when others have had their turn.
    others: Sender<Option<Arc<Job>>>,
    tell: Sender<Applied>,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    buffers: Buffers,
}

impl Worker {
    fn run(mut self) {
        while let Ok(Some(job)) = self.queue.recv() {
            self.take_part(job);
        }
    }

    /// Makes sections of a version until all are begun, or others wait.
    fn take_part(&mut self, job: Arc<Job>) {
        while !self.is_over.load(Ordering::Relaxed) {
            let turn = catch_unwind(AssertUnwindSafe(|| {
                job.turn(&mut self.buffers, |threads| {
                    (1..threads).for_each(|_| drop(self.others.send(Some(job.clone()))));
                })
            }));
            // Of a panic, whose text is on standard error, the engine hears: the whole version comes in its place.
            match turn.unwrap_or(Err(NotApplied::Internal)) {
                Ok(true) if self.queue.is_empty() => continue,
                Ok(true) => return drop(self.others.send(Some(job))),
                Ok(false) => {}
                Err(why) => drop(job.failed.set(why)),
            }
            // Its segments may be gone once the engine knows.
            if let Some(Job { delta: Delta { tag, .. }, failed, .. }) = Arc::into_inner(job) {
                self.tell(tag, failed.into_inner().map_or(Ok(()), Err));
            }
            return;
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

impl Job {
    fn new(delta: Delta, threads: usize) -> Arc<Job> {
        let (chain, next, failed) = Default::default();
        Arc::new(Job { delta, threads, chain, next, failed })
    }

    /// Makes a section. Returns whether there may be another one. `invite` is told how many threads may take part, once the first one
    /// knows that it is a delta.
    fn turn(&self, buffers: &mut Buffers, invite: impl FnOnce(usize)) -> Result<bool, NotApplied> {
        let Delta { base, delta, to, len, .. } = &self.delta;
        let delta = std::slice::from_ref(delta);
        let read = |from: &[MemoryRange], at, to: &mut [u8]| match copy_out(from, at, to) {
            true => Ok(()),
            false => Err(NotApplied::Internal),
        };
        let chain = match self.chain.get() {
            Some(chain) => chain,
            None => {
                // It is copied out before it is checked, and its length follows from that of the version, which is here.
                let chain = Chain::read(*len, delta[0].len, |at, to| read(delta, at, to))?;
                let chain = self.chain.get_or_init(|| chain);
                self.zeros();
                // The other threads need the chain, so it is there first.
                invite(self.threads);
                chain
            }
        };
        let section = self.next.fetch_add(1, Ordering::Relaxed);
        if section >= chain.sections() || self.failed.get().is_some() {
            return Ok(false);
        }
        let write = |at: u64, block: &[u8]| {
            let has_room = to.len.checked_sub(at).is_some_and(|room| room >= block.len() as u64);
            let is_written = has_room && to.segment.mapping().copy_in(to.offset + at, block).is_ok();
            // The state machine names ranges that lie within their segments.
            debug_assert!(is_written, "{at} of {} bytes", to.len);
            if is_written { Ok(()) } else { Err(NotApplied::Internal) }
        };
        chain.make(section, buffers, |at, to| read(base, at, to), |at, to| read(delta, at, to), write)?;
        Ok(true)
    }

    /// What the room behind the version held before reaches nobody.
    fn zeros(&self) {
        let Delta { to, len, .. } = &self.delta;
        let behind = to.len.saturating_sub(*len);
        if behind > 0 {
            let zeroed = to.segment.mapping().zero(to.offset + len, behind);
            debug_assert!(zeroed.is_ok(), "{behind} bytes behind {len}");
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
        assert_eq!(
            (deltas.pending, deltas.threads.len()),
            (0, deltas.max_threads.min(4)),
            "as many as there are sections"
        );
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
        for damage in [|delta: &mut Vec<u8>| delta[16 + 4 * 16 + 3] = 9, |delta: &mut Vec<u8>| delta.truncate(40)] {
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
        let short = Delta { base: vec![], delta, to: none, len: 0, tag: 8 };
        for delta in [long, short] {
            deltas.to_apply.send(Some(Job::new(delta, 1))).unwrap();
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
        Delta { base, delta, to, len: of.len, tag }
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
        assert_eq!(next(&mut deltas), (7, Err(NotApplied::Internal)));
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
