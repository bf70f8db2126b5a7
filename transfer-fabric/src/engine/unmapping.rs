//! The thread that unmaps segments. For some GiB that takes the system a second, and the data plane has to go on.

use crossbeam_channel::{Sender, unbounded};
use std::sync::Arc;
use std::thread::JoinHandle;
use transfer_memory::segment::Segment;

/// Segments of fewer bytes are unmapped where they are let go, which takes a few milliseconds at most.
const LARGE_SEGMENT_BYTES: u64 = 32 << 20;

/// The handle of the thread. A drop waits until all is unmapped.
pub(super) struct Unmapper {
    // Segments are few, and each counts as pinned until it is unmapped.
    segments: Option<Sender<Arc<Segment>>>,
    thread: Option<JoinHandle<()>>,
}

impl Unmapper {
    /// Starts the thread.
    pub(super) fn start() -> std::io::Result<Unmapper> {
        let (segments, queue) = unbounded::<Arc<Segment>>();
        let thread = std::thread::Builder::new().name("transfer-unmap".into());
        let thread = thread.spawn(move || queue.into_iter().for_each(drop))?;
        Ok(Unmapper { segments: Some(segments), thread: Some(thread) })
    }

    /// Unmaps a segment that is not in use any longer.
    pub(super) fn unmap(&self, segment: Arc<Segment>) {
        if segment.len() < LARGE_SEGMENT_BYTES {
            return;
        }
        segment.mapping().begin_return();
        if let Some(queue) = &self.segments {
            // If the thread has ended, the segment is unmapped here.
            let _ = queue.send(segment);
        }
    }
}

impl Drop for Unmapper {
    fn drop(&mut self) {
        self.segments = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, SegmentOptions};

    #[test]
    fn large_segments_are_unmapped_on_another_thread_before_it_ends() {
        let budget = PinnedBudget::new(2 * LARGE_SEGMENT_BYTES);
        let segment = |len| {
            let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
            Arc::new(Segment::create("unmapped", &options, &budget).unwrap())
        };
        let unmapper = Unmapper::start().unwrap();
        unmapper.unmap(segment(LARGE_SEGMENT_BYTES / 2));
        assert_eq!(budget.used(), 0);
        let large = segment(LARGE_SEGMENT_BYTES);
        // While somebody else has it, too, it stays; the last one unmaps it.
        let other = large.clone();
        unmapper.unmap(large);
        assert_eq!(budget.used(), LARGE_SEGMENT_BYTES);
        drop(other);
        drop(unmapper);
        assert_eq!(budget.used(), 0);
    }
}
