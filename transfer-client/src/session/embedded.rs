//! A sidecar inside this process.

use crate::error::Error;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use transfer_core::tensor::Name;
use transfer_memory::forked::ForkGuard;
use transfer_server::Sidecar;

pub use transfer_server::Addresses as SidecarAddresses;

/// The running sidecar, if any. All embedded clients of a process share it, so that they can talk to each other.
static RUNNING: Mutex<Running> = Mutex::new(Running { sidecar: Weak::new(), config: None, guard: None });

struct Running {
    sidecar: Weak<Sidecar>,
    /// `None`: it is for this process and its children alone.
    config: Option<NodeConfig>,
    /// The process that started it: a forked child has none of its threads.
    guard: Option<ForkGuard>,
}

/// The configuration of a sidecar inside this process, for [`crate::Client::embedded_with`]: of a node of a cluster
/// ([`NodeConfig::new`]), or for this process and its children alone ([`NodeConfig::default`]).
/// Its settings are those of the program `transferd`, by the keys of its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeConfig {
    /// Pairs of a key and a value, as they were set.
    settings: Vec<(String, String)>,
}

impl NodeConfig {
    /// The configuration of the node of this name. Each process needs a name of its own in the cluster, other than that
    /// of the host's `transferd`.
    #[must_use]
    pub fn new(node: impl Into<String>) -> NodeConfig {
        NodeConfig { settings: vec![("node".into(), node.into())] }
    }

    /// Sets a key of the configuration file: `.set("listen", "10.0.0.1:7471")`, `.set("directory", "http://10.0.0.2:7471")`.
    /// A list takes one call for each of its values. The keys are listed in docs/configuration.md; those of the log, the
    /// ready file and the workers' socket are not for a sidecar inside a process. A wrong key or value is an error when the client connects.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl ToString) -> NodeConfig {
        self.settings.push((key.into(), value.to_string()));
        self
    }

    fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.settings.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Returns what is different in `other`, with this one's value first. Empty if nothing is.
    fn difference(&self, other: &NodeConfig) -> String {
        let shown = |config: &NodeConfig, key: &str| match config.values(key).collect::<Vec<_>>() {
            none if none.is_empty() => "not set".to_owned(),
            values => format!("{:?}", values.join(", ")),
        };
        let keys = self.settings.iter().chain(&other.settings).map(|(key, _)| key);
        let differs = |key: &&String| !self.values(key).eq(other.values(key));
        keys.into_iter()
            .find(differs)
            .map_or_else(String::new, |key| format!("its {key} is {}, not {}", shown(self, key), shown(other, key)))
    }
}

/// The socket at which other processes of this user connect to this process's sidecar. `None` if no sidecar runs, and
/// in a forked child.
#[must_use]
pub fn embedded_socket() -> Option<PathBuf> {
    embedded_addresses().map(|addresses| addresses.socket)
}

/// The addresses of this process's sidecar, with the ports that it has got. `None` if no sidecar runs, and in a forked
/// child.
#[must_use]
pub fn embedded_addresses() -> Option<SidecarAddresses> {
    let running = RUNNING.lock();
    let is_ours = running.guard.as_ref().is_some_and(|guard| !guard.is_forked());
    running.sidecar.upgrade().filter(|_| is_ours).map(|sidecar| sidecar.addresses().clone())
}

/// Returns the process's sidecar and its socket, and starts the sidecar if needed. It stops with its last holder.
/// Without a configuration any sidecar of this process is right.
pub(crate) fn sidecar(config: Option<&NodeConfig>) -> Result<(Arc<Sidecar>, PathBuf), Error> {
    let mut running = RUNNING.lock();
    let is_ours = running.guard.as_ref().is_some_and(|guard| !guard.is_forked());
    let sidecar = match running.sidecar.upgrade().filter(|_| is_ours) {
        Some(sidecar) => {
            check_same(config, running.config.as_ref())?;
            sidecar
        }
        None => {
            let failed = |e: transfer_memory::Errno| Error::NotStarted {
                reason: format!("no memory to guard it against forks: {e}"),
            };
            let guard = ForkGuard::new().map_err(failed)?;
            let started = match config {
                Some(config) => Sidecar::in_process(&config.settings),
                None => Sidecar::embedded(Name::new("embedded")?),
            };
            let sidecar = Arc::new(started.map_err(|e| Error::NotStarted { reason: e.to_string() })?);
            *running = Running { sidecar: Arc::downgrade(&sidecar), config: config.cloned(), guard: Some(guard) };
            sidecar
        }
    };
    let path = sidecar.addresses().socket.clone();
    Ok((sidecar, path))
}

/// A process has one sidecar. Who asks for another one than runs is told what is different.
fn check_same(asked: Option<&NodeConfig>, runs: Option<&NodeConfig>) -> Result<(), Error> {
    let different = match (asked, runs) {
        (None, _) => return Ok(()),
        (Some(_), None) => "it is for this process alone".to_owned(),
        (Some(asked), Some(runs)) => runs.difference(asked),
    };
    if different.is_empty() {
        return Ok(());
    }
    Err(Error::NotStarted {
        reason: format!(
            "this process has one already, and {different}; drop its clients first, or connect with `embedded`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_names_the_key_and_both_values() {
        let one = NodeConfig::new("a").set("listen", "127.0.0.1:0").set("peers", "x").set("peers", "y");
        assert_eq!(
            one.difference(&NodeConfig::new("a").set("peers", "x").set("peers", "y").set("listen", "127.0.0.1:0")),
            ""
        );
        assert_eq!(one.difference(&one.clone().set("peers", "z")), r#"its peers is "x, y", not "x, y, z""#);
        assert_eq!(NodeConfig::new("a").difference(&one), r#"its listen is not set, not "127.0.0.1:0""#);
    }
}
