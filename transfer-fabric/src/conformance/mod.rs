//! The tests that every fabric has to pass, generic over the trait.
//!
//! A fabric's own tests implement [`Rig`], which makes fabrics and their memory, and call
//! [`conformance_tests!`](crate::conformance_tests), which makes one `#[test]` for each rule. The tests do not know
//! which fabric they run on; its [`Capabilities`](transfer_core::fabric::Capabilities) describe its choices.

#![allow(missing_docs, clippy::missing_panics_doc, clippy::unwrap_used, reason = "tests, used by tests only")]

#[cfg(test)]
pub mod acknowledging;
pub mod atomics;
pub mod connecting;
pub mod memory;
pub mod pair;
pub mod rails;
pub mod random;
pub mod refusals;
#[cfg(test)]
pub mod segments;
#[cfg(test)]
mod sim;
pub mod transfers;

use transfer_core::fabric::Fabric;

/// The source of fabrics and their memory.
pub trait Rig {
    /// The fabric under test. Clones of a memory refer to the same memory.
    type Fabric: Fabric<Memory: Clone>;

    /// Makes one more fabric that can reach the earlier ones.
    fn fabric(&mut self) -> Self::Fabric;

    /// Makes zeroed memory that can be registered, and written by peers.
    fn memory(&mut self, len: u64) -> Memory<Self>;

    /// Makes memory that can be registered and must not be written by peers; `None` if the fabric has no such memory.
    fn read_only_memory(&mut self, len: u64) -> Option<Memory<Self>>;

    /// Reads memory as its owner.
    fn read(&mut self, memory: &Memory<Self>, offset: u64, to: &mut [u8]);

    /// Writes memory as its owner.
    fn write(&mut self, memory: &Memory<Self>, offset: u64, bytes: &[u8]);

    /// Lets time pass. Called when no fabric had work.
    fn idle(&mut self);

    /// Ends a fabric in the way that the death of its process would.
    fn kill(&mut self, fabric: Self::Fabric) {
        drop(fabric);
        self.killed();
    }

    /// Causes the effects of the death of a fabric's process that dropping the fabric does not have.
    fn killed(&mut self) {}
}

/// A rig's memory.
pub type Memory<R> = <<R as Rig>::Fabric as Fabric>::Memory;

/// Makes one `#[test]` for each rule, with a fresh rig from the given expression. Attributes in brackets before the
/// expression, such as `[#[ignore]]`, are added to each test.
#[macro_export]
macro_rules! conformance_tests {
    ([$(#[$attribute:meta])*] $rig:expr) => {
        $crate::conformance_tests!(@each [$(#[$attribute])*] $rig,
            connecting: connects_in_both_directions, connected_is_reported_first, states_are_checked, bad_offers_are_refused, disconnect_is_reported_to_both_sides,
                a_dead_peer_is_noticed, dead_link_refuses_posts, many_links_at_once, sleeper_is_woken;
            memory: registers_once, slices_are_checked, grants_are_reported, every_revoke_is_reported, grants_end_one_by_one,
                closed_memory_is_its_owners_again, deregistering_takes_grants_back, read_only_memory_is_not_granted;
            transfers: writes_of_many_sizes, a_large_write, gather_lists_are_placed_in_order, immediates_come_after_what_was_written,
                completion_means_placed, messages_arrive_in_order, limits_are_reported, a_full_queue_recovers,
                both_directions_at_once;
            refusals: unknown_key_is_refused, key_of_another_link_is_checked, write_out_of_bounds_is_refused, revoked_key_is_checked, key_of_a_dead_link_is_checked,
                a_refused_write_raises_no_immediate;
            atomics: words_are_read_added_to_and_swapped, own_words_are_operated_on_by_the_device, adds_from_both_sides_all_count, word_without_a_grant_is_refused, word_with_a_revoked_grant_is_refused, words_are_aligned;
            random: mixed_operations;
        );
    };
    ($rig:expr) => {
        $crate::conformance_tests!([] $rig);
    };
    (@each $attributes:tt $rig:expr, $($module:ident: $($name:ident),+;)+) => {
        $($(
            $crate::conformance_tests!(@one $attributes $rig, $module, $name);
        )+)+
    };
    (@one [$(#[$attribute:meta])*] $rig:expr, $module:ident, $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::conformance::$module::$name($rig);
        }
    };
}
