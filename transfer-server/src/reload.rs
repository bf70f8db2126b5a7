//! What a running sidecar can change, when it is told to read its configuration again.
//!
//! To add something: name its key in [`RELOADED`], and do it in [`Live::apply`]. What may fail comes first, before anything is changed.

use crate::config::{Config, LoadError, Loaded};
use crate::engine::EngineClient;
use crate::observe::logging::{LogControl, LogError};
use crate::poll::{self, PollControl};
use crate::security::{Prepared, Security, TlsError};

/// The keys that take effect without a restart.
pub(crate) const RELOADED: &[&str] = &["log", "poll", "peers", "admins", "readers", "tls_cert", "tls_key", "tls_ca"];

/// Those of them that are changed together, and only where there are certificates before and after, or none.
const SECURITY: &[&str] = &["peers", "admins", "readers", "tls_cert", "tls_key", "tls_ca"];

/// Whether a key takes effect without a restart.
pub(crate) fn can_change(key: &str) -> bool {
    RELOADED.contains(&key)
}

/// A configuration that was not taken; the one before stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// Something in it cannot be.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The log's filter.
    #[error("--log: {0}")]
    Log(#[from] LogError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The sidecar is ending.
    #[error("the sidecar is ending")]
    Ending,
}

/// What has come of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// The keys that are different and in effect.
    pub changed: Vec<String>,
    /// The keys that are different and need a restart.
    pub needs_restart: Vec<String>,
}

/// The parts of a running sidecar that can be changed.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) poll: PollControl,
    pub(crate) engine: EngineClient,
    pub(crate) security: Security,
}

impl Live {
    /// Makes `new` of what was `old`.
    pub(crate) fn apply(&self, old: &Loaded, new: &Loaded, config: &Config) -> Result<Reloaded, ReloadError> {
        let differs = |key: &str| {
            let of = |loaded: &Loaded| loaded.settings.iter().find(|s| s.key == key).map(|s| s.values.clone());
            of(old) != of(new)
        };
        // What listens and what is linked has begun with TLS or without, under this name, and stays so: all or nothing of these keys.
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
        // Also where nothing differs: the files may.
        if let Some(security) = security {
            self.security.replace(security);
        }
        let keys = new.settings.iter().map(|s| s.key.clone()).filter(|key| differs(key));
        let (changed, needs_restart) =
            keys.partition(|key| can_change(key) && (same_way || !SECURITY.contains(&key.as_str())));
        Ok(Reloaded { changed, needs_restart })
    }
}
