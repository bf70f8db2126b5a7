//! What exchanges have at this node, and the limit on their partitions. The state machine is in `protocol/exchanges`.

use crate::exchange::{ExchangeKey, Label, PREFIX, Part};
use crate::op::{Failure, FailureCode};
use crate::protocol::exchanges::Came;
use crate::protocol::ids::BlobId;
use crate::protocol::node::flows::Pushing;
use crate::protocol::sessions::Op;
use crate::tensor::{Key, Spill};
use crate::time::Time;

impl Pushing<'_> {
    /// Returns the failure if the opener of an exchange wants more partitions than the limit. The anchor says how many.
    pub(in crate::protocol::node) fn too_many_partitions(
        &mut self,
        key: &Key,
        label: Option<&Label>,
    ) -> Option<Failure> {
        let (partitions, most) = (label?.partitions, self.config.limits.partitions_per_exchange);
        let ExchangeKey { name, .. } = ExchangeKey::parse(key.as_str()).filter(|key| key.part == Part::Anchor)?;
        if u64::from(partitions) <= most {
            return None;
        }
        self.keys.limits_reached_mut().partitions += 1;
        let text = format!(
            "exchange {name:?} would have {partitions} partitions, and the limit of node {} is {most}, which is \
             limits.partitions_per_exchange; open it with fewer, or raise the limit",
            self.config.name
        );
        Some(Failure::new(FailureCode::Invalid, text))
    }

    /// Counts a version that a worker has just published, if it is a part of an exchange.
    pub(in crate::protocol::node) fn exchange_part_came(
        &mut self,
        now: Time,
        op: &Op,
        blob: BlobId,
        label: Option<Box<Label>>,
    ) {
        if !op.key.as_str().starts_with(PREFIX) {
            return;
        }
        if let (Some(b), Some(worker)) = (self.keys.blob(blob), self.sessions.get(op.session)) {
            let (len, urgent) = (b.meta.len_bytes(), b.retention().spill == Spill::Now);
            let (tenant, worker) = (b.domain, worker.name());
            self.exchanges.came(now, Came { tenant, worker, key: &op.key, blob, len, urgent, label });
        }
    }
}
