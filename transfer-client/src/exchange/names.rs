//! The names of an exchange's keys and counters.

use super::ExchangeError;
use crate::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use transfer_core::tensor::{Key, Name};

/// The most tasks of one exchange. Each has a counter at the exchange's home, and a sidecar is home to at most 4,096
/// counters, of which one tenant may have three quarters.
pub(super) const MAX_TASKS: u32 = 2048;

/// The most partitions of one exchange.
pub(super) const MAX_PARTITIONS: u32 = 4096;

/// The longest name of an exchange, in bytes: the keys of its tasks have up to 66 more.
pub(super) const MAX_NAME_BYTES: usize = 440;

/// A random number that no other exchange has. It is a part of every key of the exchange but one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(pub(super) [u8; 16]);

impl Id {
    /// Draws an identity. The standard library draws the keys of its hashers from the system.
    pub(super) fn draw() -> Id {
        let half = || RandomState::new().hash_one(std::process::id()).to_le_bytes();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&half());
        id[8..].copy_from_slice(&half());
        Id(id)
    }

    /// The part of the identity that stands in the words of the tasks. It is never 0.
    pub(super) fn stamp(self) -> u32 {
        let Id([a, b, c, d, ..]) = self;
        u32::from_le_bytes([a, b, c, d]).max(1)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The key of the record that the opener publishes.
pub(super) fn record_key(name: &str) -> Result<Key, Error> {
    match name.len() {
        0 => Err(ExchangeError::NoName.into()),
        found if found > MAX_NAME_BYTES => Err(ExchangeError::NameTooLong { found, most: MAX_NAME_BYTES }.into()),
        _ => Ok(Key::new(&format!("exchange/{name}"))?),
    }
}

/// The key of the note that says which attempt has committed a task.
pub(super) fn note_key(name: &str, id: Id, task: u32) -> Result<Key, Error> {
    Ok(Key::new(&format!("exchange/{name}/{id}/{task}"))?)
}

/// The key of the anchor, which the opener publishes as long as the exchange is open. It is the parent of the keys of
/// notes and marks: what tasks have committed stays as long as the anchor.
pub(super) fn anchor_key(name: &str, id: Id) -> Result<Key, Error> {
    Ok(Key::new(&format!("exchange/{name}/{id}"))?)
}

/// The key of the mark of an attempt that has committed. It is the parent of the keys of its bundles, which stay as long
/// as the mark. So what an attempt has published before its worker died stays only if it has committed.
pub(super) fn mark_key(name: &str, id: Id, (task, attempt): (u32, u32)) -> Result<Key, Error> {
    Ok(Key::new(&format!("exchange/{name}/{id}/{task}.{attempt}"))?)
}

/// The key of a bundle of an attempt.
pub(super) fn bundle_key(name: &str, id: Id, (task, attempt): (u32, u32), bundle: u32) -> Result<Key, Error> {
    Ok(Key::new(&format!("exchange/{name}/{id}/{task}.{attempt}/{bundle}"))?)
}

/// The name of a counter that holds the word of a task. A worker uses its counters for one exchange after the other,
/// because a counter lives as long as its home.
pub(super) fn word_name(opener: &Name, number: u32) -> Result<Name, Error> {
    let name = Name::new(&format!("exchange/{opener}/{number}"))?;
    Key::of_counter(&name)?;
    Ok(name)
}
