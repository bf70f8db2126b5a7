//! The conformance suite over real sockets, and what only this fabric can do wrong.

use super::*;
use crate::conformance::Rig;
use transfer_memory::segment::{Access, Lock, Pages, PinnedBudget, SegmentOptions};

struct TcpRig;

fn local() -> TcpConfig {
    TcpConfig::new("127.0.0.1:0".parse().unwrap())
}

fn segment(len: u64) -> Segment {
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    Segment::create("tcp test", &options, &PinnedBudget::new(u64::MAX)).unwrap()
}

impl Rig for TcpRig {
    type Fabric = TcpFabric;

    fn fabric(&mut self) -> TcpFabric {
        TcpFabric::new(local()).unwrap()
    }

    fn memory(&mut self, len: u64) -> Arc<Segment> {
        Arc::new(segment(len))
    }

    fn read_only_memory(&mut self, len: u64) -> Option<Arc<Segment>> {
        let written = segment(len);
        let fd = written.fd().try_clone_to_owned().unwrap();
        Some(Arc::new(Segment::adopt(fd, Access::ReadOnly, written.len()).unwrap()))
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

crate::conformance_tests!(TcpRig);

mod one_rail {
    crate::conformance_tests!(crate::conformance::rails::Railed::new(super::TcpRig, &[0]));
}

mod two_rails {
    crate::conformance_tests!(crate::conformance::rails::Railed::new(super::TcpRig, &[0, 0]));
}

mod encrypted;
mod hostile;
mod own;
mod stream;

/// Polls until something is answered.
fn until<T>(fabric: &mut TcpFabric, mut answer: impl FnMut(FabricEvent<'_>) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let mut found = None;
        fabric.poll(&mut |event| found = found.take().or(answer(event)));
        if let Some(found) = found {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
        std::thread::yield_now();
    }
}

fn down(fabric: &mut TcpFabric) -> DownReason {
    until(fabric, |event| match event {
        FabricEvent::LinkDown { reason, .. } => Some(reason),
        _ => None,
    })
}
