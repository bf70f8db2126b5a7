//! Room in the landing pools.
//!
//! # Layout
//! - `pools`: gives room to flows, or lets them wait. `recall`: calls idle slots back for those who wait.
//! - `pull_slots`: the slots of requests to peers.
//! - `calls`: calls for many slots, at both ends of a link.

mod calls;
mod pools;
mod pull_slots;
mod recall;
