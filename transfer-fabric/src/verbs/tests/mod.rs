//! Tests on a real device, in the guest of tests/rdma-vm: the conformance suite in each way of connecting and
//! isolating, and tests of this fabric alone.
//!
//! The software device has quirks that no hardware shares (docs/adr/0001). Its capabilities keep the suite from trying
//! what it does not check.

use super::*;
use crate::conformance::Rig;
use crate::conformance::pair::{Heard, Pair};
use crate::conformance::segments::{SegmentRig, read_only_segment, segment};

mod atomics;
mod counts;
mod failures;
mod managed;
mod own;
mod rails;

/// A rig of fabrics with this configuration, one for each side.
struct VerbsRig(VerbsConfig);

/// Returns a configuration for the guest's device. Its times suit tests: they are patient if the machine below the
/// guest is busy.
fn config() -> VerbsConfig {
    VerbsConfig { probe_interval: Duration::from_millis(500), timeout: 16, ..VerbsConfig::default() }
}

/// Returns a configuration that connects by rdma_cm and listens at the guest's device.
fn by_manager() -> VerbsConfig {
    let ip = std::env::var("RDMA_IP").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let listen = SocketAddr::new(ip.parse().unwrap(), 0);
    VerbsConfig { connect: Connecting::RdmaCm { listen }, ..config() }
}

fn pool() -> VerbsConfig {
    VerbsConfig { isolation: Isolation::Segment, ..config() }
}

impl SegmentRig for VerbsRig {
    type Fabric = VerbsFabric;

    fn make(&mut self) -> VerbsFabric {
        VerbsFabric::open(self.0.clone()).unwrap()
    }

    fn read_only(&mut self, len: u64) -> Option<Arc<Segment>> {
        let memory = read_only_segment(len);
        if let Err(error) = self.make().register(SegmentId(1), memory.clone()) {
            // Linux before 6.2 pins memory for writing in any case.
            assert!(matches!(error, transfer_core::fabric::FabricError::Unreadable { .. }), "{error}");
            println!("not tried: {error}");
            return None;
        }
        Some(memory)
    }
}

use std::net::SocketAddr;

/// Windows, and queue-pair data.
mod windows {
    crate::conformance_tests!(
        [#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]]
        super::VerbsRig(super::config())
    );
}

/// A pool's key, and queue-pair data.
mod pool {
    crate::conformance_tests!(
        [#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]]
        super::VerbsRig(super::pool())
    );
}

/// Windows, and rdma_cm.
mod by_rdma_cm {
    crate::conformance_tests!(
        [#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]]
        super::VerbsRig(super::by_manager())
    );
}
