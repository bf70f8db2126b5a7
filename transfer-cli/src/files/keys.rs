//! Which tensors a fetch fetches: those that the command line names, or those that a sidecar lists.

use super::error::FilesError;
use super::fetch::Options;
use crate::error::Error;
use std::path::Path;
use transfer_client::{DType, TensorMeta};
use transfer_proto::v1::{Tensor, TensorsRequest};

/// One tensor to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) key: String,
    /// What it was when it was listed; `None` where nobody has listed it.
    pub(super) listed: Option<Listed>,
}

/// What a list says of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) version: u64,
    pub(super) meta: TensorMeta,
}

/// All that the command line asks for.
pub(super) async fn wanted(options: &Options) -> Result<Vec<Wanted>, Error> {
    let named = |key: &String| Wanted { key: key.clone(), listed: None };
    let mut wanted: Vec<_> = options.key.iter().chain(&options.keys).map(named).collect();
    if let Some(path) = &options.keys_from {
        wanted.extend(read(path)?.iter().map(named));
    }
    match (&options.prefix, wanted.is_empty()) {
        (Some(prefix), true) => list(options, prefix).await,
        (None, true) => Err(FilesError::Use("there is no key to fetch".to_owned()).into()),
        _ => Ok(wanted),
    }
}

/// A file of keys, one on each line.
fn read(path: &Path) -> Result<Vec<String>, FilesError> {
    let text = std::fs::read_to_string(path).map_err(|source| FilesError::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let keys: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    match keys.is_empty() {
        true => Err(FilesError::Nothing(format!("{} has no key in it", path.display()))),
        false => Ok(keys),
    }
}

/// Those below a prefix that are published at the sidecar of --admin, page by page.
async fn list(options: &Options, prefix: &str) -> Result<Vec<Wanted>, Error> {
    let below = match prefix {
        "" => String::new(),
        prefix => format!("{}/", prefix.trim_end_matches('/')),
    };
    let mut admin = options.target.connect().await?;
    let (mut wanted, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = TensorsRequest { prefix: below.clone(), owner: String::new(), page_size: 1000, page_token };
        let page = admin.tensors(request).await.map_err(|e| options.target.answered(e))?.into_inner();
        wanted.extend(page.tensors.into_iter().map(listed));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match wanted.is_empty() {
        false => Ok(wanted),
        true => {
            let at = &options.target.admin;
            Err(FilesError::Nothing(format!("no key begins with {below:?} at the sidecar {at}")).into())
        }
    }
}

fn listed(tensor: Tensor) -> Wanted {
    let Tensor { key, version, tensor, .. } = tensor;
    let meta = tensor.and_then(|tensor| {
        let dtype = DType::from_wire(u8::try_from(tensor.dtype).ok()?)?;
        TensorMeta::of(dtype, &tensor.shape).ok()
    });
    // What this program does not know it hears with the fetch.
    Wanted { key, listed: meta.map(|meta| Listed { version, meta }) }
}
