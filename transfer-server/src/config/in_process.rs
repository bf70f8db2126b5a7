//! The configuration of a sidecar inside a worker's process: settings by the keys of the file, without a file.

use super::file::{Judge, in_short, nearest, suggestion};
use super::source::{command, keys, load};
use super::{Config, LoadError};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

/// Keys of the program `transferd` alone: a process has a log of its own, knows when the call returns, and shares its
/// sidecar with its children.
const OF_THE_PROGRAM: [&str; 6] = ["log", "log_format", "log_limit", "ready_file", "socket", "socket_mode"];

/// The reason why a sidecar inside this process cannot have these settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No setting has this key.
    #[error("the key {key:?} is none that transferd knows{}", nearest(near))]
    UnknownKey {
        /// The key.
        key: String,
        /// A known key with a similar name.
        near: Option<String>,
    },
    /// The setting has no meaning inside a process.
    #[error(
        "{key} is for the program transferd: inside a process the log is the process's own, and the workers' socket is private; leave it out"
    )]
    OfTheProgram {
        /// The key.
        key: String,
    },
    /// The value is not valid.
    #[error("{key} = {value:?}: {why}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The error, and the requirement.
        why: String,
    },
    /// A setting makes the sidecar a node of a cluster, and the process has no name there.
    #[error("--listen {listen} makes this process a node of a cluster: also give \"node\", its name there")]
    NoNode {
        /// The address at which it would listen.
        listen: SocketAddr,
    },
    /// Values contradict each other, or the environment or the file that `config` names is not valid.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Returns the configuration for these settings, which are pairs of a key of the file and a value. A list takes one pair for each of its values.
/// What they leave out comes from the file that `config` names, from the environment, or is the default of `transferd`; only the workers' socket
/// is `socket` unless they name another one. Without a `node` it serves this process and its children alone, whatever the environment
/// calls this host's node.
pub(crate) fn in_process(settings: &[(String, String)], socket: &Path) -> Result<Config, SettingError> {
    let known = command();
    let mut judge = Judge::new();
    let mut words: Vec<OsString> = vec!["transferd".into(), "--socket".into(), socket.into()];
    let has_node = settings.iter().any(|(key, _)| key == "node");
    if !has_node {
        words.push("--node=embedded".into());
    }
    for (key, value) in settings {
        if OF_THE_PROGRAM.contains(&key.as_str()) {
            return Err(SettingError::OfTheProgram { key: key.clone() });
        }
        if key != "config" && !keys(&known).any(|(known, _)| known == *key) {
            // A flag's name instead of a key's.
            let as_key = key.replace('-', "_");
            let near = if keys(&known).any(|(known, _)| known == as_key) { Some(as_key) } else { suggestion(key) };
            return Err(SettingError::UnknownKey { key: key.clone(), near });
        }
        let word = format!("--{}={value}", key.replace('_', "-"));
        let wrong = |e| SettingError::Value { key: key.clone(), value: value.clone(), why: in_short(&e) };
        judge.parse(["transferd", &word]).map_err(wrong)?;
        words.push(word.into());
    }
    let loaded = load(&words).map_err(|e| match e {
        // One value twice, which each alone did not show.
        LoadError::CommandLine(e) => {
            let (key, value) = settings.last().cloned().unwrap_or_default();
            SettingError::Value { key, value, why: in_short(&e) }
        }
        other => SettingError::Load(other),
    })?;
    let config = loaded.config()?;
    match config.listen {
        Some(listen) if !has_node => Err(SettingError::NoNode { listen }),
        _ => Ok(config),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test")]
mod tests {
    use super::*;
    use crate::config::{DirectoryPlace, Size};

    fn config(settings: &[(&str, &str)]) -> Result<Config, String> {
        let settings: Vec<_> = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        in_process(&settings, Path::new("/private/worker.sock")).map_err(|e| e.to_string())
    }

    #[test]
    fn settings_are_those_of_the_file() {
        let settings = [("node", "a"), ("listen", "127.0.0.1:0"), ("insecure", "true"), ("directory", "http://b:1")];
        let made = config(&settings).unwrap();
        assert_eq!((made.node.as_str(), made.socket.as_path()), ("a", Path::new("/private/worker.sock")));
        assert_eq!(made.directory, DirectoryPlace::At("http://b:1".into()));
        // A list takes several.
        assert_eq!(
            config(&[("peers", "x"), ("peers", "y")]).unwrap_err(),
            "--peers x,y needs --tls-cert, which is not given"
        );
    }

    #[test]
    fn settings_alone_are_for_this_process() {
        let made = config(&[("pinned_limit", "6GiB")]).unwrap();
        assert_eq!((made.node.as_str(), made.pinned_limit, made.listen), ("embedded", Size(6 << 30), None));
        let text = config(&[("listen", "127.0.0.1:7471")]).unwrap_err();
        assert_eq!(
            text,
            "--listen 127.0.0.1:7471 makes this process a node of a cluster: also give \"node\", its name there"
        );
    }

    #[test]
    fn wrong_settings_are_named() {
        let text = |settings: &[(&str, &str)]| config(settings).unwrap_err();
        assert_eq!(
            text(&[("pool_byte", "1MiB")]),
            "the key \"pool_byte\" is none that transferd knows; \"pool_bytes\" is one"
        );
        assert_eq!(
            text(&[("listen", "here")]),
            "listen = \"here\": an address is IP:PORT, like 127.0.0.1:7471 or [::1]:0"
        );
        assert!(text(&[("pool-bytes", "1MiB")]).ends_with("; \"pool_bytes\" is one"));
        assert!(text(&[("socket", "/x")]).starts_with("socket is for the program transferd"));
        assert!(text(&[("log", "debug")]).starts_with("log is for the program transferd"));
        assert!(text(&[("help", "x")]).starts_with("the key \"help\" is none"));
        assert!(
            text(&[("node", "a"), ("node", "b")]).starts_with("node = \"b\": "),
            "{}",
            text(&[("node", "a"), ("node", "b")])
        );
    }
}
