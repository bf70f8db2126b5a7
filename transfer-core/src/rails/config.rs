//! How many rails, over what, and what the whole can do.

use super::MAX_RAILS;
use super::frame::OVERHEAD;
use crate::fabric::{Capabilities, FabricKind, Isolation};

/// Which rails a link gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailsConfig {
    /// For each rail the place of its fabric among the inner ones. `[0, 0]`: two over the first; `[0, 1]`: one over each of two. A link
    /// has as many as both of its sides have.
    pub rails: Vec<usize>,
    /// The least bytes for which a share is worth a rail: a write of at least twice as many is striped.
    pub stripe_bytes: u64,
    /// A share begins at a multiple of so many bytes in its write: a page, so that rails do not share one. At least
    /// [`ALIGNMENT`](crate::memory::ALIGNMENT), so that the first has the whole landing header.
    pub align_bytes: u64,
}

impl RailsConfig {
    /// These rails, with the usual bounds.
    #[must_use]
    pub fn new(rails: &[usize]) -> RailsConfig {
        RailsConfig { rails: rails.to_vec(), stripe_bytes: 256 << 10, align_bytes: 4096 }
    }
}

/// Fabrics and rails that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailsError {
    /// A link needs one at least, and has [`crate::memory::RailKeys::MAX_RAILS`] at most.
    #[error("a link has 1 to 4 rails, not {0}")]
    Count(usize),
    /// A rail over a fabric that is not there.
    #[error("rail {rail} is over fabric {fabric}, of {fabrics}")]
    NoSuchFabric {
        /// The rail.
        rail: usize,
        /// Its fabric's place.
        fabric: usize,
        /// How many there are.
        fabrics: usize,
    },
    /// Rails of different kinds.
    #[error("rails of one link are of one kind, not of {0} and {1}")]
    Kinds(FabricKind, FabricKind),
    /// A fabric whose messages leave no room for a frame.
    #[error("messages of {0} bytes leave no room: {min} and {OVERHEAD} for the frame are needed", min = Capabilities::MIN_MESSAGE_BYTES)]
    MessageBytes(usize),
    /// A fabric with too few receive slots.
    #[error("{slots} receive slots are too few for {rails} rails, which need at least {least}")]
    ReceiveSlots {
        /// How many it has.
        slots: u32,
        /// How many rails there are.
        rails: usize,
        /// How many they need.
        least: u32,
    },
}

/// The fewest receive slots with which a link can be used.
const LEAST_SLOTS: u32 = 4;

/// Receive slots that each inner link needs, so that one of `rails` has `outer`.
///
/// In front of each message or immediate there may be a WAIT, and a FENCE on every other rail. Where rails die, all of them may come
/// over one; and so may a RAIL_DOWN for each other rail, which nobody counts.
#[must_use]
pub fn inner_slots(outer: u32, rails: usize) -> u32 {
    let rails = u32::try_from(rails).unwrap_or(u32::MAX);
    if rails <= 1 { outer } else { outer.saturating_mul(rails.saturating_add(1)).saturating_add(rails) }
}

impl RailsConfig {
    /// Checks that fabrics with these kinds and capabilities fit, and answers what they can do together.
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
            all.acknowledges_unheard |= one.acknowledges_unheard;
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
            let (slots, least) = (all.receive_slots, inner_slots(LEAST_SLOTS, count));
            if slots < least {
                return Err(RailsError::ReceiveSlots { slots, rails: count, least });
            }
            // The inverse of `inner_slots`; there are four rails at most.
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
    fn one_rail_is_what_its_fabric_is() {
        let fabrics = [inner(1024, 8)];
        assert_eq!(RailsConfig::new(&[0]).check(&fabrics), Ok(fabrics[0].1.clone()));
    }

    #[test]
    fn several_are_what_all_can_do() {
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
    fn what_does_not_fit_is_refused() {
        let check = |rails: &[usize], fabrics: &[_]| RailsConfig::new(rails).check(fabrics).unwrap_err().to_string();
        assert_eq!(check(&[], &[inner(2048, 99)]), "a link has 1 to 4 rails, not 0");
        assert_eq!(check(&[0; 5], &[inner(2048, 99)]), "a link has 1 to 4 rails, not 5");
        assert_eq!(check(&[0, 1], &[inner(2048, 99)]), "rail 1 is over fabric 1, of 1");
        assert!(check(&[0, 0], &[inner(1024, 99)]).contains("1024 bytes leave no room"));
        assert!(check(&[0, 0], &[inner(2048, 10)]).contains("at least 14"));
    }
}
