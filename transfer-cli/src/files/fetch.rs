//! `transferctl fetch`: tensors become files.

use super::digest::Digests;
use super::fetch_options::{Options, Shape};
use super::fetching::Fetching;
use super::story::Story;
use super::{FilesError, interruption, keys, slicing};
use crate::admin::cluster::NodesAsked;
use crate::error::Error;

/// Fetches, writes, and reports: on the standard error if the elements go to the standard output.
///
/// # Errors
/// [`Error::Files`], [`Error::Connect`], [`Error::Call`]; with --prefix also [`Error::Unreachable`], [`Error::Admin`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let shape = options.shape()?;
    if options.verify && shape == Shape::Stdout {
        let why = "--verify reads again what was written, and the standard output cannot be";
        return Err(FilesError::Use(why.to_owned()).into());
    }
    let digests = options.check_digests.as_deref().map(Digests::read).transpose()?;
    let interrupted = interruption().map_err(|source| Error::Runtime { source })?;
    let fetch = async {
        if !options.slices.is_empty() {
            return slicing::run(options, shape).await;
        }
        let (wanted, asked) = keys::wanted(options).await?;
        let asked = match shape {
            // A safetensors file has all tensors, or is not written.
            Shape::Safetensors => {
                asked.complete()?;
                NodesAsked::default()
            }
            _ => asked,
        };
        let known: Option<u64> =
            wanted.iter().map(|one| one.listed.as_ref().map(|listed| listed.meta.len_bytes())).sum();
        // It only reads, so it needs no arena.
        let client = options.worker.connect(0).await?;
        let mut story = Story::new("fetched", wanted.len(), known, &options.verbosity, shape == Shape::Stdout);
        let fetching = Fetching::new(client, options, shape, digests, story.progress());
        fetching.all(wanted, &mut story).await?;
        story.end(shape == Shape::Safetensors)?;
        asked.complete()
    };
    tokio::select! {
        done = fetch => done,
        // Unfinished files have no name yet, and vanish.
        () = interrupted => Err(FilesError::Interrupted.into()),
    }
}
