//! The counters and barriers of the job.

use super::both_clients;
use crate::counters::{Barrier, Counter, Counting};
use crate::error::Error;
use crate::request::HasHandle;
use transfer_core::tensor::{InvalidName, Key, Name};

both_clients! {
    /// The counter of this name, the same one for every worker of the job. The first caller makes it, with the value 0.
    /// A name has at most 510 bytes; a sidecar is home to at most 4,096 counters and barriers in its life.
    pub fn counter(&self, name: impl AsRef<str>) -> Counting<Self, Counter<Self>> {
        Counter::open(self.handle().connection(), counter_name(name.as_ref(), Key::of_counter))
    }

    /// The barrier of this name, for `members` members; all callers of the job must give the same number. This asks
    /// nothing of the sidecar yet; [`Barrier::wait`] does.
    #[must_use]
    pub fn barrier(&self, name: impl AsRef<str>, members: u32) -> Barrier<Self> {
        Barrier::new(self.handle().connection().clone(), counter_name(name.as_ref(), Key::of_barrier), members)
    }
}

/// Checks the name as the sidecar would.
fn counter_name(name: &str, key: fn(&Name) -> Result<Key, InvalidName>) -> Result<Name, Error> {
    let name = Name::new(name)?;
    key(&name)?;
    Ok(name)
}
