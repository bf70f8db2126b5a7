//! Exchanges, as far as clients and sidecars have to agree: the names of their keys, and what the anchor and the marks
//! say.
//!
//! No message of the protocol knows of exchanges. A sidecar recognizes their keys, and reads the labels under two kinds of
//! them: to show an operator what an exchange has here, and to refuse one of more partitions than its limit.
//!
//! # Layout
//! - `names`: the keys of an exchange. `label`: what lies under the keys of the anchor and of the marks.

mod label;
mod names;

pub use label::Label;
pub use names::{
    ExchangeId, ExchangeKey, MAX_NAME_BYTES, MAX_PARTITIONS, MAX_TASKS, PREFIX, Part, anchor_key, bundle_key,
    bundle_rest, bundle_stem, mark_key, note_key, record_key,
};
