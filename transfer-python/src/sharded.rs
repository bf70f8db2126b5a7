//! Sharded states: pushes of a rank's shards, and fetches in any layout.

use crate::buffer::Buffer;
use crate::client::{Client, about_of};
use crate::fetch_options::FetchOptions;
use crate::fetches::{PartsAsked, described, made, read_parts};
use crate::memory::{Fetched, Ours};
use crate::options::{self, PushOptions};
use crate::pending::{Pending, going};
use crate::state_into::{self, Places, Target};
use crate::tensor::Tensor;
use crate::{errors, taken};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Instant;
use transfer_client::{
    BlockingClient, FetchSharded, FetchShardedInto, FetchedBundle, MemoryView, Rank, Shard, ShardedLayout,
};

/// The name of a shard's tensor, the shape of that, and where the shard begins in it.
pub(crate) type ShardPlace = (String, Vec<u64>, Vec<u64>);

/// The rank and the number of ranks, and whether to wait until the version is whole, and whether versions begin again.
pub(crate) type Commit = (u32, u32, bool, u64);

/// Pushes these buffers as a rank's shards of a version. `copied` bytes of them were copied there before. Either all buffers are
/// taken, or none. A failed push gives back those that nothing else can reach.
pub(crate) fn push(
    client: &Client,
    py: Python<'_>,
    (key, version): (&str, &Bound<'_, PyAny>),
    commit: Commit,
    (places, buffers): (Vec<ShardPlace>, Vec<Bound<'_, Buffer>>),
    (aliases, copied): (bool, u64),
    options: &Bound<'_, PyDict>,
) -> PyResult<Pending> {
    let (options, handle, version) =
        (PushOptions::read(options)?, client.handle(py)?, options::whole_version(version)?);
    // Before anything is taken.
    options::check_for_shards(&options, py)?;
    let frozen = taken::take_all(py, &buffers, aliases)?;
    let shard = |((name, shape, offset), tensor)| Shard::new(name, shape, offset, tensor);
    let shards: Vec<_> = places.into_iter().zip(&frozen).map(shard).collect();
    let (rank, world_size, until_whole, restart) = commit;
    let push = handle.push_shards(key, version, Rank { rank, world_size }, shards).restart(restart);
    let push = options::of_shards(push, &options);
    let push = if until_whole { push.whole() } else { push };
    let (about, buffers) = ((key.to_owned(), Instant::now()), buffers.into_iter().map(Bound::unbind));
    let mut taken = Ours::new(buffers.zip(frozen).collect::<Vec<_>>(), client.guard().clone());
    Ok(Pending::new(going(push.begin(), move |py, result| match result {
        Ok(pushed) => {
            let unproved = pushed.unproved;
            Ok(Py::new(py, crate::report::Pushed::new(py, pushed.pushed, copied)?.of_shards(unproved))?.into_any())
        }
        Err(e) => {
            taken::put_back(taken.take());
            Err(errors::raise(py, &e, &about_of(&about)))
        }
    })))
}

/// Makes a fetch of global tensors, or of slices of them, that begins with what of the manifest was fetched already.
fn asked(
    client: &Client,
    py: Python<'_>,
    key: &str,
    parts: Option<PartsAsked<'_>>,
    options: &Bound<'_, PyDict>,
    manifest: &[Bound<'_, Tensor>],
) -> PyResult<FetchSharded<BlockingClient>> {
    let which = FetchOptions::read(options)?;
    let mut fetch = which.borrow().apply_to_shards(py, client.handle(py)?.fetch_sharded(key))?;
    if let Some(ranks) = manifest.first() {
        let layouts = manifest.get(1).map(|layouts| layouts.get().whole());
        fetch = fetch.manifest(ranks.get().whole()?, layouts.transpose()?);
    }
    match parts {
        Some(parts) => Ok(fetch.slices(read_parts(parts)?)),
        None => Ok(fetch),
    }
}

/// Fetches global tensors of a sharded state, or these of them, whole or a slice of each: as `_fetch_bundle`. `manifest` is what of the
/// version's bundle was fetched already: nothing, its ranks, or these and the layouts.
pub(crate) fn fetch(
    client: &Client,
    py: Python<'_>,
    key: &str,
    parts: Option<PartsAsked<'_>>,
    options: &Bound<'_, PyDict>,
    manifest: &[Bound<'_, Tensor>],
) -> PyResult<Pending> {
    let fetch = asked(client, py, key, parts, options, manifest)?;
    let (about, guard) = ((key.to_owned(), Instant::now()), client.guard().clone());
    Ok(Pending::new(going(fetch.begin(), move |py, result| {
        let whole = |bundle: FetchedBundle| {
            let tensor =
                |(name, tensor): (&str, &transfer_client::Tensor)| (name.to_owned(), Fetched::Whole(tensor.clone()));
            (bundle.iter().map(tensor).collect(), bundle.version(), *bundle.report())
        };
        made(py, result.map(whole), &about, &guard)
    })))
}

/// Fetches the names, element types and shapes of the global tensors; of `manifest` see [`fetch`].
#[pyfunction]
#[pyo3(name = "_sharded_layout")]
pub(crate) fn layout(
    client: &Bound<'_, Client>,
    key: &str,
    options: &Bound<'_, PyDict>,
    manifest: Vec<Bound<'_, Tensor>>,
) -> PyResult<Pending> {
    let fetch = asked(client.get(), client.py(), key, None, options, &manifest)?;
    let about = (key.to_owned(), Instant::now());
    Ok(Pending::new(going(fetch.layout().begin(), move |py, result: Result<ShardedLayout, _>| {
        let layout = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        let tensors = layout.tensors.into_iter().map(|tensor| described(py, (tensor.name, tensor.meta)));
        Ok(tensors.collect::<PyResult<Vec<_>>>()?.into_pyobject(py)?.unbind())
    })))
}

/// Fetches global tensors, or slices of them, into parts of buffers: as `_fetch_bundle_into`.
pub(crate) fn fetch_into(
    client: &Client,
    py: Python<'_>,
    key: &str,
    parts: Option<PartsAsked<'_>>,
    into: Vec<Target<'_>>,
    options: &Bound<'_, PyDict>,
    manifest: &[Bound<'_, Tensor>],
) -> PyResult<Pending> {
    let fetch = asked(client, py, key, parts, options, manifest)?;
    let places = Places::take(py, into)?;
    Ok(Pending::new(state_into::begin(places, key, client.guard().clone(), |tensors, views| {
        let placed = |fetch: FetchShardedInto<BlockingClient>, (name, tensor, view): (String, String, MemoryView)| {
            fetch.at_view(&name, &tensor, view)
        };
        views.into_iter().fold(fetch.into(tensors), placed).begin()
    })))
}
