//! `transferctl tensors`.

use super::{Target, dtype_name, tensor_name};
use crate::error::Error;
use crate::table::Table;
use crate::units::{bytes, count};
use serde_json::{Value, json};
use transfer_proto::v1::{Tensor, TensorsRequest};

/// What `transferctl tensors` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which sidecar.
    #[command(flatten)]
    pub target: Target,
    /// Only keys that start so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// How many to ask for at once
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub page_size: u32,
    /// One JSON object per line; sizes in bytes
    #[arg(long)]
    pub json: bool,
}

/// Asks for page after page, and prints each as it comes.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let mut admin = options.target.connect().await?;
    let (mut page_token, mut total, mut total_bytes) = (String::new(), 0u64, 0u64);
    loop {
        let request = TensorsRequest { prefix: options.prefix.clone(), page_size: options.page_size, page_token };
        let page = admin.tensors(request).await.map_err(|e| options.target.answered(e))?.into_inner();
        total += page.tensors.len() as u64;
        total_bytes += page.tensors.iter().map(|t| t.len_bytes).sum::<u64>();
        if options.json {
            page.tensors.iter().for_each(|tensor| crate::output::outln!("{}", as_json(tensor)));
        } else if !page.tensors.is_empty() {
            crate::output::out!("{}", as_table(&page.tensors));
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if !options.json {
        crate::output::outln!("{} tensors, {}", count(total), bytes(total_bytes));
    }
    Ok(())
}

fn as_table(tensors: &[Tensor]) -> Table {
    let mut table = Table::new(&[
        "key", "owner", ">version", "tensor", ">size", ">readers", ">older", "stays", ">segment", ">offset",
    ]);
    for t in tensors {
        table.row([
            t.key.clone(),
            t.owner.clone(),
            t.version.to_string(),
            tensor_name(t.tensor.as_ref()),
            bytes(t.len_bytes),
            count(u64::from(t.readers)),
            count(u64::from(t.older)),
            t.retention.clone(),
            t.segment.to_string(),
            t.offset.to_string(),
        ]);
    }
    table
}

fn as_json(tensor: &Tensor) -> Value {
    let meta = tensor.tensor.clone().unwrap_or_default();
    json!({
        "key": tensor.key, "owner": tensor.owner, "version": tensor.version, "dtype": dtype_name(meta.dtype),
        "shape": meta.shape, "len_bytes": tensor.len_bytes, "readers": tensor.readers, "segment": tensor.segment,
        "offset": tensor.offset, "retention": tensor.retention, "older": tensor.older,
    })
}
