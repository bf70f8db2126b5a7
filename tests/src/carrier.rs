//! The fabric that carries tensors between the sidecars of a scene: TCP, or the one that `TRANSFER_TEST_FABRIC` names.
//!
//! The tests between nodes hold over every fabric, so the same tests run over each. `make test-rdma` runs them over
//! verbs, in the guest that has a device.

use crate::order::Report;
use std::ops::RangeInclusive;
use transfer_client::FabricKind;
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

/// What the tests have to know of a carrier.
struct Facts {
    /// The name in `TRANSFER_TEST_FABRIC`.
    name: &'static str,
    kind: FabricKind,
    /// The arguments of a sidecar that listens, by which this carrier is used.
    on: &'static [&'static str],
    /// The arguments by which its fabric is not used.
    off: &'static [&'static str],
    /// Whether the fabric needs a device. Such a device copies without a CPU, and has atomic operations.
    device: bool,
    /// The number of bytes that CPUs copy for a transfer of that many.
    copies: fn(u64) -> RangeInclusive<u64>,
}

const VERBS: Facts = Facts {
    name: "verbs",
    kind: FabricKind::Verbs,
    on: &["--verbs", "on", "--require", "verbs"],
    off: &["--verbs", "off"],
    device: true,
    copies: |_| 0..=0,
};

impl Carrier {
    /// All carriers.
    pub const ALL: [Carrier; 4] = [Carrier::Tcp, Carrier::Verbs, Carrier::VerbsPool, Carrier::Shm];

    fn facts(self) -> Facts {
        match self {
            Carrier::Tcp => Facts {
                name: "tcp",
                kind: FabricKind::Tcp,
                on: &[],
                off: &[],
                device: false,
                // The kernel copies on both sides. The landing header and padding are copied, too.
                copies: |bytes| 2 * bytes..=3 * bytes + 512,
            },
            Carrier::Verbs => VERBS,
            Carrier::VerbsPool => Facts {
                name: "verbs-pool",
                on: &["--verbs", "on", "--require", "verbs", "--isolation", "pool", "--verbs-queue-pairs", "2"],
                // The other carrier of this fabric has them.
                off: &[],
                ..VERBS
            },
            Carrier::Shm => Facts {
                name: "shm",
                kind: FabricKind::Shm,
                // Reading by reference has tests of its own. These also test landing memory.
                on: &["--shm", "on", "--shm-reference", "off", "--require", "shm"],
                off: &["--shm", "off"],
                device: false,
                // The receiver copies once, with the landing header and padding.
                copies: |bytes| bytes..=bytes + 512,
            },
        }
    }

    /// Returns the fabric that `TRANSFER_TEST_FABRIC` names; TCP if it is not set.
    ///
    /// # Panics
    /// If it names no fabric: otherwise a run over the wrong fabric would pass for the right one.
    #[must_use]
    pub fn chosen() -> Carrier {
        let Ok(name) = std::env::var("TRANSFER_TEST_FABRIC") else { return Carrier::Tcp };
        Carrier::from_name(&name).unwrap_or_else(|why| panic!("TRANSFER_TEST_FABRIC is {name:?}: {why}"))
    }

    /// Returns the carrier with this name in `TRANSFER_TEST_FABRIC`.
    ///
    /// # Errors
    /// The names that there are.
    pub fn from_name(name: &str) -> Result<Carrier, String> {
        Carrier::ALL.into_iter().find(|carrier| carrier.facts().name == name).ok_or_else(|| {
            let names = Carrier::ALL.map(|carrier| carrier.facts().name);
            format!("the fabrics are {}", names.join(", "))
        })
    }

    /// Returns the fabric's name in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().kind.name()
    }

    /// Returns the fabric's number in a status.
    ///
    /// # Panics
    /// If the services do not know the fabric.
    #[must_use]
    pub fn kind(self) -> Fabric {
        Fabric::try_from(self.facts().kind as i32).expect("types.proto has every fabric")
    }

    /// Returns whether the fabric needs a device. Such a device copies without a CPU, and has atomic operations.
    #[must_use]
    pub fn has_device(self) -> bool {
        self.facts().device
    }

    /// Returns the arguments of a sidecar that listens, by which it uses this fabric and no other.
    #[must_use]
    pub fn arguments(self) -> Vec<&'static str> {
        let own = self.facts();
        let others = Carrier::ALL.map(Carrier::facts).into_iter().filter(|other| other.kind != own.kind);
        others.flat_map(|other| other.off).chain(own.on).copied().collect()
    }

    /// Returns how many bytes CPUs copy for a transfer of that many.
    #[must_use]
    pub fn copies(self, bytes: u64) -> RangeInclusive<u64> {
        (self.facts().copies)(bytes)
    }

    /// Checks the report of a transfer between two nodes: it names this fabric, and counts the copies that this fabric
    /// makes.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn carried(self, report: &Report) {
        assert_eq!(report.fabric, self.name(), "{}", report.text);
        assert!((self.facts().copies)(report.bytes).contains(&report.copied), "{}", report.text);
    }
}
