//! The layouts of ranks: those that are known, and the records of the others.

use super::known::{KnownLayout, KnownShards};
use super::records::{LAYOUTS, RECORD, read_layouts, read_record, shards_key, table};
use super::roster::{Manifest, is_late};
use crate::bundle::{FetchedBundle, take_bundle};
use crate::error::{Error, LostRank, ShardedError};
use crate::fetch::{Fetch, FetchOptions};
use crate::request::BlockingClient;
use crate::request::flow::Io;
use crate::session::Connection;
use std::sync::Arc;
use std::time::Duration;
use transfer_core::op::{CommittedRank, FailureCode};
use transfer_core::tensor::{Key, Select, Version};

/// What nobody publishes for this time is gone. A directory that starts anew knows all keys again within less.
pub(super) const ABSENT: Duration = Duration::from_secs(5);

/// The error for a rank whose shards are not there.
pub(super) fn gone(key: &Key, version: u64, rank: &CommittedRank, (name, range): (&str, String), why: &Error) -> Error {
    let lost = LostRank {
        key: key.as_str().to_owned(),
        version,
        rank: rank.rank,
        node: rank.node.as_str().to_owned(),
        name: name.to_owned(),
        range,
        why: why.to_string(),
    };
    ShardedError::from(Box::new(lost)).into()
}

/// Whether a rank's shards are not there.
pub(super) fn is_absent(error: &Error) -> bool {
    use FailureCode::{NotOwner, PeerLost, PeerUnreachable, VersionGone};
    is_late(error)
        || error.failure_code().is_some_and(|code| matches!(code, NotOwner | PeerLost | PeerUnreachable | VersionGone))
}

/// The layouts of a version that is complete, from the ranks themselves.
pub(super) async fn of_ranks(
    io: &Io,
    connection: &Arc<Connection>,
    key: &Key,
    version: u64,
    ranks: &[CommittedRank],
) -> Result<Vec<KnownLayout>, Error> {
    let known = async |rank: &CommittedRank| {
        if let Some(known) = KnownShards::of(connection).lock().layout(key, rank.layout) {
            return Ok(known);
        }
        let shards = shards_key(key, rank.rank, rank.instance)?;
        let fetched = fetch_record(io, shards, version, RECORD, ABSENT).await;
        let bytes = match fetched {
            Err(e) if is_absent(&e) && !io.left(Duration::MAX).is_zero() => {
                return Err(gone(key, version, rank, (RECORD, "all".to_owned()), &e));
            }
            bytes => bytes?,
        };
        know(connection, key, rank, bytes)
    };
    io.all(ranks, known).await.into_iter().collect()
}

/// The layouts of a version that is whole, from its manifest.
pub(super) async fn of_manifest(
    io: &Io,
    connection: &Arc<Connection>,
    key: &Key,
    manifest: &Manifest,
) -> Result<Vec<KnownLayout>, Error> {
    let ranks = &manifest.ranks;
    let mut known: Vec<_> =
        ranks.iter().map(|rank| KnownShards::of(connection).lock().layout(key, rank.layout)).collect();
    if known.iter().any(Option::is_none) {
        let bytes = match &manifest.layouts {
            // A copy, so that it cannot change after the check.
            Some(layouts) => layouts.as_bytes().to_vec(),
            None => fetch_record(io, key.clone(), manifest.version, LAYOUTS, Duration::MAX).await?,
        };
        let records = read_layouts(key, &bytes, ranks.len())?;
        for ((known, rank), record) in known.iter_mut().zip(ranks).zip(records) {
            if known.is_none() {
                *known = Some(know(connection, key, rank, record.to_vec())?);
            }
        }
    }
    Ok(known.into_iter().flatten().collect())
}

/// Checks the record of a rank, and remembers it.
fn know(connection: &Arc<Connection>, key: &Key, rank: &CommittedRank, bytes: Vec<u8>) -> Result<KnownLayout, Error> {
    let layout = read_record(key, rank.rank, &bytes)?;
    if layout.digest != rank.layout {
        let (key, why) = (key.as_str().to_owned(), "it is another one than that which was committed");
        return Err(ShardedError::InvalidRecord { key, rank: rank.rank, why }.into());
    }
    let table = Arc::new(table(&layout, &bytes)?);
    let known = KnownLayout { table, layout: Arc::new(layout), record: bytes.into() };
    KnownShards::of(connection).lock().know_layout(key, known.clone());
    Ok(known)
}

/// Fetches a record of a version.
pub(super) async fn fetch_record(
    io: &Io,
    key: Key,
    version: u64,
    name: &str,
    at_most: Duration,
) -> Result<Vec<u8>, Error> {
    let (select, timeout) = (Select::Exactly(Version(version)), io.left(at_most));
    let options = FetchOptions { select, timeout, ..FetchOptions::new() };
    let fetch = Fetch::<BlockingClient, FetchedBundle>::new(io.session(), Ok(key), take_bundle).with(options);
    let bundle = io.run(fetch.only([name])).await?;
    // A copy, so that it cannot change after the check.
    Ok(bundle.get(name).map(|record| record.as_bytes().to_vec()).unwrap_or_default())
}
