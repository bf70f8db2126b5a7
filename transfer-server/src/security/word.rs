//! The tenants for which a node may speak.
//!
//! A node states the tenant for which it asks, and its peers cannot verify the statement. A certificate makes the
//! statement trustworthy, or an operator who has granted every right to every caller. Without either, the kernel
//! identifies a caller of this host at a Unix socket: root and this sidecar's own user may speak for all tenants,
//! another user for its own tenant.

use super::{Caller, Security};
use crate::config::Tenancy;
use std::sync::Arc;
use transfer_core::protocol::{Tenant, Vouches};

/// The advice for a node that has proved nothing.
const UNPROVED: &str = "it has shown neither a certificate nor, at a Unix socket of this host, which user runs it; give both nodes \
                        certificates (--tls-cert), or let each reach the directory of the other's --socket, or start both with --insecure";

impl Security {
    /// Returns the rules about tenants.
    pub(crate) fn tenancy(&self) -> &Arc<Tenancy> {
        &self.0.tenancy
    }

    /// Returns whether nodes of this host prove their user at a Unix socket. They do if there are no certificates and
    /// no `--insecure`.
    pub(crate) fn proves_by_socket(&self) -> bool {
        !self.has_tls() && !self.policy().is_insecure()
    }

    /// Describes the rule of trust. `local` is the socket at which sidecars of this host prove their user; empty: none.
    pub(crate) fn believes(&self, local: &str) -> String {
        match (self.has_tls(), self.policy().is_insecure(), local) {
            (true, ..) => "sidecars by their certificates".to_owned(),
            (false, true, _) => "everybody who can reach it, for it was started with --insecure".to_owned(),
            (false, false, "") => {
                "nobody: there are no certificates, and no socket where sidecars of this host could prove whose they are".to_owned()
            }
            (false, false, path) => format!("sidecars of this host by their user ids, at {path}"),
        }
    }

    /// Returns the tenants for which a node of this name may speak, by the way in which it was identified.
    pub(crate) fn vouches(&self, node: &str, met: &Caller) -> Vouches {
        let tenancy = self.tenancy();
        let only = |who: &[Tenant], why: &str| Vouches::For(who.into(), why.into());
        let by_itself = match met {
            Caller::Certificate(_) => Vouches::ForAll,
            Caller::Plain { .. } if self.policy().is_insecure() => Vouches::ForAll,
            Caller::Plain { .. } => return Vouches::for_nobody(UNPROVED),
            Caller::Local { uid, .. } | Caller::Sidecar { uid, .. } if self.policy().is_own(*uid) => Vouches::ForAll,
            Caller::Local { uid, gid } | Caller::Sidecar { uid, gid } => {
                let why = format!(
                    "user id {uid} runs it, which is neither root nor who runs this one: it speaks for that user alone"
                );
                only(&[tenancy.of(*uid, *gid)], &why)
            }
        };
        match (tenancy.rule_for(node), by_itself) {
            (None, by_itself) => by_itself,
            (Some(listed), Vouches::ForAll) => only(listed, "--peer-tenants names those that it may speak for"),
            (Some(listed), Vouches::For(who, why)) => {
                let both: Vec<_> = who.iter().copied().filter(|tenant| listed.contains(tenant)).collect();
                Vouches::For(both.into(), why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TenantsConfig;

    #[test]
    fn rule_of_trust_is_described() {
        let none = Security::none();
        assert!(none.believes("/run/a.peers").contains("/run/a.peers"));
        assert!(none.believes("").starts_with("nobody"));
        assert!(Security::of_all().believes("").contains("--insecure"));
    }

    // Promise: tenants-of-a-sidecar, seen to fail
    // Promise: attacker-as-another-user
    // Promise: item-address
    #[test]
    fn caller_vouches_for_what_it_proved_within_the_rules() {
        let config = |peers: &[&str]| TenantsConfig {
            tenants: vec!["train=@3000".parse().unwrap()],
            peer_tenants: peers.iter().map(|rule| rule.parse().unwrap()).collect(),
            reserve: Vec::new(),
            share: Vec::new(),
            tenant_admins: Vec::new(),
        };
        let own = rustix::process::geteuid().as_raw();
        let stranger = own + 1;
        let sidecar = |uid, gid| Caller::Sidecar { uid, gid };
        let named = Caller::Certificate(Arc::from([]));
        let open = Security::with_tenants(config(&[]));
        let train = open.tenancy().tenants().called("train").unwrap();
        for met in [named.clone(), sidecar(0, 0), sidecar(own, 7), Caller::Local { uid: own, gid: 7 }] {
            assert_eq!(open.vouches("a", &met), Vouches::ForAll, "{met:?}");
        }
        for (met, includes, why) in [
            (Caller::Plain { loopback: true }, [false; 3], "--tls-cert"),
            (sidecar(stranger, 7), [false, true, false], "runs it"),
            (sidecar(stranger, 3000), [false, false, true], "runs it"),
        ] {
            let vouches = open.vouches("a", &met);
            let found = [Tenant::User(own), Tenant::User(stranger), train].map(|tenant| vouches.includes(tenant));
            assert_eq!(found, includes, "{met:?}");
            assert!(vouches.why_not().contains(why), "{vouches:?}");
        }
        let ruled = Security::with_tenants(config(&["a=train", "b=*"]));
        assert!(ruled.vouches("a", &named).includes(train));
        assert!(!ruled.vouches("a", &named).includes(Tenant::User(own)));
        assert!(!ruled.vouches("a", &sidecar(stranger, 7)).includes(Tenant::User(stranger)));
        assert_eq!(ruled.vouches("b", &named), Vouches::ForAll);
        assert!(!ruled.vouches("c", &named).includes(train));
        assert!(!ruled.vouches("b", &Caller::Plain { loopback: true }).includes(train));
    }
}
