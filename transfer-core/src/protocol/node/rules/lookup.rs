//! What a request finds: which version it means, and whether it can be read where it lies.

use crate::op::{Failure, FailureCode};
use crate::protocol::ids::{BlobId, RecordId, SessionId};
use crate::protocol::keys::{Blob, EndedStream, Owner, Waiter};
use crate::protocol::landing::InFlow;
use crate::protocol::node::flows::Lookup;
use crate::protocol::sessions::Writer;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Serve;
use crate::tensor::{Key, Name, Select, Version};

impl Lookup<'_> {
    /// Returns whether a worker cannot read a version where it lies: it belongs to another tenant, is on disk, or lies in memory of its
    /// pusher's process.
    pub(in crate::protocol::node) fn needs_copy(&self, session: SessionId, blob: BlobId) -> bool {
        let reader = self.sessions.tenant_of(session);
        let is_of_another = |b: &Blob| reader.is_some_and(|reader| reader != b.domain);
        self.keys.blob(blob).is_some_and(|b| is_of_another(b) || b.on_disk().is_some() || b.is_registered())
    }

    /// Describes a key whose versions are a stream, before it ends. `of`: its owner, where that one is gone already.
    pub(in crate::protocol::node) fn stream_of(
        &self,
        id: RecordId,
        of: Option<(&Name, Tenant)>,
    ) -> Option<EndedStream> {
        let owner = self.keys.record(id)?.owner();
        let (name, tenant) = of.or_else(|| self.sessions.owner_name(owner).zip(self.sessions.owner_tenant(owner)))?;
        Some(EndedStream { owner: name.clone(), tenant, last: self.keys.last_of_stream(id)? })
    }

    /// Returns the failure of a fetch that follows a stream which has ended.
    pub(in crate::protocol::node) fn ended_stream(&self, reader: Tenant, key: &Key, select: Select) -> Option<Failure> {
        self.keys.ended_stream(key, select).map(|stream| stream.failure(reader, key, select))
    }

    /// Returns the failure of a fetch that follows another writer's versions than those of the key's owner here.
    pub(in crate::protocol::node) fn other_stream(
        &self,
        session: SessionId,
        key: &Key,
        select: Select,
    ) -> Option<Failure> {
        let writer = matches!(select, Select::Following(_)).then(|| self.sessions.writer_of(session, key)).flatten()?;
        let owner = self.keys.owner(key).filter(|owner| matches!(owner, Owner::Session(_) | Owner::Landed(_)))?;
        let (name, tenant) = self.sessions.owner_name(owner).zip(self.sessions.owner_tenant(owner))?;
        let before = match writer {
            Writer::Here(before) if before == name => return None,
            Writer::Here(before) => format!("of worker {before:?}"),
            Writer::At(node) => format!("from node {node:?}"),
        };
        // Only its own tenant hears whose the key is.
        let text = match self.sessions.tenant_of(session) == Some(tenant) {
            true => format!(
                "{select} of key {key:?} does not come: what this worker has read was {before}, and the key is now that of worker \
                 {name:?} at this node"
            ),
            false => format!("{select} of key {key:?} does not come: its writer has ended, or has given it up"),
        };
        Some(Failure::new(FailureCode::VersionGone, text))
    }

    /// Resolves "the latest" for a request that arrives now. It includes a version that has landed here and whose slot
    /// is being closed, because the sender may know that the version is here.
    pub(in crate::protocol::node) fn resolve_latest(&self, record: RecordId, select: Select) -> Select {
        let landed = self.landing_flow(record).filter(|flow| flow.holds_unpublished());
        match (select, landed) {
            (Select::Latest, Some(flow)) => Select::AtLeast(Version(flow.next_version.saturating_sub(1))),
            _ => select,
        }
    }

    /// Returns the flow through which the key's versions land here.
    fn landing_flow(&self, record: RecordId) -> Option<&InFlow> {
        let Owner::Landed(landed) = self.keys.record(record)?.owner() else { return None };
        self.landing.flow(landed.flow?)
    }

    /// Returns the tenant of a waiter.
    pub(in crate::protocol::node) fn reader_of(&self, waiter: Waiter) -> Option<Tenant> {
        match waiter {
            Waiter::Local(id) => self.sessions.tenant_of(self.sessions.op(id)?.session),
            Waiter::Remote(link, index) => self.transfers.serve(link, index).map(Serve::reader),
        }
    }
}
