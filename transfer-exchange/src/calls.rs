//! The calls that an exchange makes of a client, and what their failures say.

use crate::error::Error;
use crate::record::Record;
use std::time::Duration;
use transfer_client::flow::{FlowRequest, Io};
use transfer_client::{BlockingClient, DType, FailureCode, FetchedExcerpt, Key, Life, Push, Spill};
use transfer_core::tensor::Excerpt;

/// A call of an exchange that returns a `T`: `.await` it, or `.call()` it on a [`BlockingClient`].
pub type ExchangeCall<C, T> = FlowRequest<C, Result<T, Error>>;

/// The time after which what nobody publishes counts as lost. A directory that starts anew knows all keys again within
/// less.
pub(super) const ABSENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which the word of a task, or a key, is looked at again.
pub(super) const REREAD_INTERVAL: Duration = Duration::from_millis(100);

/// Fetches a part of the newest version of a key.
pub(super) async fn fetch_part(
    io: &Io,
    key: Key,
    excerpt: Excerpt,
    timeout: Duration,
) -> Result<FetchedExcerpt, Error> {
    Ok(io.run(io.client().fetch_excerpt(key, excerpt).timeout(timeout)).await?)
}

/// Fetches the note of a task: the number of the attempt that has committed.
pub(super) async fn fetch_note(io: &Io, key: Key, timeout: Duration) -> Result<Option<u32>, Error> {
    let tensor = io.run(io.client().fetch(key).timeout(timeout)).await?;
    Ok(tensor.as_bytes().try_into().ok().map(u32::from_le_bytes))
}

/// Fetches the record of an exchange.
pub(super) async fn fetch_record(io: &Io, key: Key, name: &str, timeout: Duration) -> Result<Record, Error> {
    let tensor = io.run(io.client().fetch(key).timeout(timeout)).await?;
    // A copy, so that it cannot change after the check.
    let bytes = tensor.as_bytes().to_vec();
    Ok(Record::read(name, &bytes)?)
}

/// Whether a fetch was too slow, of a version that is there.
pub(super) fn is_slow(error: &Error) -> bool {
    matches!(error.failure_code(), Some(FailureCode::Deadline | FailureCode::PoolFull))
}

/// What a failed fetch says about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// Nobody has published it, or it was deleted.
    Certain,
    /// Its node is lost, or was asked in vain. It may have come back.
    Perhaps,
}

/// `None` if the failure says nothing about it.
pub(super) fn absence(error: &Error) -> Option<Absence> {
    match error.failure_code()? {
        FailureCode::UnknownKey | FailureCode::VersionGone => Some(Absence::Certain),
        FailureCode::PeerLost | FailureCode::PeerUnreachable | FailureCode::NotOwner | FailureCode::ShuttingDown => {
            Some(Absence::Perhaps)
        }
        _ => None,
    }
}

/// How a key is published.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    /// As version 1 of a key that nobody has.
    New(Life),
    /// As version 1 of a key that nobody has. It stays with its parent, and may be written to disk.
    Rows(Spill),
    /// Takes the key over from its owner, if it has one. The version stays with its parent.
    TakenOver,
}

/// Publishes bytes.
pub(super) async fn push_bytes(io: &Io, key: Key, bytes: &[u8], how: How) -> Result<(), Error> {
    push(io, io.client().push_bytes(key, DType::U8, [bytes.len() as u64], bytes), how).await
}

/// Makes a push.
pub(super) async fn push(io: &Io, push: Push<'_, BlockingClient>, how: How) -> Result<(), Error> {
    let push = push.timeout(io.left(io.timeout()));
    let push = match how {
        How::New(life) => push.version(1).life(life),
        How::Rows(spill) => push.version(1).life(Life::Parent).spill(spill),
        How::TakenOver => push.takeover().life(Life::Parent),
    };
    io.run(push).await?;
    Ok(())
}

/// Deletes keys of this process. What cannot be deleted is gone already, or ends with the session.
pub(super) async fn delete(io: &Io, exchange: &str, keys: Vec<Key>) {
    let ended = io.all(keys, |key| io.run(io.client().delete(key).timeout(ABSENCE_TIMEOUT))).await;
    for failed in ended.into_iter().filter_map(Result::err) {
        tracing::debug!(exchange, "not deleted: {failed}");
    }
}
