//! The tensors of a fetch: those that the command line names, or those that the sidecars list.

use super::error::FilesError;
use super::fetch_options::Options;
use super::pieces;
use crate::admin::cluster::{self, NodesAsked};
use crate::error::Error;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use transfer_client::{DType, TensorMeta};
use transfer_proto::v1::{Tensor, TensorsRequest};

/// A tensor to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) key: String,
    /// Its listed version and description; `None` if it was not listed.
    pub(super) listed: Option<Listed>,
}

/// A listed version and description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) version: u64,
    pub(super) meta: TensorMeta,
}

/// All tensors of the command line; and for a list, whether it covers all nodes.
pub(super) async fn wanted(options: &Options) -> Result<(Vec<Wanted>, NodesAsked), Error> {
    let named = |key: &String| Wanted { key: key.clone(), listed: None };
    let mut wanted: Vec<_> = options.key.iter().chain(&options.keys).map(named).collect();
    if let Some(path) = &options.keys_from {
        wanted.extend(read(path)?.iter().map(named));
    }
    match (&options.prefix, wanted.is_empty()) {
        (Some(prefix), true) => list(options, prefix).await,
        (None, true) => Err(FilesError::Use("there is no key to fetch".to_owned()).into()),
        _ => Ok((wanted, NodesAsked::default())),
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

/// The tensors below a prefix that are published: at all nodes of the cluster, or at that of --admin.
async fn list(options: &Options, prefix: &str) -> Result<(Vec<Wanted>, NodesAsked), Error> {
    let below = match prefix {
        "" => String::new(),
        prefix => format!("{}/", prefix.trim_end_matches('/')),
    };
    let request = TensorsRequest { prefix: below.clone(), page_size: 1000, ..TensorsRequest::default() };
    let mut found = Found::default();
    let asked = cluster::list(&options.target, request, !options.one_node, |_, page: Vec<Tensor>| {
        page.into_iter().for_each(|tensor| found.add(listed(tensor)));
        ControlFlow::Continue(())
    })
    .await?;
    if found.wanted.is_empty() {
        // The missing nodes may have some.
        asked.complete()?;
        let at = match options.one_node {
            true => format!("at the sidecar {}", options.target.admin),
            false => format!("at any node of the cluster of the sidecar {}", options.target.admin),
        };
        return Err(FilesError::Nothing(format!("no key begins with {below:?} {at}")).into());
    }
    Ok((found.wanted, asked))
}

/// The listed tensors, each key once. A key that moves meanwhile is listed by two nodes.
#[derive(Debug, Default)]
struct Found {
    wanted: Vec<Wanted>,
    places: HashMap<String, usize>,
}

impl Found {
    fn add(&mut self, wanted: Wanted) {
        // Pieces are fetched together with their tensor.
        if pieces::is_piece(&wanted.key) {
            return;
        }
        match self.places.get(&wanted.key) {
            Some(place) => {
                let known = &mut self.wanted[*place];
                let version = |wanted: &Wanted| wanted.listed.as_ref().map(|listed| listed.version);
                if version(&wanted) > version(known) {
                    *known = wanted;
                }
            }
            None => {
                self.places.insert(wanted.key.clone(), self.wanted.len());
                self.wanted.push(wanted);
            }
        }
    }
}

fn listed(tensor: Tensor) -> Wanted {
    let Tensor { key, version, tensor, .. } = tensor;
    let meta = tensor.and_then(|tensor| {
        let dtype = DType::from_wire(u8::try_from(tensor.dtype).ok()?)?;
        TensorMeta::of(dtype, &tensor.shape).ok()
    });
    // A tensor whose description this program does not know is fetched without one.
    Wanted { key, listed: meta.map(|meta| Listed { version, meta }) }
}
