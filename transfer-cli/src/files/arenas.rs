//! Tensors that do not fit into one arena are spread over several, each of a worker of its own.

use super::Worker;
use super::error::FilesError;
use super::pieces::{self, PIECE_BYTES};
use super::plan::{From, Item, Role, arena_for, room_for};
use crate::error::Error;
use transfer_client::{Client, DType, Digest, Error as ClientError, Key, TensorMeta};
use transfer_memory::session::{RefusalCode, SessionError};

/// The smallest arena to ask for, in bytes.
const MIN_ARENA_BYTES: u64 = 64 << 10;

/// The most workers of one push.
const MAX_WORKERS: usize = 256;

/// One worker, and the tensors that it publishes.
pub(super) struct Share {
    pub(super) client: Client,
    pub(super) items: Vec<Item>,
}

/// Connects as one worker if the sidecar grants it an arena for everything. Otherwise it tries half of that size, a
/// quarter, and so on, and distributes the tensors over several workers with such arenas. The lists of pieces are the
/// last share, so they are published after the others.
pub(super) async fn connect(worker: &Worker, items: Vec<Item>, digest: Option<Digest>) -> Result<Vec<Share>, Error> {
    let wanted_bytes = arena_for(&items, digest);
    let (first, arena_bytes) = largest(worker, wanted_bytes).await?;
    if arena_bytes >= wanted_bytes {
        return Ok(vec![Share { client: first, items }]);
    }
    let (items, lists) = cut(items, arena_bytes, digest)?;
    let mut shares = Vec::new();
    let mut first = Some(first);
    let mut bins = spread(items, arena_bytes, digest);
    bins.extend((!lists.is_empty()).then_some(lists));
    if bins.len() > MAX_WORKERS {
        return Err(
            FilesError::TooMuch { wanted_bytes, arena_bytes: arena_bytes.saturating_mul(MAX_WORKERS as u64) }.into()
        );
    }
    for (i, items) in bins.into_iter().enumerate() {
        let client = match first.take() {
            Some(client) => client,
            None => worker.connect_as(&format!("-{}", i + 1), arena_for(&items, digest)).await?,
        };
        shares.push(Share { client, items });
    }
    Ok(shares)
}

/// A worker with the largest arena that the sidecar grants, and its size. A refusal costs nothing.
async fn largest(worker: &Worker, wanted_bytes: u64) -> Result<(Client, u64), Error> {
    let mut arena_bytes = wanted_bytes;
    loop {
        match worker.connect(arena_bytes).await {
            Ok(client) => return Ok((client, arena_bytes)),
            Err(error) if is_too_large(&error) && arena_bytes / 2 >= MIN_ARENA_BYTES => {
                arena_bytes = (arena_bytes / 2).next_multiple_of(4096);
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_too_large(error: &Error) -> bool {
    let Error::Connect { source: ClientError::Connect(SessionError::Refused(refusal)), .. } = error else {
        return false;
    };
    refusal.code == RefusalCode::ArenaTooLarge
}

/// Cuts tensors that fit into no arena. Returns the tensors to publish, and the lists of the pieces.
fn cut(items: Vec<Item>, arena_bytes: u64, digest: Option<Digest>) -> Result<(Vec<Item>, Vec<Item>), FilesError> {
    let beside = room_for(arena_bytes, digest).saturating_sub(arena_bytes);
    let piece_bytes = PIECE_BYTES.min(arena_bytes.saturating_sub(beside).max(1));
    let (mut all, mut lists) = (Vec::new(), Vec::new());
    for item in items {
        let len = item.meta.len_bytes();
        if room_for(len, digest) <= arena_bytes {
            all.push(item);
            continue;
        }
        let key = item.key.as_str();
        let From::File { input, offset } = &item.from else {
            let why = format!(
                "{key:?} is larger than an arena may be, and comes in pieces from a file only; write it to one first"
            );
            return Err(FilesError::Use(why));
        };
        let count = len.div_ceil(piece_bytes);
        let wrong = |why: String| FilesError::Name { path: input.path().to_owned(), why };
        if count > pieces::MAX_PIECES {
            return Err(wrong(format!("it would be {count} pieces, and {} are the most", pieces::MAX_PIECES)));
        }
        for piece in 0..count {
            let at = piece * piece_bytes;
            let bytes = piece_bytes.min(len - at);
            all.push(Item {
                key: Key::new(&pieces::key_of(key, piece)).map_err(|e| wrong(e.to_string()))?,
                meta: TensorMeta::of(DType::U8, &[bytes]).map_err(|e| wrong(e.to_string()))?,
                from: From::File { input: input.clone(), offset: offset + at },
                role: Role::Piece,
            });
        }
        let (key, of) = (item.key.clone(), item.meta.clone());
        let meta = pieces::list_of(count).map_err(|e| wrong(e.to_string()))?;
        lists.push(Item { key, meta, from: From::Pieces { of: Box::new(of), count }, role: Role::List });
    }
    Ok((all, lists))
}

/// Distributes tensors in order over arenas of that size.
fn spread(items: Vec<Item>, arena_bytes: u64, digest: Option<Digest>) -> Vec<Vec<Item>> {
    let mut bins: Vec<(u64, Vec<Item>)> = Vec::new();
    for item in items {
        let len = room_for(item.meta.len_bytes(), digest);
        match bins.last_mut().filter(|(used, _)| used.saturating_add(len) <= arena_bytes) {
            Some((used, bin)) => {
                *used += len;
                bin.push(item);
            }
            None => bins.push((len, vec![item])),
        }
    }
    bins.into_iter().map(|(_, items)| items).collect()
}
