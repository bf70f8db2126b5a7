//! The tests that every fabric has to pass, generic over the trait.
//!
//! A fabric's own tests implement the making of two fabrics and their memory (a [`Rig`]), and call
//! [`conformance_tests!`](crate::conformance_tests), which makes one `#[test]` of each rule. Nothing here knows which
//! fabric it is; its [`Capabilities`](transfer_core::fabric::Capabilities) describe its choices.

#![allow(missing_docs, clippy::missing_panics_doc, clippy::unwrap_used, reason = "tests, used by tests only")]

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
    /// The fabric under test. Clones of a memory are the same memory.
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

    /// Called when no fabric had work: lets time pass.
    fn idle(&mut self);

    /// Ends a fabric as the death of its process would.
    fn kill(&mut self, fabric: Self::Fabric) {
        drop(fabric);
        self.killed();
    }

    /// The effects of the death of a fabric's process besides the drop.
    fn killed(&mut self) {}
}

/// A rig's memory.
pub type Memory<R> = <<R as Rig>::Fabric as Fabric>::Memory;

/// Makes one `#[test]` for each rule, with a fresh rig from the given expression; and with the attributes before it in
/// brackets, such as `[#[ignore]]`.
#[macro_export]
macro_rules! conformance_tests {
    ([$(#[$attribute:meta])*] $rig:expr) => {
        $crate::conformance_tests!(@each [$(#[$attribute])*] $rig,
            connecting: connects_in_both_directions, nothing_comes_before_connected, states_are_checked, bad_offers_are_refused, disconnect_is_heard_by_both,
                a_dead_peer_is_noticed, a_dead_link_takes_nothing, many_links_at_once, a_sleeper_is_woken;
            memory: registers_once, slices_are_checked, grants_are_reported, revoking_is_reported_always, grants_end_one_by_one,
                deregistering_takes_grants_back, read_only_memory_is_not_granted;
            transfers: writes_of_many_sizes, a_large_write, gathers, immediates_come_after_what_was_written,
                completion_means_placed, messages_arrive_in_order, limits_are_told, a_full_queue_recovers,
                both_directions_at_once;
            refusals: an_unknown_key, a_key_of_another_link, out_of_bounds, a_revoked_key, a_key_of_a_dead_link,
                a_refused_write_raises_no_immediate;
            atomics: words_are_read_added_to_and_swapped, own_words_are_operated_on_by_the_device, adds_from_both_sides_all_count, a_word_that_was_not_granted, a_word_whose_grant_was_revoked, words_are_aligned;
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
