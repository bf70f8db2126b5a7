//! Versions, and who waits for them. What one of them gets may free another one, so some of these files call each other.
//!
//! # Layout
//! - `versions`: publishes versions, and answers those who wait for them.
//! - `ops`: the end of an operation: with a failure, given up, overdue, or with its worker.
//! - `destinations`: the end of fetches into the memory of workers.
//! - `serve`: answers requests of peers. `by_reference`: where the peer reads the memory of this node.
//! - `copies`: copies what cannot be read where it lies. `copying`: the state of a copy.
//! - `packing`: packs parts before they are sent. `places`: how many of them a peer has at a time.
//! - `ending_streams`: fails those who wait for what follows the end of a stream.
//! - `spreading`: sends nodes to others for a version. `relaying`: sends on what other nodes own.
//! - `take_back`: takes back a version whose memory its worker wants to write again.

mod by_reference;
mod copies;
mod copying;
mod destinations;
mod ending_streams;
mod ops;
mod packing;
mod places;
mod relaying;
mod serve;
mod spreading;
mod take_back;
mod versions;

pub(super) use copying::{CopyReader, Copying, LandedDelta};
