//! Fetches of workers.
//!
//! # Layout
//! - `fetch`: finds the key's owner: this node, a known one, or what the directory says.
//! - `pull`: asks a version's owner for it. `arrivals`: what has come, and for whom.
//! - `deltas`: versions that come as deltas of ones that are kept here.
//! - `kept`: takes room from versions that are kept for other nodes alone.
//! - `pool_waiters`: gives freed room to those who wait for it, and takes it from versions that are kept.
//! - `redirects`: versions that come in chunks, and the nodes that are asked for them. `chunks`: the chunks. `orphans`: fetches whose owner's link has
//!   ended.
//! - `gather`: fetches ranges of several versions together, and answers such a request.

mod arrivals;
mod chunks;
mod deltas;
mod fetch;
mod gather;
mod kept;
mod orphans;
mod pool_waiters;
mod pull;
mod redirects;
