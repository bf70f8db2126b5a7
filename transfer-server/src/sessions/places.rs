//! The limits of sessions of a user and of the node.
//!
//! A session costs the sidecar descriptors and memory as long as its process may use its segments. So a session counts
//! from its handshake until the engine closes its socket. A worker that was thrown out counts while its process lives.

use crate::config::SessionLimits;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use transfer_core::protocol::Tenant;
use transfer_core::tensor::Name;
use transfer_memory::session::{Refusal, RefusalCode};

/// The places for sessions, and their limits.
#[derive(Debug)]
pub(crate) struct Places {
    limits: SessionLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    by_tenant: HashMap<Tenant, u64>,
    all: u64,
    /// The number of sessions that were refused at a limit.
    refused: u64,
}

/// One session's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    tenant: Tenant,
}

impl Places {
    /// Makes the places. All of them are free.
    pub(crate) fn new(limits: SessionLimits) -> Arc<Places> {
        Arc::new(Places { limits, taken: Mutex::default() })
    }

    /// Takes a place for a session of `tenant`, whose name is `name`.
    pub(crate) fn take(self: &Arc<Self>, tenant: Tenant, name: &Name) -> Result<Place, Refusal> {
        let mut taken = self.taken.lock();
        let own = taken.by_tenant.get(&tenant).copied().unwrap_or(0);
        let full = if own >= self.limits.per_user {
            Some((format!("user {name}"), own, "limits.sessions_per_user"))
        } else if taken.all >= self.limits.per_node {
            Some(("this node".to_owned(), taken.all, "limits.sessions_per_node"))
        } else {
            None
        };
        if let Some((who, has, limit)) = full {
            taken.refused += 1;
            let text = format!(
                "{who} has {has} sessions, which is all that it may have ({limit}): end workers first; one that was thrown out counts until \
                 its process has ended"
            );
            return Err(Refusal { code: RefusalCode::TooManySessions, text });
        }
        *taken.by_tenant.entry(tenant).or_default() += 1;
        taken.all += 1;
        Ok(Place { places: self.clone(), tenant })
    }

    /// Returns the number of sessions that were refused at a limit.
    pub(crate) fn refused(&self) -> u64 {
        self.taken.lock().refused
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        let left = taken.by_tenant.get_mut(&self.tenant).map(|own| {
            *own -= 1;
            *own
        });
        if left == Some(0) {
            taken.by_tenant.remove(&self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    // Promise: bounded-sessions
    #[test]
    fn sessions_are_bounded_per_user_and_per_node() {
        let places = Places::new(SessionLimits { per_user: 2, per_node: 3 });
        let take = |user| places.take(Tenant::User(user), &name(&format!("uid-{user}")));
        let first = take(1).expect("a place");
        let _second = take(1).expect("a place");
        let refusal = take(1).expect_err("no place");
        assert_eq!(refusal.code, RefusalCode::TooManySessions);
        assert!(refusal.code.is_temporary());
        for part in ["user uid-1", "2 sessions", "limits.sessions_per_user"] {
            assert!(refusal.text.contains(part), "{part}: {refusal}");
        }
        let other = take(2).expect("another user has a share of its own");
        let refusal = take(3).expect_err("the node is full");
        assert!(
            refusal.text.contains("this node has 3 sessions (") || refusal.text.contains("limits.sessions_per_node")
        );
        assert_eq!(places.refused(), 2);
        drop(first);
        let _third = take(1).expect("one is free again");
        drop(other);
        assert!(take(3).is_ok());
        assert_eq!(places.taken.lock().by_tenant.len(), 1, "who has none takes no memory");
    }
}
