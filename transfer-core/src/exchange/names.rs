//! The keys of an exchange. Its parts have the identity of the exchange in their keys, so that the next exchange of the
//! same name has nothing in common with it.
//!
//! | key | what it is |
//! |---|---|
//! | `exchange/NAME` | the record, which the opener publishes for those who join |
//! | `exchange/NAME/ID` | the anchor |
//! | `exchange/NAME/ID/TASK` | the note of a task |
//! | `exchange/NAME/ID/TASK.ATTEMPT` | the mark of an attempt |
//! | `exchange/NAME/ID/TASK.ATTEMPT/BUNDLE` | a bundle of an attempt |

use crate::tensor::{InvalidName, Key, Name};
use std::fmt;

/// The most tasks of one exchange. Each has a counter at the exchange's home, and a sidecar is home to at most 4,096
/// counters, of which one tenant may have three quarters.
pub const MAX_TASKS: u32 = 2048;

/// The most partitions of one exchange.
pub const MAX_PARTITIONS: u32 = 4096;

/// The longest name of an exchange, in bytes: the keys of its bundles have up to 66 more.
pub const MAX_NAME_BYTES: usize = 440;

/// How all keys of exchanges begin.
pub const PREFIX: &str = "exchange/";

/// The digits of an identity.
const ID_DIGITS: usize = 32;

/// A random number that no other exchange has. It is a part of every key of the exchange but one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeId(pub [u8; 16]);

impl fmt::Display for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ExchangeId {
    /// Reads the digits that it is written with.
    #[must_use]
    pub fn parse(text: &str) -> Option<ExchangeId> {
        let digit = |byte: &u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        if text.len() != ID_DIGITS {
            return None;
        }
        let mut id = [0; 16];
        for (byte, [high, low]) in id.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Some(ExchangeId(id))
    }
}

/// The key of the record that the opener publishes.
///
/// # Errors
/// [`InvalidName`] if the name is too long.
pub fn record_key(name: &str) -> Result<Key, InvalidName> {
    Key::new(&format!("{PREFIX}{name}"))
}

/// The key of the anchor, which the opener publishes as long as the exchange is open. It is the parent of the keys of
/// notes and marks: what tasks have committed stays as long as the anchor.
///
/// # Errors
/// [`InvalidName`] if the name is too long.
pub fn anchor_key(name: &str, id: ExchangeId) -> Result<Key, InvalidName> {
    Key::new(&format!("{PREFIX}{name}/{id}"))
}

/// The key of the note that says which attempt has committed a task.
///
/// # Errors
/// [`InvalidName`] if the name is too long.
pub fn note_key(name: &str, id: ExchangeId, task: u32) -> Result<Key, InvalidName> {
    Key::new(&format!("{PREFIX}{name}/{id}/{task}"))
}

/// The key of the mark of an attempt that has committed. It is the parent of the keys of its bundles, which stay as long
/// as the mark. So what an attempt has published before its worker died stays only if it has committed.
///
/// # Errors
/// [`InvalidName`] if the name is too long.
pub fn mark_key(name: &str, id: ExchangeId, (task, attempt): (u32, u32)) -> Result<Key, InvalidName> {
    Key::new(&format!("{PREFIX}{name}/{id}/{task}.{attempt}"))
}

/// The key of a bundle of an attempt.
///
/// # Errors
/// [`InvalidName`] if the name is too long.
pub fn bundle_key(name: &str, id: ExchangeId, (task, attempt): (u32, u32), bundle: u32) -> Result<Key, InvalidName> {
    Key::new(&format!("{PREFIX}{name}/{id}/{}", bundle_rest((task, attempt), bundle)))
}

/// The text with which the keys of all bundles of an exchange begin.
///
/// # Errors
/// [`InvalidName`] if the name is too long.
pub fn bundle_stem(name: &str, id: ExchangeId) -> Result<Name, InvalidName> {
    Name::new(&format!("{PREFIX}{name}/{id}/"))
}

/// The text that follows the [stem](bundle_stem) in the key of a bundle.
#[must_use]
pub fn bundle_rest((task, attempt): (u32, u32), bundle: u32) -> String {
    format!("{task}.{attempt}/{bundle}")
}

/// A part of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The anchor.
    Anchor,
    /// The note of this task.
    Note(u32),
    /// The mark of this task and attempt.
    Mark(u32, u32),
    /// A bundle of this task and attempt.
    Bundle(u32, u32),
}

impl Part {
    /// Its task, if it belongs to one.
    #[must_use]
    pub fn task(self) -> Option<u32> {
        match self {
            Part::Anchor => None,
            Part::Note(task) | Part::Mark(task, _) | Part::Bundle(task, _) => Some(task),
        }
    }
}

/// What the key of a part of an exchange says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeKey<'a> {
    /// The name of the exchange.
    pub name: &'a str,
    /// Its identity.
    pub id: ExchangeId,
    /// The part.
    pub part: Part,
}

impl ExchangeKey<'_> {
    /// Reads the key of a part. `None` for all other keys, also for that of a record, which has no identity. Any worker
    /// can publish a key of this form, so what it says is a claim.
    #[must_use]
    pub fn parse(key: &str) -> Option<ExchangeKey<'_>> {
        let rest = key.strip_prefix(PREFIX)?;
        let (rest, last) = rest.rsplit_once('/')?;
        if let Some(id) = ExchangeId::parse(last) {
            return ExchangeKey { name: rest, id, part: Part::Anchor }.checked();
        }
        let (name, before) = rest.rsplit_once('/')?;
        if let Some(id) = ExchangeId::parse(before) {
            let part = match number(last) {
                Some(task) => Part::Note(task),
                None => attempt(last).map(|(task, attempt)| Part::Mark(task, attempt))?,
            };
            return ExchangeKey { name, id, part }.checked();
        }
        number(last)?;
        let (task, attempt) = attempt(before)?;
        let (name, id) = name.rsplit_once('/')?;
        ExchangeKey { name, id: ExchangeId::parse(id)?, part: Part::Bundle(task, attempt) }.checked()
    }

    fn checked(self) -> Option<Self> {
        let fits = (1..=MAX_NAME_BYTES).contains(&self.name.len());
        (fits && self.part.task().is_none_or(|task| task < MAX_TASKS)).then_some(self)
    }
}

/// Reads a number as it is written, without a sign and without zeros in front.
fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

fn attempt(text: &str) -> Option<(u32, u32)> {
    let (task, attempt) = text.split_once('.')?;
    Some((number(task)?, number(attempt)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_fuzz::Target;

    const ID: ExchangeId = ExchangeId([0xa7; 16]);

    fn keys(name: &str) -> [(Key, Part); 4] {
        [
            (anchor_key(name, ID).unwrap(), Part::Anchor),
            (note_key(name, ID, 7).unwrap(), Part::Note(7)),
            (mark_key(name, ID, (0, 4_294_967_292)).unwrap(), Part::Mark(0, 4_294_967_292)),
            (bundle_key(name, ID, (2047, 1), 31).unwrap(), Part::Bundle(2047, 1)),
        ]
    }

    #[test]
    fn keys_of_parts_read_back() {
        // A name may look like parts of a key.
        for name in ["e", "epoch/3", "a/b/7.1/0", &format!("a/{ID}/7"), &"x".repeat(MAX_NAME_BYTES)] {
            for (key, part) in keys(name) {
                assert_eq!(ExchangeKey::parse(key.as_str()), Some(ExchangeKey { name, id: ID, part }), "{key}");
            }
        }
    }

    // Promise: exchange-lists
    #[test]
    fn other_keys_are_no_parts() {
        let id = ID.to_string();
        for key in [
            "exchange/e".to_owned(),
            "exchange/e/7".to_owned(),
            format!("exchange/{id}"),
            format!("exchange//{id}"),
            format!("exchanges/e/{id}"),
            format!("exchange/e/{}", id.to_uppercase()),
            format!("exchange/e/{id}/"),
            format!("exchange/e/{id}/07"),
            format!("exchange/e/{id}/+7"),
            format!("exchange/e/{id}/2048"),
            format!("exchange/e/{id}/7.4294967296"),
            format!("exchange/e/{id}/7.1.2"),
            format!("exchange/e/{id}/7/0"),
            format!("exchange/e/{id}/7.1/x"),
            format!("exchange/e/{id}/7.1/0/0"),
            format!("exchange/{}/{id}", "x".repeat(MAX_NAME_BYTES + 1)),
        ] {
            assert_eq!(ExchangeKey::parse(&key), None, "{key}");
        }
    }

    #[test]
    fn fuzz_exchange_key() {
        let seeds = keys("a/b").map(|(key, _)| key.as_str().as_bytes().to_vec());
        Target::new("exchange-key", seeds).run(|bytes| {
            let Some(key) = std::str::from_utf8(bytes).ok().and_then(ExchangeKey::parse) else { return "none".into() };
            let text = std::str::from_utf8(bytes).unwrap();
            let again = match key.part {
                Part::Anchor => anchor_key(key.name, key.id),
                Part::Note(task) => note_key(key.name, key.id, task),
                Part::Mark(task, attempt) => mark_key(key.name, key.id, (task, attempt)),
                Part::Bundle(task, attempt) => {
                    let bundle = text.rsplit('/').next().unwrap().parse().unwrap();
                    bundle_key(key.name, key.id, (task, attempt), bundle)
                }
            };
            if let Ok(again) = again {
                assert_eq!(again.as_str(), text);
            }
            format!("{:?}", std::mem::discriminant(&key.part))
        });
    }
}
