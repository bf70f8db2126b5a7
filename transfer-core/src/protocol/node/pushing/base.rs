//! Pushes that lend a base: what a worker has from elsewhere, for instance from a checkpoint, and its fetches may name.

use super::publish::PushedMemory;
use crate::op::{Failure, FailureCode, OpId, Push};
use crate::protocol::ids::SessionId;
use crate::protocol::keys::{Blob, Source};
use crate::protocol::node::flows::Pushing;
use crate::protocol::sessions::{Op, OpKind, PushOp, PushStage};
use crate::time::Time;

impl Pushing<'_> {
    /// Lends a base. Nothing is published. The operation stays under way until its worker gives it up, ends, or its time is over: so its memory comes back as that of
    /// a failed push does, at once or with the last delta that is applied to it.
    pub(super) fn lend_base(
        &mut self,
        now: Time,
        (session, op): (SessionId, OpId),
        push: Push,
        memory: PushedMemory,
        error: Option<Failure>,
    ) {
        let PushedMemory { slice, parts, is_registered } = memory;
        let invalid = |text: &str| Some(Failure::new(FailureCode::Invalid, format!("key {:?}: {text}", push.key)));
        let is_plain = push.to.is_none() && !push.takeover && push.announced.is_none();
        let refused = error.or_else(|| self.common.draining.then(|| access!(self).is_draining()));
        let refused = refused.or_else(|| match is_plain {
            true => None,
            false => invalid("a base is not published: it has no target, takes no key over, and is not announced"),
        });
        let refused = refused.or_else(|| match is_registered {
            true => invalid("a base lies in memory that its worker has registered, which this sidecar cannot read"),
            false => None,
        });
        let refused = refused.or_else(|| access!(self).is_busy(session));
        let refused = refused.or_else(|| access!(self).too_many_ranges(slice.segment, push.ranges));
        let refused = refused.or_else(|| limits!(self).too_many_versions(session));
        let content = match (push.content, refused) {
            (Some(content), None) => content,
            (_, Some(failure)) => return answering!(self).refuse_push(session, op, &push, failure),
            (None, None) => {
                let failure = Failure::new(FailureCode::Invalid, "a base has a content, by which it is named");
                return answering!(self).refuse_push(session, op, &push, failure);
            }
        };
        let Some(tenant) = self.sessions.tenant_of(session) else { return };
        let mut blob = Blob::new(slice, push.meta, tenant, Source::Arena(op));
        if push.ranges > 0 {
            blob = blob.made_of(parts.into());
        }
        self.sessions.occupy(slice.segment, push.ranges);
        let blob = self.keys.insert(blob);
        self.sessions.begin(Op {
            session,
            id: op,
            key: push.key,
            since: now,
            deadline: now + push.timeout,
            require: None,
            kind: OpKind::Push(PushOp {
                version: None,
                takeover: false,
                // Its end says nothing of the versions of the key.
                more_follow: true,
                to: None,
                blob,
                copy: None,
                label: None,
                stage: PushStage::Lending(content),
                posted: Time::NEVER,
            }),
        });
    }
}
