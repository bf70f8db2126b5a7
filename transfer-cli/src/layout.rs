//! `transferctl layout`: who holds what of a sharded state.

use crate::error::Error;
use crate::files::Worker;
use serde_json::{Value, json};
use std::time::Duration;
use transfer_client::{DType, GlobalLayout, HeldBox, ShardedLayout};
use transfer_terminal::outln;
use transfer_terminal::table::Table;
use transfer_terminal::units::{self, bytes, counted};

/// The most ranks of a box that a line names.
const MAX_RANKS: usize = 6;

/// The options of `transferctl layout`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The key of the state
    pub key: String,
    /// Only tensors whose names begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Show this many boxes at most; JSON has all
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// How long to wait for a version that is whole
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration)]
    pub timeout: Duration,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The sidecar.
    #[command(flatten)]
    pub worker: Worker,
}

/// Fetches the layout of the newest version, and prints it.
///
/// # Errors
/// [`Error::Connect`], [`Error::Call`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let client = options.worker.connect(0).await?;
    let layout = client.sharded_layout(&options.key).timeout(options.timeout).await;
    let mut layout =
        layout.map_err(|source| Error::Call { what: "fetch the layout of", key: options.key.clone(), source })?;
    layout.tensors.retain(|tensor| tensor.name.starts_with(&options.prefix));
    match options.json {
        true => outln!("{}", to_json(&options.key, &layout)),
        false => outln!("{}", text(&options.key, &layout, options.limit as usize)),
    }
    Ok(())
}

fn text(key: &str, layout: &ShardedLayout, limit: usize) -> String {
    let mut nodes: Vec<_> = layout.nodes.iter().collect();
    nodes.sort_unstable();
    nodes.dedup();
    let count = |n: usize, one, several| counted(n as u64, one, several);
    let mut table = Table::new(&["tensor", "global", "box", ">size", "held by"]);
    let boxes = layout.tensors.iter().flat_map(|tensor| {
        let is_first = (0..tensor.boxes.len()).map(|n| n == 0);
        is_first.zip(&tensor.boxes).map(move |(is_first, held)| (is_first, tensor, held))
    });
    let total = boxes.clone().count();
    for (n, (is_first, tensor, held)) in boxes.take(limit).enumerate() {
        // The name of a tensor stands at its first box.
        let (name, meta) = match is_first || n == 0 {
            true => (tensor.name.clone(), tensor.meta.to_string()),
            false => (String::new(), String::new()),
        };
        table.row([name, meta, range(held), bytes(len_bytes(tensor.meta.dtype(), held)), holders(layout, held)]);
    }
    let more = match total.saturating_sub(limit) {
        0 => String::new(),
        more => format!("\nand {} more: --limit shows more, --prefix fewer", count(more, "box", "boxes")),
    };
    let unproved = match layout.unproved {
        0 => String::new(),
        n => format!(
            "\n{n} of the shards in boxes of several ranks were compared with no other one: digest() at the push of each rank proves them"
        ),
    };
    format!(
        "{key:?}, version {}: {}, {} at {}\n{table}{more}{unproved}",
        layout.version,
        count(layout.tensors.len(), "tensor", "tensors"),
        count(layout.nodes.len(), "rank", "ranks"),
        count(nodes.len(), "node", "nodes"),
    )
}

/// As numpy writes it.
fn range(held: &HeldBox) -> String {
    let dims: Vec<_> = held.offset.iter().zip(&held.shape).map(|(at, len)| format!("{at}:{}", at + len)).collect();
    format!("[{}]", dims.join(", "))
}

fn len_bytes(dtype: DType, held: &HeldBox) -> u64 {
    held.shape.iter().product::<u64>() / dtype.elements_per_unit() * dtype.size_bytes()
}

fn holders(layout: &ShardedLayout, held: &HeldBox) -> String {
    let node = |rank: &u32| layout.nodes.get(*rank as usize).map_or("?", String::as_str);
    let named: Vec<_> = held.ranks.iter().take(MAX_RANKS).map(|rank| format!("{rank} at {}", node(rank))).collect();
    match held.ranks.len().saturating_sub(MAX_RANKS) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn to_json(key: &str, layout: &ShardedLayout) -> Value {
    let held = |held: &HeldBox| json!({ "offset": held.offset, "shape": held.shape, "ranks": held.ranks });
    let tensor = |tensor: &GlobalLayout| {
        let boxes: Vec<_> = tensor.boxes.iter().map(held).collect();
        let (dtype, shape) = (tensor.meta.dtype().name(), tensor.meta.shape().dims());
        json!({ "name": tensor.name, "dtype": dtype, "shape": shape, "boxes": boxes })
    };
    let tensors: Vec<_> = layout.tensors.iter().map(tensor).collect();
    json!({
        "key": key, "version": layout.version, "nodes": layout.nodes, "unproved": layout.unproved, "tensors": tensors,
    })
}
