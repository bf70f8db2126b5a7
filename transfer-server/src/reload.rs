//! Reloads: the settings that a running sidecar can change.
//!
//! To add a setting: name its key in [`RELOADED`], and apply it in [`Live::apply`]. Steps that may fail come first,
//! before anything is changed.

use crate::config::{Config, LoadError, Loaded};
use crate::engine::EngineClient;
use crate::observe::logging::{LogControl, LogError};
use crate::poll::{self, PollControl};
use crate::security::{Prepared, Security, TlsError};
use crate::sessions::Sessions;

/// The keys that take effect without a restart.
pub(crate) const RELOADED: &[&str] = &["log", "poll", "peers", "admins", "readers", "tls_cert", "tls_key", "tls_ca"];

/// The keys that are changed together, and only if the sidecar has certificates before and after, or has none in both
/// cases.
const SECURITY: &[&str] = &["peers", "admins", "readers", "tls_cert", "tls_key", "tls_ca"];

/// Returns whether a key takes effect without a restart.
pub(crate) fn can_change(key: &str) -> bool {
    RELOADED.contains(&key)
}

/// The reason why a configuration was not applied. The previous one stays in effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The filter of the log is not valid.
    #[error("--log: {0}")]
    Log(#[from] LogError),
    /// The certificates are not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The sidecar is ending.
    #[error("the sidecar is ending")]
    Ending,
}

/// The result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// The changed keys that are in effect.
    pub changed: Vec<String>,
    /// The changed keys that need a restart.
    pub needs_restart: Vec<String>,
}

/// The parts of a running sidecar that can be changed.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) poll: PollControl,
    pub(crate) engine: EngineClient,
    pub(crate) security: Security,
    /// For workers of this process that register memory of their own.
    pub(crate) sessions: Sessions,
}

impl Live {
    /// Applies the differences between `old` and `new`.
    pub(crate) fn apply(&self, old: &Loaded, new: &Loaded, config: &Config) -> Result<Reloaded, ReloadError> {
        let differs = |key: &str| {
            let of = |loaded: &Loaded| loaded.settings.iter().find(|s| s.key == key).map(|s| s.values.clone());
            of(old) != of(new)
        };
        // Whether listeners and links use TLS, and under which name, is fixed at their start. These keys change
        // together or not at all.
        let same_way = config.security.has_tls() == self.security.has_tls();
        let security = same_way.then(|| Prepared::again(config, &self.security)).transpose()?;
        if differs("log")
            && let Some(log) = LogControl::installed()
        {
            log.set_filter(&new.flags.log.filter)?;
        }
        if differs("poll") {
            self.poll.set(&self.engine, poll::configured(config.poll)).map_err(|_| ReloadError::Ending)?;
        }
        // Replaced also if no key differs, because the contents of the files may differ.
        if let Some(security) = security {
            self.security.replace(security);
        }
        let keys = new.settings.iter().map(|s| s.key.clone()).filter(|key| differs(key));
        let (changed, needs_restart) =
            keys.partition(|key| can_change(key) && (same_way || !SECURITY.contains(&key.as_str())));
        Ok(Reloaded { changed, needs_restart })
    }
}
