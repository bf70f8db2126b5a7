//! Roles: the rights of a caller.

use super::caller::Caller;
use super::names;
use crate::config::{NamePattern, SecurityConfig, Tenancy};
use tonic::Status;
use transfer_core::protocol::Tenant;

/// The right that a call requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// No right.
    Nothing,
    /// To be a peer.
    Peer,
    /// To be a peer, or a reader.
    PeerOrRead,
    /// To read what the sidecar shows.
    Read,
    /// To change something.
    Administer,
    /// To read the entries of tenants; a tenant's administrator sees only its own.
    ReadOfTenant,
    /// To change the entries of tenants; a tenant's administrator changes only its own.
    AdministerOfTenant,
}

impl Need {
    /// Returns the right to do this for all tenants.
    fn for_all(self) -> Need {
        match self {
            Need::ReadOfTenant => Need::Read,
            Need::AdministerOfTenant => Need::Administer,
            need => need,
        }
    }
}

/// All calls of this crate, and the right that each requires. A call that is not listed is not served, so no caller can
/// make a call that was forgotten here.
const NEEDS: &[(&str, Need)] = &[
    ("/transfer.v1.Admin/Status", Need::Read),
    ("/transfer.v1.Admin/Sessions", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Peers", Need::Read),
    ("/transfer.v1.Admin/Nodes", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Links", Need::Read),
    ("/transfer.v1.Admin/Tensors", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Segments", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Transfers", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Quarantine", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Exchanges", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Events", Need::Read),
    ("/transfer.v1.Admin/Ping", Need::Read),
    // The call itself asks for the role that --copy-role names.
    ("/transfer.v1.Admin/Copy", Need::ReadOfTenant),
    ("/transfer.v1.Admin/Delete", Need::AdministerOfTenant),
    ("/transfer.v1.Admin/Drain", Need::Administer),
    ("/transfer.v1.Admin/Evict", Need::AdministerOfTenant),
    ("/transfer.v1.Admin/SetLogLevel", Need::Administer),
    ("/transfer.v1.Admin/SetPoll", Need::Administer),
    ("/transfer.v1.Admin/MoveDirectory", Need::Administer),
    ("/transfer.v1.Peering/Connect", Need::Peer),
    ("/transfer.v1.Peering/PrepareBuffers", Need::Peer),
    ("/transfer.v1.Peering/Echo", Need::Peer),
    ("/transfer.v1.Peering/Resolve", Need::PeerOrRead),
    ("/transfer.v1.Directory/Attach", Need::Peer),
    ("/transfer.v1.Directory/Vote", Need::Peer),
    ("/transfer.v1.Directory/Lookup", Need::PeerOrRead),
    ("/transfer.v1.Directory/Nodes", Need::PeerOrRead),
];

/// Standard gRPC services that describe the server and its health. Any caller may use them.
const FOR_ALL: &[&str] = &["/grpc.health.", "/grpc.reflection."];

/// Returns the right that a call of this path requires; `None`: there is no such call.
pub(crate) fn need(path: &str) -> Option<Need> {
    if FOR_ALL.iter().any(|service| path.starts_with(service)) {
        return Some(Need::Nothing);
    }
    NEEDS.iter().find(|(known, _)| *known == path).map(|(_, need)| *need)
}

/// The policy: which callers have which rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    peers: Vec<NamePattern>,
    admins: Vec<NamePattern>,
    readers: Vec<NamePattern>,
    insecure: bool,
    own_uid: u32,
}

fn any(patterns: &[NamePattern], names: &[String]) -> bool {
    names.iter().any(|name| patterns.iter().any(|pattern| pattern.matches(name)))
}

fn listed(patterns: &[NamePattern]) -> String {
    patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Policy {
    pub(crate) fn of(config: &SecurityConfig) -> Policy {
        let SecurityConfig { peers, admins, readers, insecure, .. } = config.clone();
        Policy { peers, admins, readers, insecure, own_uid: rustix::process::geteuid().as_raw() }
    }

    /// Returns whether a user id is root, or the user that runs this sidecar.
    pub(crate) fn is_own(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Returns whether a node of this name may be a peer.
    pub(crate) fn is_peer(&self, node: &str) -> bool {
        self.peers.is_empty() || any(&self.peers, &[node.to_owned()])
    }

    /// Returns the one tenant to which a caller is limited. `None`: no limit.
    ///
    /// # Errors
    /// The same error as [`Policy::check`].
    pub(crate) fn scope(&self, caller: &Caller, need: Need, tenancy: &Tenancy) -> Result<Option<Tenant>, Status> {
        let refused = self.check(caller, need.for_all()).err();
        let own = match caller {
            Caller::Certificate(names) => tenancy.administered_by(names),
            _ => None,
        };
        match (refused, own) {
            // An administrator of one tenant who is also an administrator of the sidecar is not limited. For reading,
            // the role of the tenant's administrator takes precedence over the role of a reader.
            (None, Some(tenant)) if need == Need::ReadOfTenant && self.check(caller, Need::Administer).is_err() => {
                Ok(Some(tenant))
            }
            (None, Some(_)) if need == Need::Read && self.check(caller, Need::Administer).is_err() => {
                Err(Status::permission_denied(
                    "this certificate administers one tenant alone, and what it asks for is of all: not allowed by --admins of transferd",
                ))
            }
            (None, _) => Ok(None),
            (Some(_), Some(tenant)) if need != need.for_all() => Ok(Some(tenant)),
            (Some(refused), _) => Err(refused),
        }
    }

    /// Checks whether the caller has the right.
    ///
    /// # Errors
    /// The answer to the caller: the reason, and the remedy.
    pub(crate) fn check(&self, caller: &Caller, need: Need) -> Result<(), Status> {
        let denied = |why: String| Err(Status::permission_denied(why));
        match caller {
            _ if need == Need::Nothing => Ok(()),
            // At the socket for sidecars any user of the host may be a peer, as on loopback. The tenants for which the
            // caller may speak are checked separately.
            Caller::Sidecar { .. } if need != Need::Administer => Ok(()),
            Caller::Sidecar { .. } => {
                denied("nobody administers at the socket for sidecars: use the admin socket (--admin-socket)".to_owned())
            }
            Caller::Local { uid, .. } => {
                let administers = self.is_own(*uid);
                match need {
                    Need::Read | Need::PeerOrRead => Ok(()),
                    _ if administers => Ok(()),
                    _ => denied(format!(
                        "user id {uid} may read here and nothing else; root and the sidecar's own user id, {}, may administer",
                        self.own_uid
                    )),
                }
            }
            Caller::Certificate(names) => {
                let administers = any(&self.admins, names);
                let reads = administers || self.readers.is_empty() || any(&self.readers, names);
                let is_peer = self.peers.is_empty() || any(&self.peers, names);
                let (may, what, flag, allowed) = match need {
                    Need::Nothing => (true, "", "", &self.readers),
                    Need::Peer => (is_peer, "be a peer", "--peers", &self.peers),
                    Need::PeerOrRead => (is_peer || reads, "read", "--readers", &self.readers),
                    Need::Read => (reads, "read", "--readers", &self.readers),
                    _ => (administers, "administer", "--admins", &self.admins),
                };
                if may {
                    return Ok(());
                }
                let (names, allowed) = (names::in_words(names), listed(allowed));
                denied(format!("{names} may not {what} here: not allowed by {flag} of transferd ({allowed})"))
            }
            // Without certificates no caller is beyond loopback, unless the operator has granted every right to every
            // caller.
            Caller::Plain { .. } if self.insecure => Ok(()),
            Caller::Plain { loopback: true } if need != Need::Administer => Ok(()),
            Caller::Plain { .. } => denied(
                "without TLS nobody may administer over TCP: use the admin socket (--admin-socket of transferd, --admin PATH of \
                 transferctl), or give transferd certificates (--tls-cert), or start it with --insecure"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// Every method of this project is listed, and nothing else is.
    // Promise: readers-change-nothing, seen to fail
    // Promise: item-admin-others
    #[test]
    fn every_method_has_a_required_right() {
        let set = prost_types::FileDescriptorSet::decode(transfer_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut methods: Vec<String> = Vec::new();
        for file in set.file.iter().filter(|file| file.package().starts_with("transfer.")) {
            for service in &file.service {
                let path = |m: &prost_types::MethodDescriptorProto| {
                    format!("/{}.{}/{}", file.package(), service.name(), m.name())
                };
                methods.extend(service.method.iter().map(path));
            }
        }
        let mut entered: Vec<_> = NEEDS.iter().map(|(path, _)| (*path).to_owned()).collect();
        methods.sort();
        entered.sort();
        assert_eq!(entered, methods, "say in NEEDS who may make a call that is new");
    }

    fn policy(peers: &[&str], admins: &[&str], readers: &[&str], insecure: bool) -> Policy {
        let patterns = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect();
        Policy { peers: patterns(peers), admins: patterns(admins), readers: patterns(readers), insecure, own_uid: 7 }
    }

    const ALL: [Need; 4] = [Need::Peer, Need::PeerOrRead, Need::Read, Need::Administer];

    #[track_caller]
    fn may(policy: &Policy, caller: &Caller, wanted: [bool; 4]) {
        assert_eq!(ALL.map(|need| policy.check(caller, need).is_ok()), wanted, "{caller:?}");
        assert!(policy.check(caller, Need::Nothing).is_ok());
    }

    #[test]
    fn policy_grants_the_expected_rights() {
        let named = |name: &str| Caller::Certificate(Arc::from([name.to_owned()]));
        let (open, closed) = (policy(&[], &[], &[], false), policy(&["node-*"], &["ops"], &["dash"], false));
        may(&open, &named("x"), [true, true, true, false]);
        may(&open, &Caller::Certificate(Arc::from([])), [true, true, true, false]);
        may(&closed, &named("node-1"), [true, true, false, false]);
        may(&closed, &named("dash"), [false, true, true, false]);
        may(&closed, &named("ops"), [false, true, true, true]);
        may(&closed, &named("x"), [false; 4]);
        may(&closed, &Caller::Certificate(Arc::from([])), [false; 4]);
        for policy in [&open, &closed] {
            for uid in [0, 7] {
                may(policy, &Caller::Local { uid, gid: 5 }, [true; 4]);
            }
            may(policy, &Caller::Local { uid: 8, gid: 5 }, [false, true, true, false]);
        }
        may(&open, &Caller::Sidecar { uid: 0, gid: 0 }, [true, true, true, false]);
        may(&open, &Caller::Plain { loopback: true }, [true, true, true, false]);
        may(&open, &Caller::Plain { loopback: false }, [false; 4]);
        may(&policy(&[], &[], &[], true), &Caller::Plain { loopback: false }, [true; 4]);
        assert!(closed.is_peer("node-3") && !closed.is_peer("ops") && open.is_peer("x"));
        assert_eq!(need("/transfer.v1.Admin/Unheard"), None);
        assert_eq!(need("/grpc.health.v1.Health/Check"), Some(Need::Nothing));
    }

    use std::sync::Arc;
}
