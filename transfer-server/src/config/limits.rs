//! The settings of limits.

use super::Size;
use clap::Args;
use std::fmt;
use std::str::FromStr;
use transfer_core::protocol::Limits;

/// One limit, as NAME=N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    which: usize,
    value: u64,
}

/// The text is not a valid limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotALimit {
    /// The text has no name, or no value.
    #[error("a limit is NAME=N, like keys_per_user=2000000")]
    Form,
    /// No limit has that name.
    #[error("there is no limit {name:?}: the limits are {}", names())]
    Name {
        /// The name.
        name: String,
    },
    /// The value is not a number of at least 1.
    #[error("{name} is {value:?}, and has to be a number from 1 on")]
    Value {
        /// The limit.
        name: String,
        /// Its value.
        value: String,
    },
}

/// All limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllLimits {
    /// The limits of this node.
    pub node: Limits,
    /// The limits of the directory, if this node hosts it.
    pub directory: DirectoryLimits,
    /// The limits of sessions.
    pub sessions: SessionLimits,
}

/// The limits of sessions. A worker that was thrown out counts while its process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// The sessions of one user.
    pub per_user: u64,
    /// The sessions of the node.
    pub per_node: u64,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits { per_user: 1 << 10, per_node: 1 << 12 }
    }
}

/// Limits of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryLimits {
    /// The keys of one node.
    pub keys_per_node: u64,
}

impl Default for DirectoryLimits {
    fn default() -> DirectoryLimits {
        DirectoryLimits { keys_per_node: 1 << 22 }
    }
}

type LimitField = fn(&mut AllLimits) -> &mut u64;

/// The name of each limit, and its place.
const LIMITS: [(&str, LimitField); 10] = [
    ("keys_per_worker", |all| &mut all.node.keys_per_worker),
    ("keys_per_user", |all| &mut all.node.keys_per_user),
    ("keys_per_node", |all| &mut all.node.keys_per_node),
    ("versions_per_worker", |all| &mut all.node.versions_per_worker),
    ("versions_per_user", |all| &mut all.node.versions_per_user),
    ("versions_per_node", |all| &mut all.node.versions_per_node),
    ("directory_keys_per_node", |all| &mut all.directory.keys_per_node),
    ("sessions_per_user", |all| &mut all.sessions.per_user),
    ("sessions_per_node", |all| &mut all.sessions.per_node),
    ("partitions_per_exchange", |all| &mut all.node.partitions_per_exchange),
];

fn names() -> String {
    LIMITS.map(|(name, _)| name).join(", ")
}

impl FromStr for Limit {
    type Err = NotALimit;

    fn from_str(text: &str) -> Result<Limit, NotALimit> {
        let (name, value) = text.split_once('=').ok_or(NotALimit::Form)?;
        let (name, value) = (name.trim(), value.trim());
        let which = LIMITS.iter().position(|(known, _)| *known == name);
        let which = which.ok_or_else(|| NotALimit::Name { name: name.to_owned() })?;
        match value.parse() {
            Ok(value) if value > 0 => Ok(Limit { which, value }),
            _ => Err(NotALimit::Value { name: name.to_owned(), value: value.to_owned() }),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", LIMITS.get(self.which).map_or("", |(name, _)| name), self.value)
    }
}

/// The most versions that a rank keeps have room beside these and the whole one for the one that it pushes.
const MAX_UNFINISHED_VERSIONS: u64 = 6;

/// The limits that differ from the defaults.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LimitsConfig {
    /// The largest numbers of keys, versions, sessions and partitions. Pushes beyond them fail with Busy, and further workers are
    /// refused. keys_per_worker (1048576), keys_per_user (2097152) and keys_per_node (4194304) count keys.
    /// versions_per_worker (2097152), versions_per_user (4194304) and versions_per_node (8388608) count versions that
    /// are published or still read. directory_keys_per_node (4194304) counts the keys of one node in the directory, if
    /// this node hosts it. sessions_per_user (1024) and sessions_per_node (4096) count sessions of workers; a worker
    /// that was thrown out counts while its process lives. partitions_per_exchange (4096) is the most partitions of an
    /// exchange that a worker of this node opens; more are refused. In the file a table named limits
    #[arg(id = "limits", long = "limits", env = "TRANSFER_LIMITS", value_name = "NAME=N", value_delimiter = ',')]
    pub limits: Vec<Limit>,

    /// The most versions of one sharded state that some ranks have committed and others have not, if this node is the home of its
    /// roster, 1 to 6: the node of the worker that was the first to commit. The push of a rank that is further ahead waits. Each
    /// rank keeps its part of each in memory
    #[arg(long, env = "TRANSFER_UNFINISHED_VERSIONS", value_name = "N", default_value_t = Limits::default().unfinished_versions,
        value_parser = clap::value_parser!(u64).range(1..=MAX_UNFINISHED_VERSIONS))]
    pub unfinished_versions: u64,

    /// The most bytes of versions from other nodes that are kept because deltas of them may follow, or because their owner sends other
    /// nodes here for them. They lie in the landing pools, and are given up before anybody waits for room there. With 0 all versions come
    /// as a whole
    #[arg(long, env = "TRANSFER_BASE_BYTES", value_name = "SIZE", default_value_t = DEFAULT_BASE_BYTES)]
    pub base_bytes: Size,

    /// How many other nodes get a version from here at a time. Further nodes that ask for it meanwhile are sent to those, which send it on
    /// in chunks as soon as they have them. Versions of less than 4 MiB are always sent from here. With 0 all are. 1 or 2 suits nodes that
    /// reach each other and fetch the same versions at about the same time
    #[arg(long, env = "TRANSFER_FAN_OUT", value_name = "N", default_value_t = 0)]
    pub fan_out: usize,

    /// The length of the chunks in which such versions are sent, rounded up to a multiple of 64 bytes. A version of more than 1,024 of them
    /// has longer ones
    #[arg(long, env = "TRANSFER_CHUNK_BYTES", value_name = "SIZE", default_value_t = DEFAULT_CHUNK_BYTES)]
    pub chunk_bytes: Size,
}

/// Two states of some gigabytes; the pool limits it further.
const DEFAULT_BASE_BYTES: Size = Size(4 << 30);

/// Long enough that requests and grants cost little, and short enough that a node sends most of a version on while the rest comes.
const DEFAULT_CHUNK_BYTES: Size = Size(4 << 20);

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        let unfinished_versions = Limits::default().unfinished_versions;
        LimitsConfig {
            limits: Vec::new(),
            unfinished_versions,
            base_bytes: DEFAULT_BASE_BYTES,
            fan_out: 0,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
        }
    }
}

impl LimitsConfig {
    /// Returns all limits. If a limit is given twice, the last value counts.
    #[must_use]
    pub fn all(&self) -> AllLimits {
        let mut all = AllLimits::default();
        all.node.unfinished_versions = self.unfinished_versions;
        for limit in &self.limits {
            if let Some((_, place)) = LIMITS.get(limit.which) {
                *place(&mut all) = limit.value;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_can_be_set() {
        let limits = LIMITS.map(|(name, _)| format!("{name}=7").parse().expect("a limit")).to_vec();
        let mut all = LimitsConfig { limits, ..LimitsConfig::default() }.all();
        for (name, place) in LIMITS {
            assert_eq!(*place(&mut all), 7, "{name}");
        }
    }

    #[test]
    fn the_help_says_the_defaults() {
        use clap::CommandFactory;
        let command = crate::config::Flags::command();
        let help = command.get_arguments().find(|arg| arg.get_id() == "limits").and_then(clap::Arg::get_help);
        let help = help.map(ToString::to_string).unwrap_or_default();
        let mut all = AllLimits::default();
        for (name, place) in LIMITS {
            assert!(help.contains(&format!("{name} ({})", place(&mut all))), "{name}: {help}");
        }
    }

    #[test]
    fn invalid_limits_are_named() {
        let why = |text: &str| text.parse::<Limit>().unwrap_err().to_string();
        assert!(why("keys_per_user").contains("NAME=N"));
        assert!(why("keys_per_usr=3").contains("keys_per_usr") && why("keys_per_usr=3").contains("keys_per_user"));
        for value in ["0", "-1", "many", ""] {
            let why = why(&format!("keys_per_user={value}"));
            assert!(why.contains("keys_per_user") && why.contains(&format!("{value:?}")), "{why}");
        }
    }
}
