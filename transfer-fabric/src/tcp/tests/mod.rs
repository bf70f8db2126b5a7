//! The conformance suite over real sockets, and tests of this fabric alone.

use super::*;
use crate::conformance::segments::{SegmentRig, segment};
use std::time::Instant;

struct TcpRig;

fn local() -> TcpConfig {
    TcpConfig::new("127.0.0.1:0".parse().unwrap())
}

impl SegmentRig for TcpRig {
    type Fabric = TcpFabric;

    fn make(&mut self) -> TcpFabric {
        TcpFabric::new(local()).unwrap()
    }
}

crate::conformance_tests!(TcpRig);

mod one_rail {
    crate::conformance_tests!(crate::conformance::rails::OneRail(super::TcpRig));
}

mod two_rails {
    crate::conformance_tests!(crate::conformance::rails::Railed::new(super::TcpRig, &[0, 0]));
}

mod encrypted;
mod hostile;
mod own;
mod rails;
mod stream;

/// Polls until `answer` returns something.
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
