//! `transferctl exchanges`: what exchanges have at a node, or at all nodes together.

use super::{Common, Show, Shown, one_node};
use crate::admin::cluster;
use crate::error::Error;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;
use transfer_proto::v1;
use transfer_terminal::units::{bytes, count, counted, short};

/// The options of `transferctl exchanges`.
#[derive(Debug, Clone, clap::Args)]
pub struct Exchanges {
    /// Only exchanges whose name has this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Add up what all nodes of the directory have of each exchange. Each node is asked at its own address; if one cannot
    /// be asked, it is named, and the exit code is 9
    #[arg(long)]
    pub cluster: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Exchanges {
    fn request(&self) -> v1::ExchangesRequest {
        v1::ExchangesRequest {
            prefix: self.prefix.clone(),
            page_size: self.common.page_size,
            page_token: String::new(),
            partition_bytes: self.common.json || self.cluster,
        }
    }
}

impl Show for v1::Exchange {
    const WORDS: (&'static str, &'static str) = ("exchange", "exchanges");

    fn headings() -> String {
        "exchange | >tenant | >tasks | >partitions | >rows | >size | >skew | >memory | >disk | >reads | >writers | waits".to_owned()
    }

    fn row(&self) -> Vec<String> {
        let known = |n: u32| if n == 0 { String::new() } else { count(n.into()) };
        let tasks = match self.tasks {
            0 => count(self.committed),
            all => format!("{} of {}", count(self.committed), count(all.into())),
        };
        vec![
            self.name.clone(),
            self.tenant.clone(),
            tasks,
            known(self.partitions),
            count(self.rows),
            bytes(self.bytes),
            self.skew.map(|skew| format!("{skew:.2}")).unwrap_or_default(),
            bytes(self.memory_bytes),
            bytes(self.spilled_bytes),
            count(self.reads_waiting),
            count(self.writers_waiting),
            waits(&self.waits),
        ]
    }

    fn json(&self) -> Value {
        json!(self)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }
}

/// The longest wait in words, and how many others there are.
fn waits(waits: &[v1::ExchangeWait]) -> String {
    let Some(first) = waits.first() else { return String::new() };
    let age = short(Duration::from_nanos(first.age_ns));
    let more = match waits.len() - 1 {
        0 => String::new(),
        more => format!("; {}", counted(more as u64, "other", "others")),
    };
    format!("{} for {}, {age}{more}", first.worker, first.waits_for)
}

/// Lists the exchanges of a node, or of all.
pub(super) async fn run(list: &Exchanges) -> Result<(), Error> {
    if !list.cluster {
        return one_node(&list.common, list.request()).await;
    }
    let mut all = BTreeMap::new();
    let asked = cluster::list(&list.common.target, list.request(), true, |node, exchanges| {
        for exchange in exchanges {
            let key = (exchange.name.clone(), exchange.id.clone(), exchange.tenant.clone());
            all.entry(key).or_insert_with(OfAll::default).add(node, exchange);
        }
        ControlFlow::Continue(())
    });
    let asked = asked.await?;
    let mut shown = Shown::new(&list.common);
    let _is_cut = shown.add(all.into_values().map(OfAll::end));
    shown.end();
    asked.complete()
}

/// What all nodes have of an exchange, and those that have something.
#[derive(Debug, Default)]
struct OfAll {
    nodes: Vec<String>,
    sum: v1::Exchange,
    /// Some node has rows without the bytes of their partitions.
    unknown: bool,
}

impl OfAll {
    fn add(&mut self, node: &str, exchange: v1::Exchange) {
        self.nodes.push(node.to_owned());
        let sum = &mut self.sum;
        self.unknown |= exchange.bytes > 0 && exchange.partition_bytes.is_empty();
        let lengths = &exchange.partition_bytes;
        if sum.partition_bytes.len() < lengths.len() {
            sum.partition_bytes.resize(lengths.len(), 0);
        }
        sum.partition_bytes.iter_mut().zip(lengths).for_each(|(sum, len)| *sum = sum.saturating_add(*len));
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut sum.committed, exchange.committed);
        add(&mut sum.rows, exchange.rows);
        add(&mut sum.bytes, exchange.bytes);
        add(&mut sum.memory_bytes, exchange.memory_bytes);
        add(&mut sum.spilled_bytes, exchange.spilled_bytes);
        add(&mut sum.reads_waiting, exchange.reads_waiting);
        add(&mut sum.writers_waiting, exchange.writers_waiting);
        sum.waits.extend(exchange.waits);
        sum.partitions = sum.partitions.max(exchange.partitions);
        sum.tasks = sum.tasks.max(exchange.tasks);
        sum.opened_here |= exchange.opened_here;
        (sum.name, sum.id, sum.tenant) = (exchange.name, exchange.id, exchange.tenant);
    }

    #[allow(clippy::cast_precision_loss)]
    fn end(mut self) -> OfAll {
        let sum = &mut self.sum;
        if self.unknown {
            sum.partition_bytes.clear();
        }
        let largest =
            (0_u32..).zip(&sum.partition_bytes).max_by_key(|(partition, len)| (**len, std::cmp::Reverse(*partition)));
        if let Some((partition, len)) = largest.map(|(partition, len)| (partition, *len)).filter(|(_, len)| *len > 0) {
            (sum.largest_partition, sum.largest_bytes) = (Some(partition), Some(len));
            sum.skew = Some(len as f64 * f64::from(sum.partitions) / sum.bytes as f64);
        }
        sum.waits.sort_by_key(|wait| std::cmp::Reverse(wait.age_ns));
        self
    }
}

impl Show for OfAll {
    const WORDS: (&'static str, &'static str) = v1::Exchange::WORDS;

    fn headings() -> String {
        format!("{} | >nodes", v1::Exchange::headings())
    }

    fn row(&self) -> Vec<String> {
        [self.sum.row(), vec![count(self.nodes.len() as u64)]].concat()
    }

    fn json(&self) -> Value {
        let mut object = self.sum.json();
        object["nodes"] = self.nodes.as_slice().into();
        object
    }

    fn bytes(&self) -> Option<u64> {
        self.sum.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(lengths: &[u64], partitions: u32) -> v1::Exchange {
        let bytes = lengths.iter().sum();
        v1::Exchange { partitions, bytes, partition_bytes: lengths.to_vec(), ..v1::Exchange::default() }
    }

    fn of(parts: Vec<v1::Exchange>) -> v1::Exchange {
        let mut all = OfAll::default();
        parts.into_iter().for_each(|part| all.add("n", part));
        all.end().sum
    }

    // Promise: exchange-lists
    #[test]
    fn skew_of_all_nodes_is_not_that_of_one() {
        // Each node is skewed, and the whole is even.
        let sum = of(vec![exchange(&[90, 10], 2), exchange(&[], 0), exchange(&[10, 90], 2)]);
        assert_eq!((sum.largest_partition, sum.largest_bytes, sum.skew), (Some(0), Some(100), Some(1.0)));
        let sum = of(vec![exchange(&[30, 10], 2), exchange(&[30, 10], 2)]);
        assert_eq!((sum.largest_bytes, sum.skew), (Some(60), Some(1.5)));
        assert_eq!(sum.partition_bytes, [60, 20]);
    }

    #[test]
    fn skew_is_not_said_where_a_node_does_not_know_it() {
        let unknown = v1::Exchange { bytes: 7, partitions: 2, ..v1::Exchange::default() };
        let sum = of(vec![exchange(&[30, 10], 2), unknown]);
        assert_eq!((sum.bytes, sum.skew, sum.largest_bytes), (47, None, None));
        assert!(sum.partition_bytes.is_empty());
        assert_eq!(of(vec![exchange(&[0, 0], 2)]).skew, None);
    }

    #[test]
    fn a_row_says_who_waits_the_longest() {
        let wait = |worker: &str, age_ns| v1::ExchangeWait {
            worker: worker.to_owned(),
            age_ns,
            waits_for: "task 3 to commit".to_owned(),
            ..v1::ExchangeWait::default()
        };
        assert_eq!(waits(&[]), "");
        assert_eq!(waits(&[wait("r", 2_000_000_000)]), "r for task 3 to commit, 2.00 s");
        let two = waits(&[wait("r", 2_000_000_000), wait("s", 1), wait("t", 1)]);
        assert!(two.ends_with("; 2 others"), "{two}");
    }
}
