//! The configuration of rails: how many, over which fabrics, and the capabilities of the whole.

use super::MAX_RAILS;
use super::frame::OVERHEAD;
use crate::fabric::{Capabilities, FabricKind, Isolation};

/// The rails of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailsConfig {
    /// The index of the inner fabric of each rail. `[0, 0]` is two rails over the first fabric, `[0, 1]` is one rail
    /// over each of two. A link has the smaller number of rails of its two sides.
    pub rails: Vec<usize>,
    /// The smallest size of a share, in bytes. A write of at least twice this size is striped.
    pub stripe_bytes: u64,
    /// A share begins at a multiple of this many bytes in its write. A page, so that two rails do not share one. At
    /// least [`ALIGNMENT`](crate::memory::ALIGNMENT), so that the first share has the whole landing header.
    pub align_bytes: u64,
}

impl RailsConfig {
    /// Creates a configuration with these rails and the default sizes.
    #[must_use]
    pub fn new(rails: &[usize]) -> RailsConfig {
        RailsConfig { rails: rails.to_vec(), stripe_bytes: 256 << 10, align_bytes: 4096 }
    }
}

/// The error for fabrics and rails that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailsError {
    /// The number of rails is not between 1 and [`crate::memory::RailKeys::MAX_RAILS`].
    #[error("a link has 1 to 4 rails, not {0}")]
    Count(usize),
    /// A rail uses a fabric that does not exist.
    #[error("rail {rail} is over fabric {fabric}, of {fabrics}")]
    NoSuchFabric {
        /// The rail.
        rail: usize,
        /// The index of its fabric.
        fabric: usize,
        /// The number of fabrics.
        fabrics: usize,
    },
    /// The inner fabrics have different kinds.
    #[error("rails of one link are of one kind, not of {0} and {1}")]
    Kinds(FabricKind, FabricKind),
    /// A fabric's messages are too short for a frame around the smallest allowed message.
    #[error("messages of {0} bytes leave no room: {min} and {OVERHEAD} for the frame are needed", min = Capabilities::MIN_MESSAGE_BYTES)]
    MessageBytes(usize),
    /// A fabric has too few receive slots.
    #[error("{slots} receive slots are too few for {rails} rails, which need at least {least}")]
    ReceiveSlots {
        /// The number of its receive slots.
        slots: u32,
        /// The number of rails.
        rails: usize,
        /// The number of receive slots that the rails need.
        least: u32,
    },
}

/// The smallest number of receive slots with which a link can be used.
const MIN_SLOTS: u32 = 4;

/// Returns the number of receive slots that each inner link needs, so that a link with this number of rails has
/// `outer`.
///
/// A WAIT may precede each message or immediate, with a FENCE on every other rail. If rails die, all of these may
/// arrive over one rail. So may one RAIL_DOWN for each other rail, which the peer sends without a credit.
#[must_use]
pub fn inner_slots(outer: u32, rails: usize) -> u32 {
    let rails = u32::try_from(rails).unwrap_or(u32::MAX);
    if rails <= 1 { outer } else { outer.saturating_mul(rails.saturating_add(1)).saturating_add(rails) }
}

impl RailsConfig {
    /// Checks that fabrics of these kinds and capabilities fit together. Returns their common capabilities.
    pub(super) fn check(&self, inner: &[(FabricKind, Capabilities)]) -> Result<Capabilities, RailsError> {
        let count = self.rails.len();
        let missing = |(_, fabric): &(usize, &usize)| **fabric >= inner.len();
        if let Some((rail, fabric)) = self.rails.iter().enumerate().find(missing) {
            return Err(RailsError::NoSuchFabric { rail, fabric: *fabric, fabrics: inner.len() });
        }
        let Some((kind, first)) = inner.first().filter(|_| (1..=MAX_RAILS).contains(&count)) else {
            return Err(RailsError::Count(count));
        };
        if let Some((other, _)) = inner.iter().find(|(other, _)| other != kind) {
            return Err(RailsError::Kinds(*kind, *other));
        }
        let mut all = first.clone();
        for (_, one) in inner {
            all.max_sge = all.max_sge.min(one.max_sge);
            all.max_write_bytes = all.max_write_bytes.min(one.max_write_bytes);
            all.max_message_bytes = all.max_message_bytes.min(one.max_message_bytes);
            all.receive_slots = all.receive_slots.min(one.receive_slots);
            all.sender_copies = all.sender_copies.max(one.sender_copies);
            all.receiver_copies = all.receiver_copies.min(one.receiver_copies);
            all.checks_bounds &= one.checks_bounds;
            all.acknowledges_unannounced |= one.acknowledges_unannounced;
            if one.isolation == Isolation::Segment {
                all.isolation = Isolation::Segment;
            }
        }
        if count > 1 {
            let bytes = all.max_message_bytes;
            all.max_message_bytes = bytes.saturating_sub(OVERHEAD);
            if all.max_message_bytes < Capabilities::MIN_MESSAGE_BYTES {
                return Err(RailsError::MessageBytes(bytes));
            }
            let (slots, least) = (all.receive_slots, inner_slots(MIN_SLOTS, count));
            if slots < least {
                return Err(RailsError::ReceiveSlots { slots, rails: count, least });
            }
            // The inverse of `inner_slots`. There are at most four rails.
            let rails = u32::try_from(count).unwrap_or(u32::MAX);
            all.receive_slots = (slots - rails) / (rails + 1);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inner(message_bytes: usize, slots: u32) -> (FabricKind, Capabilities) {
        let capabilities =
            Capabilities { max_message_bytes: message_bytes, receive_slots: slots, ..Capabilities::new() };
        (FabricKind::Sim, capabilities)
    }

    #[test]
    fn single_rail_has_the_capabilities_of_its_fabric() {
        let fabrics = [inner(1024, 8)];
        assert_eq!(RailsConfig::new(&[0]).check(&fabrics), Ok(fabrics[0].1.clone()));
    }

    #[test]
    fn several_rails_have_the_common_capabilities() {
        let fabrics = [inner(4096, 256), inner(2048, 128)];
        let all = RailsConfig::new(&[0, 1]).check(&fabrics).unwrap();
        assert_eq!((all.max_message_bytes, all.receive_slots), (2047, 42));
        for (outer, rails) in [(8, 2), (84, 2), (256, 4)] {
            let fabrics = [inner(2048, inner_slots(outer, rails))];
            let all = RailsConfig::new(&vec![0; rails]).check(&fabrics).unwrap();
            assert_eq!(all.receive_slots, outer);
        }
    }

    #[test]
    fn invalid_rails_config_is_refused() {
        let check = |rails: &[usize], fabrics: &[_]| RailsConfig::new(rails).check(fabrics).unwrap_err().to_string();
        assert_eq!(check(&[], &[inner(2048, 99)]), "a link has 1 to 4 rails, not 0");
        assert_eq!(check(&[0; 5], &[inner(2048, 99)]), "a link has 1 to 4 rails, not 5");
        assert_eq!(check(&[0, 1], &[inner(2048, 99)]), "rail 1 is over fabric 1, of 1");
        assert!(check(&[0, 0], &[inner(1024, 99)]).contains("1024 bytes leave no room"));
        assert!(check(&[0, 0], &[inner(2048, 10)]).contains("at least 14"));
    }
}
