//! A rig for fabrics that register segments. They all use the same kind of memory.

use super::Rig;
use std::sync::Arc;
use transfer_core::fabric::Fabric;
use transfer_memory::segment::{Access, Lock, Pages, PinnedBudget, Segment, SegmentOptions};

/// The parts of a rig that such a fabric's tests provide.
pub trait SegmentRig {
    type Fabric: Fabric<Memory = Arc<Segment>>;

    /// Makes a fabric, as [`Rig::fabric`] does.
    fn make(&mut self) -> Self::Fabric;

    /// Makes read-only memory, as [`Rig::read_only_memory`] does.
    fn read_only(&mut self, len: u64) -> Option<Arc<Segment>> {
        Some(read_only_segment(len))
    }
}

/// Makes a segment that its owner and peers may write.
pub fn segment(len: u64) -> Segment {
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    Segment::create("a test", &options, &PinnedBudget::new(u64::MAX)).unwrap()
}

/// Makes a segment that is mapped for reading only.
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
