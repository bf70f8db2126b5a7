//! The lists. Each is a request, a row of a table and an object of JSON, in a file of its own. Pages are requested one
//! after the other, and printed as they come.

mod exchanges;
mod links;
mod peers;
mod quarantine;
mod segments;
mod sessions;
mod sharded;
mod tensors;
#[cfg(test)]
mod tests;
mod transfers;

pub use exchanges::Exchanges;
pub use links::Links;
pub use peers::Peers;
pub use quarantine::Quarantine;
pub use segments::{SegmentKind, Segments};
pub use sessions::Sessions;
pub use tensors::Tensors;
pub use transfers::Transfers;

use super::pages::Pages;
use super::{Target, cluster, fabric_name};
use crate::error::Error;
use serde_json::Value;
use std::ops::ControlFlow;
use transfer_terminal::table::Table;
use transfer_terminal::units::{bytes, counted};

/// The options of all lists.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// The number of entries of one page
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub page_size: u32,
    /// Stop after this many entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// One JSON object per line: sizes in bytes, times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

/// A list of the Admin service.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Lists {
    /// List connected workers
    Sessions(Sessions),
    /// List nodes with a link, or to which one is being made
    Peers(Peers),
    /// List links to peers: their fabric, the fallback reason, their queues and their traffic
    Links(Links),
    /// List the tensors that are published at the sidecar, or at all nodes
    Tensors(Tensors),
    /// List memory: arenas of workers, landing pools, and the sidecar's own
    Segments(Segments),
    /// List unfinished operations of workers, and what they wait for
    Transfers(Transfers),
    /// List exchanges of record batches: rows, bytes, skew, what lies on disk, and who waits for whom
    Exchanges(Exchanges),
    /// List landing slots that are not free because a peer might still write into them
    Quarantine(Quarantine),
}

impl Lists {
    /// The options that it shares with the others.
    pub(crate) fn common(&self) -> &Common {
        match self {
            Lists::Sessions(list) => &list.common,
            Lists::Peers(list) => &list.common,
            Lists::Links(list) => &list.common,
            Lists::Tensors(list) => &list.common,
            Lists::Segments(list) => &list.common,
            Lists::Transfers(list) => &list.common,
            Lists::Exchanges(list) => &list.common,
            Lists::Quarantine(list) => &list.common,
        }
    }

    /// Prints it.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Admin`]; with --cluster [`Error::NotAllNodes`].
    pub(crate) async fn run(&self) -> Result<(), Error> {
        match self {
            Lists::Sessions(list) => one_node(&list.common, list.request()).await,
            Lists::Peers(list) => one_node(&list.common, list.request()).await,
            Lists::Links(list) => one_node(&list.common, list.request()).await,
            Lists::Tensors(list) => tensors::run(list).await,
            Lists::Segments(list) => one_node(&list.common, list.request()).await,
            Lists::Transfers(list) => one_node(&list.common, list.request()).await,
            Lists::Exchanges(list) => exchanges::run(list).await,
            Lists::Quarantine(list) => one_node(&list.common, list.request()).await,
        }
    }
}

/// An entry of a list.
pub(crate) trait Show {
    /// The words for one entry and for several.
    const WORDS: (&'static str, &'static str);

    /// The table's headings, with ` | ` between them; `>` is a column of numbers.
    fn headings() -> String;

    fn row(&self) -> Vec<String>;

    fn json(&self) -> Value;

    /// The bytes that it adds to the sum below the table.
    fn bytes(&self) -> Option<u64> {
        None
    }
}

/// The part of a list that is shown so far.
struct Shown<S> {
    common: Common,
    /// The entries of the next table.
    rows: Vec<S>,
    total: u64,
    total_bytes: Option<u64>,
    /// Whether the list was cut at the limit.
    cut: bool,
}

impl<S: Show> Shown<S> {
    fn new(common: &Common) -> Shown<S> {
        Shown { common: common.clone(), rows: Vec::new(), total: 0, total_bytes: None, cut: false }
    }

    /// Shows more entries, until the list is cut. One more than the limit shows that there are more.
    fn add(&mut self, entries: impl IntoIterator<Item = S>) -> ControlFlow<()> {
        for entry in entries {
            if self.is_full() {
                self.cut = true;
                return ControlFlow::Break(());
            }
            self.total += 1;
            self.total_bytes = entry.bytes().map(|bytes| self.total_bytes.unwrap_or(0) + bytes).or(self.total_bytes);
            self.rows.push(entry);
        }
        if self.rows.len() >= self.common.page_size as usize {
            self.print();
        }
        ControlFlow::Continue(())
    }

    /// Whether as many are shown as the limit allows.
    fn is_full(&self) -> bool {
        self.common.limit.is_some_and(|limit| self.total >= limit)
    }

    fn print(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if self.common.json {
            rows.iter().for_each(|entry| transfer_terminal::outln!("{}", entry.json()));
        } else if !rows.is_empty() {
            let mut table = Table::new(&S::headings().split(" | ").collect::<Vec<_>>());
            rows.iter().for_each(|entry| table.row(entry.row()));
            transfer_terminal::out!("{table}");
        }
    }

    /// Shows the rest, and the sum.
    fn end(mut self) {
        self.print();
        if !self.common.json {
            let (one, several) = S::WORDS;
            let sum = self.total_bytes.map(|n| format!(", {}", bytes(n))).unwrap_or_default();
            let more = if self.cut { "; there are more" } else { "" };
            transfer_terminal::outln!("{}{sum}{more}", counted(self.total, one, several));
        }
    }
}

/// Requests page after page of one node, and prints each as it comes.
async fn one_node<R: Pages<Entry: Show>>(common: &Common, request: R) -> Result<(), Error> {
    let mut shown = Shown::new(common);
    cluster::list(&common.target, request, false, |_, entries| shown.add(entries)).await?;
    shown.end();
    Ok(())
}

/// A number, or an empty text if it is 0.
fn some(n: u64) -> String {
    if n == 0 { String::new() } else { n.to_string() }
}

fn fabric_or_none(fabric: i32) -> String {
    if fabric == 0 { String::new() } else { fabric_name(fabric) }
}
