//! What every push can be told.

use crate::Error;
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Command, OpId, Push};
use transfer_core::tensor::{Key, Name, TensorMeta, Version};

/// How long a call may take where the caller does not say.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(crate) struct PushOptions {
    pub(crate) version: Option<Version>,
    pub(crate) to: Option<Name>,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<FabricKind>,
    /// What was wrong with them.
    pub(crate) error: Option<Error>,
}

impl PushOptions {
    pub(crate) fn new() -> PushOptions {
        PushOptions { version: None, to: None, timeout: DEFAULT_TIMEOUT, require: None, error: None }
    }

    pub(crate) fn set_to(&mut self, worker: &str) {
        match Name::new(worker) {
            Ok(name) => self.to = Some(name),
            Err(e) => self.error = Some(e.into()),
        }
    }

    pub(crate) fn command(&self, key: Key, meta: TensorMeta, offset: u64, timeout: Duration) -> Command {
        Command::Push(Push {
            // The session numbers it.
            op: OpId(0),
            key,
            version: self.version,
            meta,
            offset,
            to: self.to.clone(),
            timeout,
            require: self.require,
        })
    }
}
