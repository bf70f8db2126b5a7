//! What workers, peers and tenants may do, and why not.

use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::op::{Failure, FailureCode, OpId, Push};
use crate::protocol::ids::{BlobId, RecordId, SessionId};
use crate::protocol::keys::{Blob, Outlived};
use crate::protocol::links::Link;
use crate::protocol::node::flows::Access;
use crate::protocol::rules::Broken;
use crate::protocol::sessions::{FetchOp, Op, OpKind, PushOp};
use crate::protocol::tenant::{Tenant, denied};
use crate::tensor::{Excerpt, ExcerptPart, Key, Name, Select, Version};
use crate::trace::TraceContext;
use crate::wire::message::NameRef;

impl Access<'_> {
    /// Returns the failure that answers new work while the node drains.
    pub(in crate::protocol::node) fn is_draining(&self) -> Failure {
        let text = format!(
            "the sidecar of node {:?} is draining: it finishes what runs, takes nothing new, and leaves; try again when it is back, \
             or at another node",
            self.config.name
        );
        Failure::new(FailureCode::Draining, text)
    }

    /// Returns the trace context that the worker gave with an operation.
    pub(in crate::protocol::node) fn trace_of(&self, op: &Op) -> Option<TraceContext> {
        match &op.kind {
            OpKind::Push(PushOp { blob, .. }) => self.keys.blob(*blob)?.trace(),
            OpKind::Fetch(FetchOp { trace, .. }) => *trace,
            OpKind::Reserve(_) | OpKind::TakeBack(_) | OpKind::Counter(_) => None,
        }
    }

    /// Whether this version lies in memory that the fabric of a link cannot read, so that it is copied before it is sent.
    pub(in crate::protocol::node) fn is_unreadable(&self, link: LinkId, blob: BlobId) -> bool {
        let Some(kind) = self.links.get(link).map(Link::kind) else { return false };
        self.sessions.has_unreadable() && !self.sessions.can_read(&self.keys.body_of(blob, None), kind)
    }

    /// Checks that a part of this version can be fetched.
    pub(in crate::protocol::node) fn has_excerpt(
        &self,
        key: &Key,
        blob: BlobId,
        excerpt: Option<&Excerpt>,
    ) -> Result<(), Failure> {
        let Some(b) = self.keys.blob(blob).filter(|_| excerpt.is_some()) else { return Ok(()) };
        let (has_metadata, meta) = (b.meta.metadata_bytes() > 0, &b.meta);
        let misfit = match (excerpt.map(Excerpt::part), has_metadata) {
            (Some(ExcerptPart::Boxes(_)), false) => {
                Some(format!("key {key:?} has {meta}, which is no bundle: slice it"))
            }
            (Some(ExcerptPart::Slice(_) | ExcerptPart::Rows(_)), true) => Some(format!(
                "key {key:?} has {meta}, which is no tensor: slice the tensors of a bundle by their names"
            )),
            _ => excerpt.and_then(|excerpt| excerpt.of(meta).err()).map(|e| format!("key {key:?} has {meta}: {e}")),
        };
        match misfit {
            Some(text) => Err(Failure::new(FailureCode::Invalid, text)),
            None => self.has_parts(key, blob),
        }
    }

    /// Checks that fetches of this version are not counted, because fetching a part of it is none.
    pub(in crate::protocol::node) fn has_parts(&self, key: &Key, blob: BlobId) -> Result<(), Failure> {
        if self.keys.blob(blob).is_some_and(Blob::counts_fetches) {
            let text = format!(
                "key {key:?} is kept until it is fetched a number of times, and fetching a part does not count: fetch all of it"
            );
            return Err(Failure::new(FailureCode::Invalid, text));
        }
        Ok(())
    }

    /// Returns the failure of a push by a worker that has lost its name.
    pub(in crate::protocol::node) fn no_name(&self, session: SessionId, key: &Key) -> Option<Failure> {
        let s = self.sessions.get(session)?;
        let node = s.name_at()?;
        let text = format!(
            "key {key:?} cannot be pushed by this worker: its name {:?} is that of a worker at node {node:?}, which the directory \
             entered first; connect again, under another name or when that one is gone",
            s.name()
        );
        Some(Failure::new(FailureCode::KeyOwned, text))
    }

    /// Returns the failure if another operation with this number is in progress. The limit on waiting operations counts
    /// numbers.
    pub(in crate::protocol::node) fn is_under_way(&self, session: SessionId, op: OpId) -> Option<Failure> {
        self.sessions.get(session)?.op(op).map(|_| {
            let text = format!(
                "operation {} of this worker is under way; each needs a number of its own until it has ended",
                op.0
            );
            Failure::new(FailureCode::Invalid, text)
        })
    }

    pub(in crate::protocol::node) fn is_busy(&self, session: SessionId) -> Option<Failure> {
        let waiting = self.sessions.get(session)?.waiting();
        (waiting >= self.config.max_ops_per_session).then(|| {
            Failure::new(FailureCode::Busy, format!("this worker has {waiting} operations waiting, the limit"))
        })
    }

    /// Whether this many ranges of a worker's arena may be open to a peer for one more fetch. Each of them takes a grant of a link,
    /// which all workers share. A fetch into one range may always. So a worker has at most three times as many grants as it may have
    /// operations: for the headers, for the first ranges, and for the others. By default that is fewer than the 65,536 memory windows
    /// of a link over verbs.
    pub(in crate::protocol::node) fn may_open(&self, session: SessionId, ranges: usize) -> bool {
        let open = self.sessions.get(session).map_or(0, |s| s.more_ranges());
        ranges <= 1 || open + ranges <= self.config.max_ops_per_session
    }

    /// Returns the failure if one more tensor of `more` ranges would bring a worker's tensors over the limit of ranges.
    pub(in crate::protocol::node) fn too_many_ranges(&self, arena: SegmentId, more: u32) -> Option<Failure> {
        let (kept, most) = (self.sessions.ranges_in(arena)?, self.config.max_ranges_per_session);
        (more > 0 && kept + u64::from(more) > most).then(|| {
            let text = format!(
                "what this worker has pushed and not got back is made of {kept} ranges of its arena; {more} more would be above the \
                 limit of {most}"
            );
            Failure::new(FailureCode::Busy, text)
        })
    }

    /// Checks whether a worker may own this key, and may push it to worker `to` if that worker is at this node.
    pub(in crate::protocol::node) fn may_push(
        &self,
        session: SessionId,
        key: &Key,
        to: Option<&Name>,
    ) -> Result<(), Failure> {
        let Some(tenant) = self.sessions.tenant_of(session) else { return Ok(()) };
        self.config.tenants.may_own(tenant, key)?;
        match to.and_then(|to| Some((to, self.sessions.tenant_of(self.sessions.named(to)?)?))) {
            Some((to, other)) if other != tenant => {
                Err(self.of_another_tenant(&format!("worker {to:?}"), other, tenant))
            }
            _ => Ok(()),
        }
    }

    /// Checks whether the peer of this link may speak for this tenant.
    pub(in crate::protocol::node) fn vouched(&self, link: LinkId, tenant: Tenant) -> Result<(), Failure> {
        let Some(peer) = self.links.peer_of(link) else { return Ok(()) };
        self.config.tenants.vouched(&self.config.name, (&peer.name, &peer.vouches), tenant)
    }

    /// Returns the tenant for which a peer asks, by the name in its message. The outer error is a violation, the inner
    /// one is the answer to the peer.
    pub(in crate::protocol::node) fn asked_for(
        &self,
        link: LinkId,
        name: NameRef,
    ) -> Result<Result<Tenant, Failure>, String> {
        let text = self.links.look_up(link, name)?;
        let Some(tenant) = self.tenant_called(text) else {
            return Ok(Err(self.unknown_tenant(text)));
        };
        Ok(self.vouched(link, tenant).map(|()| tenant))
    }

    /// Returns the tenant that has this name.
    pub(in crate::protocol::node) fn tenant_called(&self, text: &Name) -> Option<Tenant> {
        self.config.tenants.called(text.as_str())
    }

    pub(in crate::protocol::node) fn unknown_tenant(&self, text: &Name) -> Failure {
        denied(format!("unknown tenant {text:?} at node {:?}: name it with --tenants there, too", self.config.name))
    }

    /// Returns the failure if a key belongs to another tenant than the worker that asks. `None` if it does not.
    pub(in crate::protocol::node) fn is_others(
        &self,
        session: SessionId,
        record: RecordId,
        key: &Key,
    ) -> Option<Failure> {
        let asks = self.sessions.tenant_of(session)?;
        let owner = self.sessions.owner_tenant(self.keys.record(record)?.owner())?;
        (owner != asks).then(|| self.of_another_tenant(&format!("key {key:?}"), owner, asks))
    }

    /// Returns the other tenants that a push lets read its tensor.
    pub(in crate::protocol::node) fn readers_of_push(&self, push: &Push, local: bool) -> Result<Vec<Tenant>, Failure> {
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
    pub(in crate::protocol::node) fn may_read(&self, reader: Tenant, key: &Key, id: BlobId) -> Result<(), Failure> {
        let Some(blob) = self.keys.blob(id) else { return Ok(()) };
        let is_for_all = self.config.rules.breaks(Broken::ServesStrangers);
        match is_for_all
            || blob.domain == reader
            || self.keys.is_shared_with(id, reader)
            || self.config.tenants.shares(reader, key)
        {
            true => Ok(()),
            false => Err(self.of_another_tenant("the tensor", blob.domain, reader)),
        }
    }

    /// Returns the newest version of a key, for a reader that may know of it.
    pub(in crate::protocol::node) fn readable_newest(&self, reader: Tenant, record: RecordId) -> Option<Version> {
        let r = self.keys.record(record)?;
        let newest = r.newest()?;
        self.may_read(reader, r.key(), newest).ok()?;
        self.keys.current(record).map(|b| b.version)
    }

    /// Returns the failure of a fetch that can no longer be answered. It hides the version of another tenant's key.
    pub(in crate::protocol::node) fn version_gone(
        &self,
        record: RecordId,
        reader: Tenant,
        key: &Key,
        select: Select,
        newest: Version,
    ) -> Failure {
        let owner = self.keys.record(record).and_then(|r| self.sessions.owner_tenant(r.owner()));
        match owner.filter(|owner| *owner != reader) {
            Some(owner) => self.of_another_tenant(&format!("key {key:?}"), owner, reader),
            None => Failure::new(
                FailureCode::VersionGone,
                format!("{select} of key {key:?} was asked for, but it is at {newest} already"),
            ),
        }
    }

    /// Returns the failure for access to something of another tenant. It tells nothing but the tenant that owns it.
    pub(in crate::protocol::node) fn of_another_tenant(&self, what: &str, owner: Tenant, asks: Tenant) -> Failure {
        self.config.tenants.of_another(what, owner, asks)
    }

    /// Returns whether a session has the name and the tenant of the worker that a key's versions have outlived. The
    /// versions are then its own.
    pub(in crate::protocol::node) fn is_heir(&self, session: SessionId, outlived: &Outlived) -> bool {
        self.sessions.get(session).is_some_and(|s| *s.name() == outlived.owner && s.tenant() == outlived.domain)
    }
}

/// Returns the failure for a key that another worker owns.
pub(in crate::protocol::node) fn key_owned(key: &Key, owner: Option<&Name>, node: &Name) -> Failure {
    let owner = owner.map_or("another worker", Name::as_str);
    Failure::new(FailureCode::KeyOwned, format!("key {key:?} is owned by {owner:?} at node {node:?}"))
}
