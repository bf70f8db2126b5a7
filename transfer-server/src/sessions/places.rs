//! The limits of sessions of a user and of the node.
//!
//! A session costs the sidecar descriptors and memory as long as its process may use its segments. So a session counts
//! from its handshake until the engine closes its socket. A worker that was thrown out counts while its process lives.

use crate::config::SessionLimits;
use crate::shares::{Share, Shares};
use std::sync::atomic::{AtomicU64, Ordering};
use transfer_core::protocol::Tenant;
use transfer_core::tensor::Name;
use transfer_memory::session::{Refusal, RefusalCode};

/// The places for sessions, and their limits.
#[derive(Debug)]
pub(crate) struct Places {
    limits: SessionLimits,
    taken: Shares<Tenant>,
    /// The number of sessions that were refused at a limit.
    refused: AtomicU64,
}

impl Places {
    /// Makes the places. All of them are free.
    pub(crate) fn new(limits: SessionLimits) -> Places {
        Places { limits, taken: Shares::default(), refused: AtomicU64::new(0) }
    }

    /// Takes a place for a session of `tenant`, whose name is `name`.
    pub(crate) fn take(&self, tenant: Tenant, name: &Name) -> Result<Share<Tenant>, Refusal> {
        self.taken.take(tenant, |own, all| {
            let (who, has, limit) = match own >= self.limits.per_user {
                true => (format!("user {name}"), own, "limits.sessions_per_user"),
                false if all >= self.limits.per_node => ("this node".to_owned(), all, "limits.sessions_per_node"),
                false => return Ok(()),
            };
            self.refused.fetch_add(1, Ordering::Relaxed);
            let text = format!(
                "{who} has {has} sessions, which is all that it may have ({limit}): end workers first; one that was thrown out counts until \
                 its process has ended"
            );
            Err(Refusal { code: RefusalCode::TooManySessions, text })
        })
    }

    /// Returns the number of sessions that were refused at a limit.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
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
        assert_eq!(places.taken.holders(), 1, "who has none takes no memory");
    }
}
