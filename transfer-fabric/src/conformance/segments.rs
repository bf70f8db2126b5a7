//! Rigs of fabrics that register segments: their memory is the same, whatever the fabric.

use super::Rig;
use std::sync::Arc;
use transfer_core::fabric::Fabric;
use transfer_memory::segment::{Access, Lock, Pages, PinnedBudget, Segment, SegmentOptions};

/// What such a fabric's tests have to say themselves.
pub trait SegmentRig {
    type Fabric: Fabric<Memory = Arc<Segment>>;

    /// As [`Rig::fabric`].
    fn make(&mut self) -> Self::Fabric;

    /// As [`Rig::read_only_memory`].
    fn read_only(&mut self, len: u64) -> Option<Arc<Segment>> {
        Some(read_only_segment(len))
    }
}

/// One that its owner and peers may write.
pub fn segment(len: u64) -> Segment {
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    Segment::create("a test", &options, &PinnedBudget::new(u64::MAX)).unwrap()
}

/// One that is mapped for reading only.
pub fn read_only_segment(len: u64) -> Arc<Segment> {
    let written = segment(len);
    let fd = written.fd().try_clone_to_owned().unwrap();
    Arc::new(Segment::adopt(fd, Access::ReadOnly, written.len()).unwrap())
}

impl<R: SegmentRig> Rig for R {
    type Fabric = R::Fabric;

    fn fabric(&mut self) -> R::Fabric {
        self.make()
    }

    fn memory(&mut self, len: u64) -> Arc<Segment> {
        Arc::new(segment(len))
    }

    fn read_only_memory(&mut self, len: u64) -> Option<Arc<Segment>> {
        self.read_only(len)
    }

    fn read(&mut self, memory: &Arc<Segment>, offset: u64, to: &mut [u8]) {
        memory.mapping().copy_out(offset, to).unwrap();
    }

    fn write(&mut self, memory: &Arc<Segment>, offset: u64, bytes: &[u8]) {
        memory.mapping().copy_in(offset, bytes).unwrap();
    }

    fn idle(&mut self) {
        std::thread::yield_now();
    }
}
