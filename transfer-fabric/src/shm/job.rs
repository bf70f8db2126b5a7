//! One large copy that several threads do in pieces.

use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use transfer_memory::segment::{Mapping, STREAM_FROM};

/// Larger than any length, and far from an overflow.
const NOTHING_LEFT: u64 = 1 << 63;

/// A range that bytes are copied from.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) from: Arc<Mapping>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A gather list that is copied into one range. Its ranges were checked to lie in their mappings.
#[derive(Debug)]
pub(super) struct Job {
    to: Arc<Mapping>,
    offset: u64,
    spans: SmallVec<[Span; 2]>,
    len: u64,
    /// The bytes that threads have taken; grows beyond `len`.
    taken: AtomicU64,
    copied: AtomicU64,
    /// The bytes that have to be copied until no thread touches the memory any longer. Less than `len` once the job is
    /// cancelled.
    awaited: AtomicU64,
    failed: AtomicBool,
}

impl Job {
    pub(super) fn new(to: Arc<Mapping>, offset: u64, spans: SmallVec<[Span; 2]>) -> Job {
        let len = spans.iter().map(|span| span.len).sum();
        let (taken, copied, awaited) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(len));
        Job { to, offset, spans, len, taken, copied, awaited, failed: AtomicBool::new(false) }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Takes about `most` bytes and copies them. Returns `None` if nothing is left to take, and otherwise whether this
    /// was the last piece.
    pub(super) fn step(&self, most: u64) -> Option<bool> {
        if self.taken.load(Ordering::Relaxed) >= self.len {
            return None;
        }
        let from = self.taken.fetch_add(most, Ordering::Relaxed);
        let len = self.len.checked_sub(from).filter(|left| *left > 0)?.min(most);
        if !self.copy(from, len) {
            self.failed.store(true, Ordering::Relaxed);
        }
        // A thread that sees the sum sees the bytes. The order is total with that of `cancel`: either `cancel` is
        // followed by `is_over`, or this thread sees that its piece was the last.
        let copied = self.copied.fetch_add(len, Ordering::SeqCst) + len;
        Some(copied >= self.awaited.load(Ordering::SeqCst))
    }

    fn copy(&self, mut from: u64, mut len: u64) -> bool {
        let mut to = self.offset + from;
        for span in &self.spans {
            if len == 0 {
                break;
            }
            if from >= span.len {
                from -= span.len;
                continue;
            }
            let part = len.min(span.len - from);
            let source = span.offset + from;
            let copied = match self.len >= STREAM_FROM {
                true => self.to.stream_from(to, &span.from, source, part),
                false => self.to.copy_from(to, &span.from, source, part),
            };
            if copied.is_err() {
                return false;
            }
            (from, to, len) = (0, to + part, len - part);
        }
        len == 0
    }

    /// Stops the job. No thread takes another piece. Pieces that are taken are still copied.
    pub(super) fn cancel(&self) {
        let taken = self.taken.swap(NOTHING_LEFT, Ordering::SeqCst);
        self.awaited.fetch_min(taken, Ordering::SeqCst);
    }

    /// Returns whether no thread copies, or will copy.
    pub(super) fn is_over(&self) -> bool {
        self.copied.load(Ordering::SeqCst) >= self.awaited.load(Ordering::SeqCst)
    }

    /// Returns whether a part could not be copied, because a mapping cannot be written or is too short.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

    fn memory(len: u64) -> Arc<Mapping> {
        let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
        Segment::create("job", &options, &PinnedBudget::new(u64::MAX)).unwrap().mapping().clone()
    }

    fn bytes(len: u64) -> Vec<u8> {
        crate::conformance::pair::pattern(len, 1)
    }

    /// Whichever thread copies a piece, each piece is copied once, to its place, and nothing else is touched.
    #[test]
    fn pieces_make_the_whole() {
        for len in [40_000, STREAM_FROM + 12_345] {
            let (a, b, to) = (memory(len), memory(len), memory(len + 4096));
            let all = bytes(len);
            let (first, rest) = all.split_at(all.len() / 3);
            a.copy_in(77, first).unwrap();
            b.copy_in(0, rest).unwrap();
            let nothing = Span { from: a.clone(), offset: 5, len: 0 };
            let (first_len, rest_len) = (first.len() as u64, rest.len() as u64);
            let spans = smallvec![
                Span { from: a, offset: 77, len: first_len },
                nothing,
                Span { from: b, offset: 0, len: rest_len }
            ];
            let job = Job::new(to.clone(), 64, spans);
            let ends: usize = std::thread::scope(|scope| {
                let worker = |most: u64| {
                    let job = &job;
                    scope.spawn(move || {
                        let mut ends = 0;
                        while let Some(last) = job.step(most) {
                            ends += usize::from(last);
                        }
                        ends
                    })
                };
                [worker(1000), worker(4096), worker(333)].map(|w| w.join().unwrap()).iter().sum()
            });
            assert_eq!((ends, job.is_over(), job.has_failed()), (1, true, false));
            let mut seen = vec![0; all.len() + 128];
            to.copy_out(0, &mut seen).unwrap();
            assert!(seen[64..64 + all.len()] == all[..]);
            assert!(seen[..64].iter().chain(&seen[64 + all.len()..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn cancelled_job_ends_with_the_pieces_taken() {
        let (from, to) = (memory(8192), memory(8192));
        let job = Job::new(to.clone(), 0, smallvec![Span { from: from.clone(), offset: 0, len: 8192 }]);
        assert_eq!((job.is_over(), job.step(1000)), (false, Some(false)));
        job.cancel();
        job.cancel();
        assert_eq!((job.is_over(), job.step(1000)), (true, None));
        let unbegun = Job::new(to.clone(), 0, smallvec![Span { from: from.clone(), offset: 0, len: 8192 }]);
        unbegun.cancel();
        assert!(unbegun.is_over());
        let outside = Job::new(to, 4096, smallvec![Span { from, offset: 0, len: 8192 }]);
        assert_eq!((outside.step(8192), outside.is_over(), outside.has_failed()), (Some(true), true, true));
    }
}
