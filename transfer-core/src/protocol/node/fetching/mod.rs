//! Fetches of workers.
//!
//! # Layout
//! - `fetch`: finds the key's owner: this node, a known one, or what the directory says.
//! - `pull`: gets a version from its owner.
//! - `gather`: fetches ranges of several versions together, and answers such a request.

mod fetch;
mod gather;
mod pull;
