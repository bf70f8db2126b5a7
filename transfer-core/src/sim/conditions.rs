//! The properties of a simulated world.

use crate::fabric::Capabilities;
use rand::Rng;
use std::time::Duration;

/// When a grant comes into force, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grants {
    /// With the call, as on fabrics whose receiving side places the bytes.
    Immediate,
    /// Some time after the call, as on verbs.
    Delayed,
}

/// The properties of a simulated world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// The usual upper bound of a delay. One delay in a hundred is up to twenty times as long.
    pub delay: Duration,
    /// When grants begin and end.
    pub grants: Grants,
    /// Whether the key of a grant that ended is sometimes reused.
    pub reuse_keys: bool,
    /// The limits that every fabric reports.
    pub capabilities: Capabilities,
    /// The number of posts, grants and revokes that one side of a link may have outstanding.
    pub send_queue: usize,
    /// The percentage of writes with an immediate that are repeated with other bytes after the immediate was reported,
    /// like a late packet. The repeated write goes through the grant that it was made for, or nowhere.
    pub late_packets: u32,
    /// Whether the two sides of a link may refer to each other's memory.
    pub references: bool,
    /// The percentage of landed transfers whose header is false. A side that accepts a false header is a fault.
    pub lies: u32,
}

impl Conditions {
    /// Returns fast, immediate and honest conditions.
    #[must_use]
    pub fn calm() -> Conditions {
        Conditions {
            delay: Duration::from_micros(10),
            grants: Grants::Immediate,
            reuse_keys: false,
            capabilities: Capabilities::new(),
            send_queue: 128,
            late_packets: 0,
            references: false,
            lies: 0,
        }
    }

    /// Returns random but honest conditions.
    #[must_use]
    pub fn random(rng: &mut impl Rng) -> Conditions {
        let capabilities = Capabilities {
            max_sge: [1, 2, 16][rng.random_range(0..3)],
            max_write_bytes: [64, 256, 1 << 30][rng.random_range(0..3)],
            receive_slots: [8, 16, 64, 256][rng.random_range(0..4)],
            atomics: rng.random(),
            ..Capabilities::new()
        };
        Conditions {
            delay: Duration::from_micros([1, 10, 100, 1000][rng.random_range(0..4)]),
            grants: if rng.random() { Grants::Immediate } else { Grants::Delayed },
            reuse_keys: rng.random(),
            capabilities,
            send_queue: [2, 4, 16, 128][rng.random_range(0..4)],
            late_packets: 0,
            references: false,
            lies: 0,
        }
    }
}
