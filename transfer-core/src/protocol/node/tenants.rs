//! Whose a worker, a key and a version are, and who may have to do with them.

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
    /// Whether the peer of this link may have to do with what is this tenant's.
    pub(super) fn vouched(&self, link: LinkId, tenant: Tenant) -> Result<(), Failure> {
        let Some(peer) = self.peer_of(link) else { return Ok(()) };
        self.config.tenants.vouched(&self.config.name, (&peer.name, &peer.vouches), tenant)
    }

    /// The tenant for whom a peer asks, by the name that it gives. The outer error is what the peer broke, the inner one its answer.
    pub(super) fn asked_for(&self, link: LinkId, name: NameRef) -> Result<Result<Tenant, Failure>, String> {
        let text = self.links.look_up(link, name)?;
        let Some(tenant) = self.tenant_called(text) else {
            return Ok(Err(self.unknown_tenant(text)));
        };
        Ok(self.vouched(link, tenant).map(|()| tenant))
    }

    /// What a tenant is called.
    #[must_use]
    pub fn tenant_name(&self, tenant: Tenant) -> Name {
        self.config.tenants.name(tenant)
    }

    /// A tenant by its text.
    pub(super) fn tenant_called(&self, text: &Name) -> Option<Tenant> {
        self.config.tenants.called(text.as_str())
    }

    pub(super) fn unknown_tenant(&self, text: &Name) -> Failure {
        denied(format!(
            "tenant {text:?} is none that node {:?} knows: give it that name by --tenants there, too",
            self.config.name
        ))
    }

    /// The tenant of a key's owner.
    pub(super) fn owner_tenant(&self, owner: &Owner) -> Option<Tenant> {
        match owner {
            Owner::Nobody => None,
            Owner::Session(session) => self.sessions.tenant_of(*session),
            Owner::Claiming(claiming) => Some(claiming.tenant),
            Owner::Landed(landed) => Some(landed.tenant),
            Owner::Outlived(outlived) => Some(outlived.domain),
        }
    }

    /// What to say of a key that is another tenant's. `None`: it is not.
    pub(super) fn is_others(&self, session: SessionId, record: RecordId, key: &Key) -> Option<Failure> {
        let asks = self.sessions.tenant_of(session)?;
        let owner = self.owner_tenant(self.keys.record(record)?.owner())?;
        (owner != asks).then(|| self.of_another_tenant(&format!("key {key:?}"), owner, asks))
    }

    /// The tenants for whom a push says that they may read it, too.
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

    /// Whether workers of a tenant may be given a version of a key.
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

    /// Why a fetch cannot be answered any more. Which version another tenant's key is at is not told.
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

    /// What is another tenant's is not told, but for whose it is.
    pub(super) fn of_another_tenant(&self, what: &str, owner: Tenant, asks: Tenant) -> Failure {
        self.config.tenants.of_another(what, owner, asks)
    }
}
