//! The lists. Each is a call, a row of a table and an object of JSON, in a file of its own. Pages are requested one
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

use super::{Target, fabric_name};
use crate::error::Error;
use serde_json::Value;
use tonic::transport::Channel;
use transfer_proto::v1::admin_client::AdminClient;
use transfer_terminal::table::Table;
use transfer_terminal::units::{bytes, count};

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

/// The entries of one page, and the token of the next one.
pub(crate) type Answer<T> = Result<(Vec<T>, String), tonic::Status>;

/// The form of the entries of a list.
pub(crate) trait Show {
    /// The type of the entries.
    type Entry;

    /// The words for one entry and for several.
    const WORDS: (&'static str, &'static str);

    /// The table's headings; `>` is a column of numbers.
    const HEADINGS: &'static [&'static str];

    fn row(entry: &Self::Entry) -> Vec<String>;

    fn json(entry: &Self::Entry) -> Value;

    /// The bytes that an entry adds to the sum below the table.
    fn bytes(_: &Self::Entry) -> Option<u64> {
        None
    }
}

/// A list of one sidecar, with the request of a page.
pub(crate) trait List: Show {
    fn common(&self) -> &Common;

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<Self::Entry>;
}

/// The part of a list that is shown so far.
pub(crate) struct Shown<S: Show> {
    common: Common,
    /// The entries of the next table.
    rows: Vec<S::Entry>,
    total: u64,
    total_bytes: Option<u64>,
    /// Whether the list was cut at the limit.
    cut: bool,
}

impl<S: Show> Shown<S> {
    fn new(common: &Common) -> Shown<S> {
        Shown { common: common.clone(), rows: Vec::new(), total: 0, total_bytes: None, cut: false }
    }

    /// Shows more entries. Returns whether there may be others after them.
    fn add(&mut self, mut entries: Vec<S::Entry>) -> bool {
        let left = self.common.limit.map_or(u64::MAX, |limit| limit - self.total);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        self.cut |= entries.len() > left;
        entries.truncate(left);
        self.total += entries.len() as u64;
        for entry_bytes in entries.iter().filter_map(S::bytes) {
            self.total_bytes = Some(self.total_bytes.unwrap_or(0) + entry_bytes);
        }
        self.rows.extend(entries);
        if self.rows.len() >= self.common.page_size as usize {
            self.print();
        }
        self.total < self.common.limit.unwrap_or(u64::MAX)
    }

    fn print(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if self.common.json {
            rows.iter().for_each(|entry| transfer_terminal::outln!("{}", S::json(entry)));
        } else if !rows.is_empty() {
            let mut table = Table::new(S::HEADINGS);
            rows.iter().for_each(|entry| table.row(S::row(entry)));
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
            transfer_terminal::outln!(
                "{} {}{sum}{more}",
                count(self.total),
                if self.total == 1 { one } else { several }
            );
        }
    }
}

/// Requests page after page, and prints each as it comes.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`].
pub(crate) async fn run<L: List>(list: &L) -> Result<(), Error> {
    let mut shown = Shown::<L>::new(list.common());
    let are_more = pages(list, |entries| shown.add(entries)).await?;
    shown.cut |= are_more;
    shown.end();
    Ok(())
}

/// Requests page after page, as long as `each` says that it takes more. Returns whether there are more.
async fn pages<L: List>(list: &L, mut each: impl FnMut(Vec<L::Entry>) -> bool) -> Result<bool, Error> {
    let Common { target, .. } = list.common();
    let (mut admin, mut page_token) = (target.connect().await?, String::new());
    loop {
        let (entries, next) = list.page(&mut admin, page_token).await.map_err(|e| target.answered(e))?;
        page_token = next;
        if !each(entries) || page_token.is_empty() {
            return Ok(!page_token.is_empty());
        }
    }
}

/// Lists exchanges, at one node or over all nodes.
pub(crate) use exchanges::run as run_exchanges;

/// Lists tensors, at one node or over all nodes.
pub(crate) use tensors::run as run_tensors;

/// A number, or an empty text if it is 0.
fn some(n: u64) -> String {
    if n == 0 { String::new() } else { n.to_string() }
}

fn fabric_or_none(fabric: i32) -> String {
    if fabric == 0 { String::new() } else { fabric_name(fabric) }
}
