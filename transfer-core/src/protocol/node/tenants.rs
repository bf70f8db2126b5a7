//! Tenants: the owners of workers, keys and versions, and their access.

use super::Node;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Push};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::keys::Owner;
use crate::protocol::tenant::{Tenant, denied};
use crate::tensor::{Key, Name, Select, Version};
use crate::wire::message::NameRef;

impl Node {
    /// Checks whether the peer of this link may speak for this tenant.
    pub(super) fn vouched(&self, link: LinkId, tenant: Tenant) -> Result<(), Failure> {
        let Some(peer) = self.links.peer_of(link) else { return Ok(()) };
        self.config.tenants.vouched(&self.config.name, (&peer.name, &peer.vouches), tenant)
    }

    /// Returns the tenant for which a peer asks, by the name in its message. The outer error is a violation, the inner
    /// one is the answer to the peer.
    pub(super) fn asked_for(&self, link: LinkId, name: NameRef) -> Result<Result<Tenant, Failure>, String> {
        let text = self.links.look_up(link, name)?;
        let Some(tenant) = self.tenant_called(text) else {
            return Ok(Err(self.unknown_tenant(text)));
        };
        Ok(self.vouched(link, tenant).map(|()| tenant))
    }

    /// Returns the name of a tenant.
    #[must_use]
    pub fn tenant_name(&self, tenant: Tenant) -> Name {
        self.config.tenants.name(tenant)
    }

    /// Returns the tenant that has this name.
    pub(super) fn tenant_called(&self, text: &Name) -> Option<Tenant> {
        self.config.tenants.called(text.as_str())
    }

    pub(super) fn unknown_tenant(&self, text: &Name) -> Failure {
        denied(format!(
            "tenant {text:?} is none that node {:?} knows: give it that name by --tenants there, too",
            self.config.name
        ))
    }

    /// Returns the tenant of a key's owner.
    pub(super) fn owner_tenant(&self, owner: &Owner) -> Option<Tenant> {
        match owner {
            Owner::Nobody => None,
            Owner::Session(session) => self.sessions.tenant_of(*session),
            Owner::Claiming(claiming) => Some(claiming.tenant),
            Owner::Landed(landed) => Some(landed.tenant),
            Owner::Outlived(outlived) => Some(outlived.domain),
        }
    }

    /// Returns the failure if a key belongs to another tenant than the worker that asks. `None` if it does not.
    pub(super) fn is_others(&self, session: SessionId, record: RecordId, key: &Key) -> Option<Failure> {
        let asks = self.sessions.tenant_of(session)?;
        let owner = self.owner_tenant(self.keys.record(record)?.owner())?;
        (owner != asks).then(|| self.of_another_tenant(&format!("key {key:?}"), owner, asks))
    }

    /// Returns the other tenants that a push lets read its tensor.
    pub(super) fn readers_of_push(&self, push: &Push, local: bool) -> Result<Vec<Tenant>, Failure> {
        let invalid = |text: String| Failure::new(FailureCode::Invalid, text);
        if !push.readable_by.is_empty() && !local {
            let text = "who else may read a tensor counts at the sidecar where it is published: push it there first, then to the other worker";
            return Err(invalid(text.to_owned()));
        }
        let one = |text: &Name| {
            let node = &self.config.name;
            let unknown =
                || invalid(format!("{text:?} is neither a user id nor a tenant of --tenants at node {node:?}"));
            self.tenant_called(text).ok_or_else(unknown)
        };
        push.readable_by.iter().map(one).collect()
    }

    /// Checks whether workers of a tenant may read a version of a key.
    pub(super) fn may_read(&self, reader: Tenant, key: &Key, id: BlobId) -> Result<(), Failure> {
        let Some(blob) = self.keys.blob(id) else { return Ok(()) };
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::ServesStrangers) {
            return Ok(());
        }
        match blob.domain == reader || self.keys.is_shared_with(id, reader) || self.config.tenants.shares(reader, key) {
            true => Ok(()),
            false => Err(self.of_another_tenant("the tensor", blob.domain, reader)),
        }
    }

    /// Returns the newest version of a key, for a reader that may know of it.
    pub(super) fn readable_newest(&self, reader: Tenant, record: RecordId) -> Option<Version> {
        let r = self.keys.record(record)?;
        let newest = r.newest()?;
        self.may_read(reader, r.key(), newest).ok()?;
        self.keys.current(record).map(|b| b.version)
    }

    /// Returns the failure of a fetch that can no longer be answered. It hides the version of another tenant's key.
    pub(super) fn version_gone(
        &self,
        record: RecordId,
        reader: Tenant,
        key: &Key,
        select: Select,
        newest: Version,
    ) -> Failure {
        let owner = self.keys.record(record).and_then(|r| self.owner_tenant(r.owner()));
        match owner.filter(|owner| *owner != reader) {
            Some(owner) => self.of_another_tenant(&format!("key {key:?}"), owner, reader),
            None => Failure::new(
                FailureCode::VersionGone,
                format!("{select} of key {key:?} was asked for, but it is at {newest} already"),
            ),
        }
    }

    /// Returns the failure for access to something of another tenant. It tells nothing but the tenant that owns it.
    pub(super) fn of_another_tenant(&self, what: &str, owner: Tenant, asks: Tenant) -> Failure {
        self.config.tenants.of_another(what, owner, asks)
    }
}
