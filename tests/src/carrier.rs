//! What carries tensors between the sidecars of a scene: TCP, or what `TRANSFER_TEST_FABRIC` names: `shm`, `verbs` or `verbs-pool`.
//!
//! The suites between nodes promise the same over every fabric, so the same tests run over each. `make test-rdma` runs them over verbs, in
//! the guest that has a device.

use crate::order::Report;
use transfer_proto::v1::Fabric;

/// What carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Sockets, whatever devices the machine has.
    Tcp,
    /// RDMA, or nothing.
    Verbs,
    /// The same with two rails, and one key for a whole landing pool, as a device without memory windows has it.
    VerbsPool,
    /// Shared memory, or nothing.
    Shm,
}

impl Carrier {
    /// What `TRANSFER_TEST_FABRIC` names; TCP where it is not set.
    ///
    /// # Panics
    /// Where it names nothing that there is: a run over the wrong fabric would pass for the right one.
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

    /// As a report names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Tcp => "tcp",
            Carrier::Verbs | Carrier::VerbsPool => "verbs",
            Carrier::Shm => "shm",
        }
    }

    /// As a status names it.
    #[must_use]
    pub fn kind(self) -> Fabric {
        match self {
            Carrier::Tcp => Fabric::Tcp,
            Carrier::Verbs | Carrier::VerbsPool => Fabric::Verbs,
            Carrier::Shm => Fabric::Shm,
        }
    }

    /// What a sidecar that listens is told, for this and nothing else to carry.
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
            // What is read by reference has suites of its own: these are about landing memory, too.
            Carrier::Shm => &["--verbs", "off", "--shm", "on", "--shm-reference", "off", "--require", "shm"],
        }
    }

    /// The report of a transfer between two nodes tells the truth: this carried it, and who needs a CPU for that says so.
    ///
    /// # Panics
    /// Where it does not.
    #[track_caller]
    pub fn carried(self, report: &Report) {
        assert_eq!(report.fabric, self.name(), "{}", report.text);
        let copies = match self {
            // The kernel copies on both sides. The landing header, too, and padding.
            Carrier::Tcp => 2 * report.bytes..=3 * report.bytes + 512,
            Carrier::Verbs | Carrier::VerbsPool => 0..=0,
            // The receiver copies once: with the landing header, and padding.
            Carrier::Shm => report.bytes..=report.bytes + 512,
        };
        assert!(copies.contains(&report.copied), "{}", report.text);
    }
}
