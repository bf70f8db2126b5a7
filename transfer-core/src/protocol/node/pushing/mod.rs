//! Pushes of workers.
//!
//! # Layout
//! - `publish`: publishes a version at this node. `claim`: the right to do so. `exchanges`: parts of exchanges. `base`: lends what is not published.
//! - `connect`: finds the node of the worker to whom a push goes.
//! - `push_out`: sends it there.

mod base;
mod claim;
mod connect;
mod exchanges;
mod publish;
mod push_out;
