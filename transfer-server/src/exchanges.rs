//! Exchanges as operators see them: what the data plane has counted of each, and who waits.

use crate::engine::{EngineClient, EngineError, Listing, PageFrom};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use transfer_core::exchange::{ExchangeId, ExchangeKey, PREFIX, Part};
use transfer_core::protocol::{ExchangeStatus, Page, TransferFilter, TransferStatus};
use transfer_core::tensor::Name;

/// The most waits of one exchange that are shown.
const MAX_WAITS: usize = 16;

/// The most waits of one exchange that are looked at, to find the longest ones.
const MAX_KEPT_WAITS: usize = 128;

/// The most pages of waiting operations that are looked at.
const MAX_PAGES: usize = 64;

/// An exchange at this node.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    /// What the data plane has counted. Without `lengths`, unless they are wanted.
    pub(crate) status: ExchangeStatus,
    /// The first of the partitions that have the most bytes, and their number.
    pub(crate) largest: Option<(u32, u64)>,
    /// The number of fetches that wait.
    pub(crate) reads_waiting: u64,
    /// The first waits, the longest first.
    pub(crate) waits: Vec<Wait>,
}

/// A worker that waits in an exchange.
#[derive(Debug, Clone)]
pub(crate) struct Wait {
    /// "read" or "write".
    pub(crate) operation: &'static str,
    pub(crate) worker: Name,
    pub(crate) task: u32,
    pub(crate) attempt: Option<u32>,
    /// The number of fetches.
    pub(crate) count: u64,
    pub(crate) age: Duration,
    pub(crate) waits_for: String,
}

impl Exchange {
    fn new(mut status: ExchangeStatus, with_lengths: bool) -> Exchange {
        let most = (0_u32..).zip(&status.lengths).max_by_key(|(partition, len)| (**len, Reverse(*partition)));
        let largest = most.map(|(partition, len)| (partition, *len)).filter(|(_, len)| *len > 0);
        if !with_lengths {
            status.lengths = Vec::new();
        }
        let waits = status.writers.iter().map(|writer| Wait {
            operation: "write",
            worker: writer.worker.clone(),
            task: writer.task,
            attempt: Some(writer.attempt),
            count: 1,
            age: writer.age,
            waits_for: format!("room in its arena: {} bytes are to be written to disk", writer.bytes),
        });
        Exchange { largest, reads_waiting: 0, waits: waits.collect(), status }
    }

    /// An exchange of which this node has nothing but readers.
    fn of_readers(key: ExchangeKey<'_>, tenant: Name) -> Exchange {
        let status = ExchangeStatus {
            name: key.name.to_owned(),
            id: key.id,
            tenant,
            is_opener: false,
            partitions: 0,
            tasks: 0,
            committed: 0,
            rows: 0,
            bytes: 0,
            lengths: Vec::new(),
            memory: 0,
            spilled: 0,
            writers_waiting: 0,
            writers: Vec::new(),
        };
        Exchange::new(status, false)
    }

    /// The bytes of the largest partition, divided by the mean of all partitions.
    pub(crate) fn skew(&self) -> Option<f64> {
        let (_, largest) = self.largest?;
        skew(largest, self.status.partitions, self.status.bytes)
    }

    /// What the list is sorted by.
    pub(crate) fn place(&self) -> (&str, ExchangeId) {
        (&self.status.name, self.status.id)
    }
}

#[allow(clippy::cast_precision_loss)]
fn skew(largest: u64, partitions: u32, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| largest as f64 * f64::from(partitions) / bytes as f64)
}

/// Lists the exchanges of this node whose name begins with `prefix`, in the order of their names. `wanted` says of which
/// tenants.
///
/// # Errors
/// [`EngineError`].
pub(crate) async fn look(
    engine: &EngineClient,
    prefix: &str,
    with_lengths: bool,
    wanted: impl Fn(&Name) -> bool + Send,
) -> Result<Vec<Exchange>, EngineError> {
    let mut all = BTreeMap::new();
    let mut place = Some(0);
    while let Some(from) = place {
        let list = |answer| Listing::Exchanges { prefix: prefix.to_owned(), answer };
        let page: Page<ExchangeStatus> =
            engine.list(PageFrom { place: from, limit: ExchangeStatus::MAX_ENTRIES }, list).await?;
        for status in page.entries.into_iter().filter(|status| wanted(&status.tenant)) {
            let key = (status.name.clone(), status.id, status.tenant.as_str().to_owned());
            all.insert(key, Exchange::new(status, with_lengths));
        }
        place = page.next;
    }
    let mut place = Some(0);
    for _ in 0..MAX_PAGES {
        let Some(from) = place else { break };
        let filter = TransferFilter { prefix: format!("{PREFIX}{prefix}"), ..TransferFilter::default() };
        let list = |answer| Listing::Transfers { filter, answer };
        let page: Page<TransferStatus> =
            engine.list(PageFrom { place: from, limit: Page::<TransferStatus>::MAX_ENTRIES }, list).await?;
        for transfer in page.entries.iter().filter(|transfer| wanted(&transfer.tenant)) {
            let key = ExchangeKey::parse(&transfer.key).filter(|key| key.name.starts_with(prefix));
            let Some(key) = key.filter(|_| transfer.operation == "fetch") else { continue };
            let of = (key.name.to_owned(), key.id, transfer.tenant.as_str().to_owned());
            let exchange = all.entry(of).or_insert_with(|| Exchange::of_readers(key, transfer.tenant.clone()));
            exchange.reads(key.part, transfer);
        }
        place = page.next;
    }
    let mut all: Vec<_> = all.into_values().collect();
    for exchange in &mut all {
        exchange.waits.sort_by_key(|wait| Reverse(wait.age));
        exchange.waits.truncate(MAX_WAITS);
    }
    Ok(all)
}

impl Exchange {
    /// Adds a fetch that waits. Those of one worker for one thing are counted together.
    fn reads(&mut self, part: Part, transfer: &TransferStatus) {
        let (task, attempt) = match part {
            // The keeper of an exchange looks at it. That is no wait for rows.
            Part::Anchor => return,
            Part::Note(task) => (task, None),
            Part::Mark(task, attempt) | Part::Bundle(task, attempt) => (task, Some(attempt)),
        };
        self.reads_waiting += 1;
        // While it is not known where the note is, no attempt has published one.
        let waits_for = match (attempt, &transfer.peer) {
            (None, None) => format!("task {task} to commit"),
            _ => transfer.waits_for.clone(),
        };
        let same = |wait: &&mut Wait| {
            (wait.operation, &wait.worker, wait.task, wait.attempt, &wait.waits_for)
                == ("read", &transfer.worker, task, attempt, &waits_for)
        };
        let has_room = self.waits.len() < MAX_KEPT_WAITS;
        match self.waits.iter_mut().find(same) {
            Some(wait) => {
                wait.count += 1;
                wait.age = wait.age.max(transfer.age);
            }
            None if has_room => self.waits.push(Wait {
                operation: "read",
                worker: transfer.worker.clone(),
                task,
                attempt,
                count: 1,
                age: transfer.age,
                waits_for,
            }),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineCommand;
    use transfer_core::exchange::{bundle_key, note_key};
    use transfer_core::protocol::SessionId;

    const ID: ExchangeId = ExchangeId([2; 16]);

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn exchange(text: &str, tenant: &str, lengths: &[u64]) -> ExchangeStatus {
        let key = ExchangeKey { name: text, id: ID, part: Part::Anchor };
        let status = Exchange::of_readers(key, name(tenant)).status;
        let (partitions, bytes) = (lengths.len() as u32, lengths.iter().sum());
        ExchangeStatus { partitions, bytes, lengths: lengths.to_vec(), ..status }
    }

    fn fetch(key: &str, worker: &str, tenant: &str, age: u64) -> TransferStatus {
        TransferStatus {
            operation: "fetch",
            key: key.to_owned(),
            worker: name(worker),
            tenant: name(tenant),
            session: SessionId(1),
            peer: None,
            len_bytes: None,
            age: Duration::from_secs(age),
            left: Duration::ZERO,
            waits_for: "room in the landing pool".to_owned(),
        }
    }

    async fn seen(statuses: Vec<ExchangeStatus>, fetches: Vec<TransferStatus>, only: &'static str) -> Vec<Exchange> {
        let engine = EngineClient::new(move |command| {
            let EngineCommand::List { from, listing } = command else { panic!() };
            let at = from.place as usize;
            let next = |len: usize| (at + 1 < len).then_some(from.place + 1);
            match listing {
                Listing::Exchanges { answer, .. } => answer(Page {
                    entries: statuses.get(at).cloned().into_iter().collect(),
                    next: next(statuses.len()),
                }),
                Listing::Transfers { answer, .. } => {
                    answer(Page { entries: fetches.get(at).cloned().into_iter().collect(), next: next(fetches.len()) });
                }
                _ => panic!(),
            }
            Ok(())
        });
        look(&engine, "", false, |tenant| tenant.as_str() == only).await.unwrap()
    }

    #[tokio::test]
    async fn skew_is_that_of_the_largest_partition() {
        let lists = vec![
            exchange("b", "t", &[100, 300, 300, 100]),
            exchange("a", "t", &[7, 7]),
            exchange("none", "t", &[]),
            exchange("empty", "t", &[0, 0]),
            exchange("c", "other", &[1]),
        ];
        let all = seen(lists, Vec::new(), "t").await;
        let shown: Vec<_> = all.iter().map(|e| (e.status.name.as_str(), e.largest, e.skew())).collect();
        assert_eq!(
            shown,
            [
                ("a", Some((0, 7)), Some(1.0)),
                ("b", Some((1, 300)), Some(1.5)),
                ("empty", None, None),
                ("none", None, None)
            ]
        );
        assert!(all.iter().all(|exchange| exchange.status.lengths.is_empty()));
    }

    #[tokio::test]
    async fn waits_are_counted_by_worker_and_task_the_longest_first() {
        let note = |task| note_key("e", ID, task).unwrap().to_string();
        let bundle = bundle_key("e", ID, (1, 2), 0).unwrap().to_string();
        let fetches = vec![
            fetch(&note(3), "r", "t", 1),
            fetch(&note(3), "r", "t", 5),
            fetch(&bundle, "r", "t", 2),
            fetch(&note(3), "s", "t", 9),
            fetch(&note(3), "s", "other", 9),
            fetch("exchange/e/3", "r", "t", 9),
        ];
        let all = seen(Vec::new(), fetches, "t").await;
        let [exchange] = &all[..] else { panic!("{all:?}") };
        assert_eq!((exchange.status.name.as_str(), exchange.reads_waiting), ("e", 4));
        let waits = exchange.waits.iter();
        let waits =
            waits.map(|w| (w.worker.as_str(), w.task, w.attempt, w.count, w.age.as_secs(), w.waits_for.as_str()));
        assert_eq!(
            waits.collect::<Vec<_>>(),
            [
                ("s", 3, None, 1, 9, "task 3 to commit"),
                ("r", 3, None, 2, 5, "task 3 to commit"),
                ("r", 1, Some(2), 1, 2, "room in the landing pool")
            ]
        );
    }

    #[tokio::test]
    async fn many_waits_are_counted_and_the_first_are_shown() {
        let fetches = (0..1000).map(|n| fetch(&note_key("e", ID, n).unwrap().to_string(), "r", "t", 1)).collect();
        let all = seen(Vec::new(), fetches, "t").await;
        assert_eq!(all[0].waits.len(), MAX_WAITS);
        // One page has one entry here, and a bounded number of pages is looked at.
        assert_eq!(all[0].reads_waiting, MAX_PAGES as u64);
    }
}
