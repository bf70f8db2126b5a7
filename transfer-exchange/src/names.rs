//! The names of an exchange's keys and counters. Those of its keys are in [`transfer_core::exchange`], because sidecars know
//! them too.

use crate::error::{Error, ExchangeError};
use std::hash::{BuildHasher, RandomState};
use transfer_core::exchange;
use transfer_core::tensor::{Key, Name};

pub(super) use exchange::{ExchangeId, MAX_NAME_BYTES, MAX_PARTITIONS, MAX_TASKS};
pub(super) use exchange::{anchor_key, bundle_key, mark_key, note_key};

/// Draws an identity. The standard library draws the keys of its hashers from the system.
pub(super) fn draw_id() -> ExchangeId {
    let half = || RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&half());
    id[8..].copy_from_slice(&half());
    ExchangeId(id)
}

/// The part of an identity that stands in the words of the tasks. It is never 0.
pub(super) fn stamp(ExchangeId([a, b, c, d, ..]): ExchangeId) -> u32 {
    u32::from_le_bytes([a, b, c, d]).max(1)
}

/// The key of the record that the opener publishes.
pub(super) fn record_key(name: &str) -> Result<Key, Error> {
    match name.len() {
        0 => Err(ExchangeError::NoName.into()),
        found if found > MAX_NAME_BYTES => Err(ExchangeError::NameTooLong { found, most: MAX_NAME_BYTES }.into()),
        _ => Ok(exchange::record_key(name)?),
    }
}

/// The name of a counter that holds the word of a task. A worker uses its counters for one exchange after the other,
/// because a counter lives as long as its home.
pub(super) fn word_name(opener: &Name, number: u32) -> Result<Name, Error> {
    let name = Name::new(&format!("exchange/{opener}/{number}"))?;
    Key::of_counter(&name)?;
    Ok(name)
}
