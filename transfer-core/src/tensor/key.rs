//! Keys, names and versions.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The longest key or name, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 512;

/// Keys that begin with this are the protocol's own; see [`Key::of_counter`].
const RESERVED: char = '\0';

/// The longest name of a counter or barrier, in bytes of UTF-8: its key has two more.
pub const MAX_COUNTER_NAME_BYTES: usize = MAX_KEY_BYTES - 2;

/// A text that cannot be a key or a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The empty text.
    #[error("a {what} must have at least 1 byte")]
    Empty {
        /// "key", "name" or "tensor name".
        what: &'static str,
    },
    /// Longer than [`MAX_KEY_BYTES`].
    #[error("a {what} must have at most {MAX_KEY_BYTES} bytes of UTF-8, this one has {len} (it starts with {start:?})")]
    TooLong {
        /// "key", "name" or "tensor name".
        what: &'static str,
        /// The length found, in bytes.
        len: usize,
        /// Its first characters, to find it by.
        start: String,
    },
    /// Bytes that are no UTF-8.
    #[error("a {what} must be UTF-8; the bytes from offset {valid_up_to} on are not")]
    NotUtf8 {
        /// "key", "name" or "tensor name".
        what: &'static str,
        /// How many bytes were good.
        valid_up_to: usize,
    },
    /// A key that begins as only the keys of counters and barriers do.
    #[error("a key must not begin with a NUL character: those are the keys of counters, barriers and rosters")]
    Reserved,
    /// Longer than [`MAX_COUNTER_NAME_BYTES`].
    #[error(
        "the name of a counter or barrier must have at most {MAX_COUNTER_NAME_BYTES} bytes of UTF-8, this one has {len}"
    )]
    CounterTooLong {
        /// The length found, in bytes.
        len: usize,
    },
}

fn check(what: &'static str, text: &str) -> Result<(), InvalidName> {
    match text.len() {
        0 => Err(InvalidName::Empty { what }),
        _ if what == "key" && text.starts_with(RESERVED) => Err(InvalidName::Reserved),
        len if len > MAX_KEY_BYTES => Err(InvalidName::TooLong { what, len, start: text.chars().take(24).collect() }),
        _ => Ok(()),
    }
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes a text.
            ///
            /// # Errors
            /// [`InvalidName`] where it is empty or longer than [`MAX_KEY_BYTES`].
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                check($what, text)?;
                Ok(Self(Arc::from(text)))
            }

            /// Checks and takes bytes that came from outside.
            ///
            /// # Errors
            /// [`InvalidName`] where they are no UTF-8, empty or too long.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidName> {
                Ok(Self(Arc::from(Self::check_bytes(bytes)?)))
            }

            /// Checks bytes that came from outside, and returns them as a text.
            ///
            /// # Errors
            /// [`InvalidName`] where they are no UTF-8, empty or too long.
            pub fn check_bytes(bytes: &[u8]) -> Result<&str, InvalidName> {
                let text = std::str::from_utf8(bytes)
                    .map_err(|e| InvalidName::NotUtf8 { what: $what, valid_up_to: e.valid_up_to() })?;
                check($what, text)?;
                Ok(text)
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

text_type!(
    /// The name of a tensor: UTF-8, 1 to [`MAX_KEY_BYTES`] bytes. Cheap to clone.
    Key,
    "key"
);
text_type!(
    /// The name of a worker or of a node: UTF-8, 1 to [`MAX_KEY_BYTES`] bytes. Cheap to clone.
    Name,
    "name"
);
text_type!(
    /// The name of a tensor in a bundle: UTF-8, 1 to [`MAX_KEY_BYTES`] bytes. Cheap to clone.
    TensorName,
    "tensor name"
);

/// What a key that the protocol made for itself is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservedFor {
    /// A counter.
    Counter,
    /// A barrier.
    Barrier,
    /// The roster of a sharded state.
    Roster,
}

impl ReservedFor {
    /// What people call it.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            ReservedFor::Counter => "counter",
            ReservedFor::Barrier => "barrier",
            ReservedFor::Roster => "roster",
        }
    }

    const fn mark(self) -> char {
        match self {
            ReservedFor::Counter => 'c',
            ReservedFor::Barrier => 'b',
            ReservedFor::Roster => 's',
        }
    }
}

impl Key {
    /// The key by which the directory knows a counter. No tensor's key equals it.
    ///
    /// # Errors
    /// [`InvalidName::CounterTooLong`].
    pub fn of_counter(name: &Name) -> Result<Key, InvalidName> {
        Key::reserved(ReservedFor::Counter, name)
    }

    /// The key by which the directory knows a barrier. No tensor's key and no counter's equals it.
    ///
    /// # Errors
    /// [`InvalidName::CounterTooLong`].
    pub fn of_barrier(name: &Name) -> Result<Key, InvalidName> {
        Key::reserved(ReservedFor::Barrier, name)
    }

    /// The key by which the directory knows the roster of a sharded state. No other key equals it.
    ///
    /// # Errors
    /// [`InvalidName::CounterTooLong`].
    pub fn of_roster(name: &Name) -> Result<Key, InvalidName> {
        Key::reserved(ReservedFor::Roster, name)
    }

    fn reserved(what: ReservedFor, name: &Name) -> Result<Key, InvalidName> {
        match name.as_str().len() {
            len if len > MAX_COUNTER_NAME_BYTES => Err(InvalidName::CounterTooLong { len }),
            _ => Ok(Key(format!("{RESERVED}{}{name}", what.mark()).into())),
        }
    }

    /// The key without its last part: all before the last `/`. `None` if it has no parent.
    #[must_use]
    pub fn parent(&self) -> Option<Key> {
        let (parent, _) = self.0.rsplit_once('/')?;
        (self.reserved_for().is_none() && !parent.is_empty()).then(|| Key(parent.into()))
    }

    /// The series of the key of a rank's shards: `STATE/rank-RANK/` and 16 hexadecimal digits, of which the last one stands for all.
    /// The versions of a rank take turns under keys that differ in it alone. `None` for any other key.
    #[must_use]
    pub fn series(&self) -> Option<Key> {
        let (rest, instance) = self.0.rsplit_once('/')?;
        let (state, rank) = rest.rsplit_once("/rank-")?;
        let is_instance = instance.len() == 16 && instance.bytes().all(|digit| digit.is_ascii_hexdigit());
        let is_of_shards = is_instance && !state.is_empty() && rank.parse::<u32>().is_ok();
        (is_of_shards && self.reserved_for().is_none()).then(|| Key(self.0[..self.0.len() - 1].into()))
    }

    /// The keys of the series that this is.
    pub(crate) fn of_series(&self) -> impl Iterator<Item = Key> {
        (0..16).map(move |turn| Key(format!("{self}{turn:x}").into()))
    }

    /// What a reserved key is for, and the name there. `None` for a tensor's key.
    #[must_use]
    pub fn reserved_for(&self) -> Option<(ReservedFor, &str)> {
        let rest = self.0.strip_prefix(RESERVED)?;
        [ReservedFor::Counter, ReservedFor::Barrier, ReservedFor::Roster]
            .into_iter()
            .find_map(|what| rest.strip_prefix(what.mark()).filter(|name| !name.is_empty()).map(|name| (what, name)))
    }

    /// A key as nodes and the directory write it to each other: a tensor's, or a reserved one.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn of_directory(text: &str) -> Result<Key, InvalidName> {
        if !text.starts_with(RESERVED) {
            return Key::new(text);
        }
        check("reserved key", text)?;
        let key = Key(Arc::from(text));
        if key.reserved_for().is_some() { Ok(key) } else { Err(InvalidName::Reserved) }
    }
}

impl Name {
    /// A number as a name.
    #[must_use]
    pub fn of_number(number: u32) -> Name {
        Name(number.to_string().into())
    }
}

// The same checks hold for both, so a link's table of names serves keys and workers alike.
impl From<Name> for Key {
    fn from(name: Name) -> Key {
        Key(name.0)
    }
}
impl From<Key> for Name {
    fn from(key: Key) -> Name {
        Name(key.0)
    }
}

/// The version of a key's tensor: rising within one owner's session; the training step, where the caller gives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// The last one that can be pushed: there is always a number above.
    pub const LAST: Version = Version(u64::MAX - 1);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// Which version a fetch asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Select {
    /// The newest there is; waits for the first where there is none.
    Latest,
    /// The newest, once it is this one or later.
    AtLeast(Version),
    /// This one and no other.
    Exactly(Version),
    /// This one and no other, of the owner that has published the one before: it fails once that owner has ended.
    Following(Version),
    /// The newest, once it is another than this one, which the reader has seen: a later one, or a lower one where the key's
    /// versions have begun again since.
    After(Version),
}

impl Select {
    /// Whether `version` answers this.
    #[must_use]
    pub fn takes(self, version: Version) -> bool {
        match self {
            Select::Latest => true,
            Select::AtLeast(v) => version >= v,
            Select::Exactly(v) | Select::Following(v) => version == v,
            Select::After(v) => version != v,
        }
    }

    /// Whether a version that is still to come answers this, and `newest` does not.
    #[must_use]
    pub fn awaits(self, newest: Version) -> bool {
        !self.takes(newest) && !self.missed(newest)
    }

    /// Whether it can never be answered any more once `newest` is published, since versions only rise.
    #[must_use]
    pub fn missed(self, newest: Version) -> bool {
        matches!(self, Select::Exactly(v) | Select::Following(v) if newest > v)
    }

    /// Whether one version alone answers it.
    #[must_use]
    pub fn is_exact(self) -> bool {
        matches!(self, Select::Exactly(_) | Select::Following(_))
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Select::Latest => f.write_str("latest"),
            Select::AtLeast(v) => write!(f, "at least {v}"),
            Select::Exactly(v) | Select::Following(v) => write!(f, "exactly {v}"),
            Select::After(v) => write!(f, "after {v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_shards_of_a_rank_are_one_series() {
        let key = |text: &str| Key::new(text).unwrap();
        let series = key("jobs/7/rank-3/00000000000000af").series().unwrap();
        assert_eq!(series.as_str(), "jobs/7/rank-3/00000000000000a");
        assert_eq!(key("jobs/7/rank-3/00000000000000a0").series(), Some(series.clone()));
        assert!(series.of_series().all(|turn| turn.series().as_ref() == Some(&series)));
        assert_eq!(series.of_series().count(), 16);
        for other in ["policy", "p/rank-1/7", "p/rank-x/00000000000000ab", "/rank-1/00000000000000ab", series.as_str()]
        {
            assert_eq!(key(other).series(), None, "{other}");
        }
        assert_ne!(key("jobs/7/rank-4/00000000000000af").series(), Some(series));
    }

    #[test]
    fn keys_have_1_to_512_bytes() {
        assert!(Key::new(&"k".repeat(512)).is_ok());
        let e = Key::new(&"k".repeat(513)).unwrap_err();
        assert!(e.to_string().contains("512") && e.to_string().contains("513"), "{e}");
        assert!(matches!(Key::new(""), Err(InvalidName::Empty { what: "key" })));
        assert!(matches!(Key::from_bytes(&[b'a', 0xff]), Err(InvalidName::NotUtf8 { valid_up_to: 1, .. })));
    }

    #[test]
    fn counters_barriers_and_tensors_have_keys_of_their_own() {
        let name = |text: &str| Name::new(text).unwrap();
        let (counter, barrier) = (Key::of_counter(&name("x")).unwrap(), Key::of_barrier(&name("x")).unwrap());
        assert_ne!(counter, barrier);
        assert_eq!(counter.reserved_for(), Some((ReservedFor::Counter, "x")));
        assert_eq!(barrier.reserved_for(), Some((ReservedFor::Barrier, "x")));
        assert_eq!(Key::new("x").unwrap().reserved_for(), None);
        for key in [&counter, &barrier] {
            assert_eq!(Key::new(key.as_str()), Err(InvalidName::Reserved));
            assert_eq!(Key::of_directory(key.as_str()).as_ref(), Ok(key));
        }
        assert!(Key::of_directory("\0x").is_err() && Key::of_directory("\0c").is_err());
        assert!(Key::of_directory("x").is_ok());
        assert!(Key::of_counter(&name(&"n".repeat(510))).is_ok());
        let e = Key::of_counter(&name(&"n".repeat(511))).unwrap_err();
        assert!(e.to_string().contains("510") && e.to_string().contains("511"), "{e}");
    }

    #[test]
    fn parent_is_the_key_without_its_last_part() {
        let parent = |key: &str| Key::new(key).unwrap().parent().map(|parent| parent.to_string());
        assert_eq!(parent("a/b/c").as_deref(), Some("a/b"));
        assert_eq!(parent("a/").as_deref(), Some("a"));
        assert_eq!([parent("a"), parent("/a")], [None, None]);
        assert_eq!(Key::of_counter(&Name::new("a/b").unwrap()).unwrap().parent(), None);
    }

    #[test]
    fn selection() {
        assert!(Select::AtLeast(Version(3)).takes(Version(4)));
        assert!(!Select::Exactly(Version(3)).takes(Version(4)));
        assert!(Select::Exactly(Version(3)).missed(Version(4)));
        assert!(!Select::Exactly(Version(3)).missed(Version(2)));
    }
}
