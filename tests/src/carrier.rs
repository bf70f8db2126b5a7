//! The fabric that carries tensors between the sidecars of a scene: TCP, or the one that `TRANSFER_TEST_FABRIC` names:
//! `shm`, `verbs` or `verbs-pool`.
//!
//! The tests between nodes hold over every fabric, so the same tests run over each. `make test-rdma` runs them over
//! verbs, in the guest that has a device.

use crate::order::Report;
use transfer_proto::v1::Fabric;

/// The fabric of a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// TCP sockets, whatever devices the machine has.
    Tcp,
    /// RDMA, and no other fabric.
    Verbs,
    /// RDMA with two rails, and one key for a whole landing pool, as on a device without memory windows.
    VerbsPool,
    /// Shared memory, and no other fabric.
    Shm,
}

impl Carrier {
    /// Returns the fabric that `TRANSFER_TEST_FABRIC` names; TCP if it is not set.
    ///
    /// # Panics
    /// If it names no fabric: otherwise a run over the wrong fabric would pass for the right one.
    #[must_use]
    pub fn chosen() -> Carrier {
        match std::env::var("TRANSFER_TEST_FABRIC").as_deref() {
            Err(_) | Ok("tcp") => Carrier::Tcp,
            Ok("verbs") => Carrier::Verbs,
            Ok("verbs-pool") => Carrier::VerbsPool,
            Ok("shm") => Carrier::Shm,
            Ok(other) => panic!("TRANSFER_TEST_FABRIC is {other:?}: give tcp, shm, verbs or verbs-pool"),
        }
    }

    /// Returns the fabric's name in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Tcp => "tcp",
            Carrier::Verbs | Carrier::VerbsPool => "verbs",
            Carrier::Shm => "shm",
        }
    }

    /// Returns the fabric's name in a status.
    #[must_use]
    pub fn kind(self) -> Fabric {
        match self {
            Carrier::Tcp => Fabric::Tcp,
            Carrier::Verbs | Carrier::VerbsPool => Fabric::Verbs,
            Carrier::Shm => Fabric::Shm,
        }
    }

    /// Returns the arguments of a sidecar that listens, by which it uses this fabric and no other.
    #[must_use]
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Carrier::Tcp => &["--verbs", "off", "--shm", "off"],
            Carrier::Verbs => &["--verbs", "on", "--shm", "off", "--require", "verbs"],
            Carrier::VerbsPool => &[
                "--verbs",
                "on",
                "--shm",
                "off",
                "--require",
                "verbs",
                "--isolation",
                "pool",
                "--verbs-queue-pairs",
                "2",
            ],
            // Reading by reference has tests of its own. These also test landing memory.
            Carrier::Shm => &["--verbs", "off", "--shm", "on", "--shm-reference", "off", "--require", "shm"],
        }
    }

    /// Checks the report of a transfer between two nodes: it names this fabric, and counts the copies that this fabric
    /// makes.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn carried(self, report: &Report) {
        assert_eq!(report.fabric, self.name(), "{}", report.text);
        let copies = match self {
            // The kernel copies on both sides. The landing header and padding are copied, too.
            Carrier::Tcp => 2 * report.bytes..=3 * report.bytes + 512,
            Carrier::Verbs | Carrier::VerbsPool => 0..=0,
            // The receiver copies once, with the landing header and padding.
            Carrier::Shm => report.bytes..=report.bytes + 512,
        };
        assert!(copies.contains(&report.copied), "{}", report.text);
    }
}
