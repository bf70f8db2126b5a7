//! What may happen. Nothing changes here but the count of refusals.
//!
//! # Layout
//! - `access`: what workers, peers and tenants may do, and the failures that say why not.
//! - `lookup`: which version a request means, and whether it can be read where it lies.
//! - `limits`: how many keys and versions a worker, a tenant and the node may have.

mod access;
mod limits;
mod lookup;

pub(super) use access::key_owned;
