//! What exchanges of record batches have at this node, for operators.
//!
//! An exchange is a library of the client: keys, counters and bundles. The node moves its parts as it moves all others.
//! This machine only recognizes them by their keys, and counts: the tasks that have committed here, as the label of each
//! mark says, and the bundles that lie in memory and on disk. So whatever a worker writes into a label changes what is
//! shown of its own tenant's exchange, and nothing else.

#[cfg(test)]
mod tests;

use super::ids::BlobId;
use super::snapshot::ExchangeStatus;
use super::spill::SpillId;
use super::tenant::Tenant;
use crate::exchange::{ExchangeId, ExchangeKey, Label, Part};
use crate::tensor::{Key, Name};
use crate::time::Time;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// The most exchanges of one tenant that are shown. Others are moved as well, and not counted.
pub(super) const MAX_PER_TENANT: u64 = 1024;

/// The most memory for the lengths of partitions, in bytes: for each task as many as its label has. Of tasks beyond it
/// only the sums are known.
const MAX_LENGTHS_BYTES: u64 = 64 << 20;

/// What a node has of all exchanges together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExchangeTotals {
    /// The number of exchanges of which something is here.
    pub exchanges: u64,
    /// The number of tasks that have committed here since the start.
    pub tasks: u64,
    /// The rows that they have written.
    pub rows: u64,
    /// The length of these rows, in bytes.
    pub bytes: u64,
    /// The length of all that lies in memory, in bytes.
    pub memory: u64,
    /// The length of all that lies on disk, in bytes.
    pub spilled: u64,
    /// The number of reads of workers that wait.
    pub reads_waiting: u64,
    /// The number of attempts that have found no room in their arena, and whose rows wait to be written to disk.
    pub writes_waiting: u64,
}

/// A version that a worker has published.
pub(super) struct Came<'a> {
    pub(super) tenant: Tenant,
    pub(super) worker: &'a Name,
    pub(super) key: &'a Key,
    pub(super) blob: BlobId,
    pub(super) len: u64,
    /// Its worker needs the memory: the version is to be written to disk at once.
    pub(super) urgent: bool,
    /// What lies under the key, if it is a label.
    pub(super) label: Option<Box<Label>>,
}

/// The exchanges of a node, as a state machine.
///
/// The node that holds it hands it **events**: a worker has published a version ([`came`](Exchanges::came)), a version
/// has ended in memory ([`went`](Exchanges::went)), one was written to disk ([`spilled`](Exchanges::spilled)) or has ended
/// there ([`unspilled`](Exchanges::unspilled)).
#[derive(Default)]
pub(super) struct Exchanges {
    /// By their numbers, which are in the order in which they came.
    all: BTreeMap<u64, Exchange>,
    numbers: HashMap<(Tenant, ExchangeId), u64>,
    last: u64,
    of_tenants: BTreeMap<Tenant, u64>,
    /// The versions that are counted.
    versions: HashMap<BlobId, Version>,
    /// The versions on disk that are counted: their exchanges, and their lengths.
    stored: HashMap<SpillId, (u64, u64)>,
    /// The memory for lengths of partitions, in bytes.
    lengths: u64,
    totals: ExchangeTotals,
}

/// A version that is counted.
#[derive(Clone, Copy)]
struct Version {
    exchange: u64,
    part: Part,
    len: u64,
    urgent: bool,
}

struct Exchange {
    tenant: Tenant,
    name: Box<str>,
    id: ExchangeId,
    /// The numbers of partitions and of tasks. 0: no label has said them.
    partitions: u32,
    tasks: u32,
    /// How many versions are counted, in memory and on disk.
    versions: u64,
    is_opener: bool,
    /// The tasks that have committed here: the newest mark of each.
    committed: BTreeMap<u32, (BlobId, Box<Label>)>,
    rows: u64,
    bytes: u64,
    /// The length of the blocks of each partition. Empty: it is not known.
    lengths: Vec<u64>,
    /// The number of tasks whose lengths are not among them.
    unknown: u64,
    memory: u64,
    spilled: u64,
    /// The attempts that wait for room: their workers, the number of their versions and the length of these, and since
    /// when.
    waiting: BTreeMap<(u32, u32), Waiting>,
}

struct Waiting {
    worker: Name,
    versions: u64,
    bytes: u64,
    since: Time,
}

impl Exchanges {
    /// Handles a version that was published. All but parts of exchanges are ignored.
    pub(super) fn came(&mut self, now: Time, came: Came<'_>) {
        let Some(key) = ExchangeKey::parse(came.key.as_str()) else { return };
        let counts = match key.part {
            Part::Note(_) => false,
            Part::Anchor | Part::Mark(..) => came.label.is_some(),
            Part::Bundle(..) => true,
        };
        if !counts || self.versions.contains_key(&came.blob) {
            return;
        }
        let Some(number) = self.number_of(came.tenant, key) else { return };
        let Some(exchange) = self.all.get_mut(&number) else { return };
        exchange.versions += 1;
        let urgent = came.urgent && matches!(key.part, Part::Bundle(..));
        let version = Version { exchange: number, part: key.part, len: came.len, urgent };
        self.versions.insert(came.blob, version);
        if let Some(label) = &came.label
            && exchange.partitions == 0
        {
            (exchange.partitions, exchange.tasks) = (label.partitions, label.tasks);
        }
        match (key.part, came.label) {
            (Part::Anchor, _) => exchange.is_opener = true,
            (Part::Mark(task, attempt), Some(label)) => {
                // It waits no longer, wherever its rows lie.
                if exchange.waiting.remove(&(task, attempt)).is_some() {
                    self.totals.writes_waiting = self.totals.writes_waiting.saturating_sub(1);
                }
                self.committed(number, task, came.blob, label);
            }
            (Part::Bundle(task, attempt), _) => {
                exchange.memory += came.len;
                self.totals.memory += came.len;
                if urgent {
                    let worker = came.worker.clone();
                    let new = Waiting { worker, versions: 0, bytes: 0, since: now };
                    let waiting = exchange.waiting.entry((task, attempt)).or_insert(new);
                    self.totals.writes_waiting += u64::from(waiting.versions == 0);
                    waiting.versions += 1;
                    waiting.bytes += came.len;
                }
            }
            (Part::Note(_) | Part::Mark(..), _) => {}
        }
    }

    /// Returns the number of an exchange, and makes one for a new one. `None`: the tenant has too many, or another name
    /// has this identity.
    fn number_of(&mut self, tenant: Tenant, key: ExchangeKey<'_>) -> Option<u64> {
        if let Some(number) = self.numbers.get(&(tenant, key.id)) {
            return self.all.get(number).filter(|exchange| *exchange.name == *key.name).map(|_| *number);
        }
        let of_tenant = self.of_tenants.entry(tenant).or_default();
        if *of_tenant >= MAX_PER_TENANT {
            return None;
        }
        *of_tenant += 1;
        self.last += 1;
        self.numbers.insert((tenant, key.id), self.last);
        let exchange = Exchange {
            tenant,
            name: key.name.into(),
            id: key.id,
            partitions: 0,
            tasks: 0,
            versions: 0,
            is_opener: false,
            committed: BTreeMap::new(),
            rows: 0,
            bytes: 0,
            lengths: Vec::new(),
            unknown: 0,
            memory: 0,
            spilled: 0,
            waiting: BTreeMap::new(),
        };
        self.all.insert(self.last, exchange);
        Some(self.last)
    }

    /// Counts a task that has committed. If it was lost and has committed again, the newest mark counts.
    fn committed(&mut self, number: u64, task: u32, blob: BlobId, mut label: Box<Label>) {
        self.uncount(number, task, None);
        let Some(exchange) = self.all.get_mut(&number) else { return };
        let fits = label.partitions == exchange.partitions && self.lengths + label.room_bytes() <= MAX_LENGTHS_BYTES;
        if !fits {
            *label = label.without_partitions();
        }
        self.lengths += label.room_bytes();
        exchange.rows = exchange.rows.saturating_add(label.rows);
        exchange.bytes = exchange.bytes.saturating_add(label.bytes);
        if label.has_partitions() {
            exchange.lengths.resize(exchange.partitions as usize, 0);
            let sums = exchange.lengths.iter_mut().zip(label.partitions());
            sums.for_each(|(sum, len)| *sum = sum.saturating_add(len));
        } else {
            exchange.unknown += 1;
        }
        self.totals.tasks += 1;
        self.totals.rows = self.totals.rows.saturating_add(label.rows);
        self.totals.bytes = self.totals.bytes.saturating_add(label.bytes);
        exchange.committed.insert(task, (blob, label));
    }

    /// Counts a task no longer: any mark of it, or only this one.
    fn uncount(&mut self, number: u64, task: u32, only: Option<BlobId>) {
        let Some(exchange) = self.all.get_mut(&number) else { return };
        if only.is_some_and(|only| exchange.committed.get(&task).is_some_and(|(blob, _)| only != *blob)) {
            return;
        }
        let Some((_, label)) = exchange.committed.remove(&task) else { return };
        self.lengths = self.lengths.saturating_sub(label.room_bytes());
        exchange.rows = exchange.rows.saturating_sub(label.rows);
        exchange.bytes = exchange.bytes.saturating_sub(label.bytes);
        if label.has_partitions() {
            let sums = exchange.lengths.iter_mut().zip(label.partitions());
            sums.for_each(|(sum, len)| *sum = sum.saturating_sub(len));
        } else {
            exchange.unknown = exchange.unknown.saturating_sub(1);
        }
    }

    /// Handles the end of a version in memory.
    pub(super) fn went(&mut self, blob: BlobId) {
        if self.versions.is_empty() {
            return;
        }
        let Some(Version { exchange: number, part, len, urgent }) = self.versions.remove(&blob) else { return };
        let Some(exchange) = self.all.get_mut(&number) else { return };
        match part {
            Part::Anchor => exchange.is_opener = false,
            Part::Mark(task, _) => self.uncount(number, task, Some(blob)),
            Part::Bundle(task, attempt) => {
                exchange.memory = exchange.memory.saturating_sub(len);
                self.totals.memory = self.totals.memory.saturating_sub(len);
                if urgent && let Some(waiting) = exchange.waiting.get_mut(&(task, attempt)) {
                    waiting.versions = waiting.versions.saturating_sub(1);
                    waiting.bytes = waiting.bytes.saturating_sub(len);
                    if waiting.versions == 0 {
                        exchange.waiting.remove(&(task, attempt));
                        self.totals.writes_waiting = self.totals.writes_waiting.saturating_sub(1);
                    }
                }
            }
            Part::Note(_) => {}
        }
        self.one_less(number);
    }

    /// Handles a version that lies on disk from now on. The one in memory ends later.
    pub(super) fn spilled(&mut self, blob: BlobId, id: SpillId) {
        let Some(Version { exchange: number, len, .. }) = self.versions.get(&blob) else { return };
        let Some(exchange) = self.all.get_mut(number) else { return };
        exchange.versions += 1;
        exchange.spilled += *len;
        self.totals.spilled += *len;
        self.stored.insert(id, (*number, *len));
    }

    /// Handles the end of a version on disk.
    pub(super) fn unspilled(&mut self, id: SpillId) {
        let Some((number, len)) = self.stored.remove(&id) else { return };
        if let Some(exchange) = self.all.get_mut(&number) {
            exchange.spilled = exchange.spilled.saturating_sub(len);
            self.totals.spilled = self.totals.spilled.saturating_sub(len);
        }
        self.one_less(number);
    }

    /// Counts one version less. After the last one the exchange is not shown any more.
    fn one_less(&mut self, number: u64) {
        let Some(exchange) = self.all.get_mut(&number) else { return };
        exchange.versions = exchange.versions.saturating_sub(1);
        if exchange.versions > 0 {
            return;
        }
        let Some(exchange) = self.all.remove(&number) else { return };
        self.numbers.remove(&(exchange.tenant, exchange.id));
        if let Some(of_tenant) = self.of_tenants.get_mut(&exchange.tenant) {
            *of_tenant = of_tenant.saturating_sub(1);
            if *of_tenant == 0 {
                self.of_tenants.remove(&exchange.tenant);
            }
        }
    }

    /// Returns what the node has of all exchanges together. The reads that wait are not known here.
    pub(super) fn totals(&self) -> ExchangeTotals {
        ExchangeTotals { exchanges: self.all.len() as u64, ..self.totals }
    }

    /// Returns a page of the exchanges whose name begins with `prefix`, from this number on: at most `limit`, and the
    /// number at which the next page begins.
    pub(super) fn page(
        &self,
        now: Time,
        prefix: &str,
        from: u64,
        (limit, most_steps): (usize, usize),
        tenant: impl Fn(Tenant) -> Name,
    ) -> (Vec<ExchangeStatus>, Option<u64>) {
        let mut entries = Vec::new();
        for (steps, (number, exchange)) in self.all.range(from..).enumerate() {
            if entries.len() == limit || steps == most_steps {
                return (entries, Some(*number));
            }
            if exchange.name.starts_with(prefix) {
                entries.push(exchange.status(now, tenant(exchange.tenant)));
            }
        }
        (entries, None)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        let ExchangeTotals { memory, spilled, writes_waiting, .. } = self.totals;
        self.all.is_empty()
            && self.numbers.is_empty()
            && self.of_tenants.is_empty()
            && self.versions.is_empty()
            && self.stored.is_empty()
            && (self.lengths, memory, spilled, writes_waiting) == (0, 0, 0, 0)
    }
}

impl Exchange {
    fn status(&self, now: Time, tenant: Name) -> ExchangeStatus {
        let writers = self.waiting.iter().map(|((task, attempt), waiting)| super::snapshot::ExchangeWriter {
            worker: waiting.worker.clone(),
            task: *task,
            attempt: *attempt,
            bytes: waiting.bytes,
            age: now.since(waiting.since),
        });
        ExchangeStatus {
            name: self.name.to_string(),
            id: self.id,
            tenant,
            is_opener: self.is_opener,
            partitions: self.partitions,
            tasks: self.tasks,
            committed: self.committed.len() as u64,
            rows: self.rows,
            bytes: self.bytes,
            lengths: if self.unknown == 0 { self.lengths.clone() } else { Vec::new() },
            memory: self.memory,
            spilled: self.spilled,
            writers_waiting: self.waiting.len() as u64,
            writers: writers.take(ExchangeStatus::MAX_WRITERS).collect(),
        }
    }
}
