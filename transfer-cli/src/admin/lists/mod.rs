//! The listings. Each is a call, a row of a table and an object of JSON, in a file of its own. Pages are asked for one after the other,
//! and printed as they come.

mod links;
mod peers;
mod quarantine;
mod segments;
mod sessions;
mod tensors;
#[cfg(test)]
mod tests;
mod transfers;

pub use links::Links;
pub use peers::Peers;
pub use quarantine::Quarantine;
pub use segments::{SegmentKind, Segments};
pub use sessions::Sessions;
pub use tensors::Tensors;
pub use transfers::Transfers;

use super::{Target, fabric_name};
use crate::error::Error;
use crate::table::Table;
use crate::units::{bytes, count};
use serde_json::Value;
use tonic::transport::Channel;
use transfer_proto::v1::admin_client::AdminClient;

/// What every listing may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Which sidecar.
    #[command(flatten)]
    pub target: Target,
    /// How many to ask for at once
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub page_size: u32,
    /// Stop after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// One JSON object per line: sizes in bytes, times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

/// What one page brought.
type Answer<T> = Result<(Vec<T>, String), tonic::Status>;

/// A listing: how a page is asked for, and how an entry is shown.
pub(crate) trait List {
    /// What is listed.
    type Entry;

    /// One of them and several, in words.
    const WORDS: (&'static str, &'static str);

    /// The table's headings; `>` is a column of numbers.
    const HEADINGS: &'static [&'static str];

    fn common(&self) -> &Common;

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<Self::Entry>;

    fn row(entry: &Self::Entry) -> Vec<String>;

    fn json(entry: &Self::Entry) -> Value;

    /// What an entry adds to the sum below the table.
    fn bytes(_: &Self::Entry) -> Option<u64> {
        None
    }
}

/// Asks for page after page, and prints each as it comes.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`].
pub(crate) async fn run<L: List>(list: &L) -> Result<(), Error> {
    let Common { target, limit, json, .. } = list.common();
    let mut admin = target.connect().await?;
    let (mut page_token, mut total, mut total_bytes, mut cut) = (String::new(), 0u64, None, false);
    loop {
        let (mut entries, next) = list.page(&mut admin, page_token).await.map_err(|e| target.answered(e))?;
        let left = usize::try_from(limit.map_or(u64::MAX, |limit| limit - total)).unwrap_or(usize::MAX);
        cut |= entries.len() > left;
        entries.truncate(left);
        total += entries.len() as u64;
        for entry_bytes in entries.iter().filter_map(L::bytes) {
            total_bytes = Some(total_bytes.unwrap_or(0) + entry_bytes);
        }
        if *json {
            entries.iter().for_each(|entry| crate::output::outln!("{}", L::json(entry)));
        } else if !entries.is_empty() {
            let mut table = Table::new(L::HEADINGS);
            entries.iter().for_each(|entry| table.row(L::row(entry)));
            crate::output::out!("{table}");
        }
        page_token = next;
        if page_token.is_empty() || total >= limit.unwrap_or(u64::MAX) {
            break;
        }
    }
    if !json {
        let (one, several) = L::WORDS;
        let sum = total_bytes.map(|n| format!(", {}", bytes(n))).unwrap_or_default();
        let more = if page_token.is_empty() && !cut { "" } else { "; there are more" };
        crate::output::outln!("{} {}{sum}{more}", count(total), if total == 1 { one } else { several });
    }
    Ok(())
}

/// A number that is nothing where it is 0.
fn some(n: u64) -> String {
    if n == 0 { String::new() } else { n.to_string() }
}

fn fabric_or_none(fabric: i32) -> String {
    if fabric == 0 { String::new() } else { fabric_name(fabric) }
}
