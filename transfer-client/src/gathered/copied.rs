//! Buffers that are copied into the arena. A long one gets an allocation of its own, and neighbours that are short share
//! one: with 100,000 of them, allocations would take longer than their bytes.

use super::{ALIGNMENT, Piece, Pieces};
use crate::error::Error;
use crate::session::{Session, SharedRange};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::task::Waker;
use transfer_memory::arena::Block;

/// A buffer from this length on has an allocation of its own. Bytes.
const OWN_ALLOCATION_BYTES: usize = 64 << 10;

/// The most bytes that short buffers share.
const SHARED_ALLOCATION_BYTES: usize = 1 << 20;

/// From this length on several threads copy one buffer.
pub(crate) const LONG_BYTES: u64 = 2 * MIN_BYTES_PER_THREAD;

/// Below this many bytes for each thread, starting one costs more than it saves.
const MIN_BYTES_PER_THREAD: u64 = 2 << 20;

/// Copies the buffers that do not lie in the arena into it. `false` if there is no room now; the buffers that were
/// copied stay copied. The buffers of a shared allocation are one buffer then.
pub(crate) fn copy_buffers(
    session: &Session,
    pieces: &mut Pieces<'_>,
    waker: &Waker,
    last_try: bool,
) -> Result<bool, Error> {
    let lies =
        |piece: &Piece<'_>| SharedRange::find_anywhere(session.arena(), piece.as_ptr(), piece.len() as u64).is_some();
    let mut found = Vec::new();
    let mut rest = std::mem::take(&mut pieces.buffers).into_iter().peekable();
    while let Some(piece) = rest.next() {
        if lies(&piece) {
            found.push(Found::There(piece));
            continue;
        }
        let mut len = piece.len();
        let mut run = vec![piece];
        while len < OWN_ALLOCATION_BYTES
            && let Some(next) = rest.next_if(|next| {
                next.len() < OWN_ALLOCATION_BYTES && end(len, next.len()) <= SHARED_ALLOCATION_BYTES && !lies(next)
            })
        {
            len = end(len, next.len());
            run.push(next);
        }
        let Some(block) = session.allocate_or_wait(len as u64, waker, last_try)? else {
            pieces.buffers = copy_all(found, &mut pieces.copied).into_iter().chain(run).chain(rest).collect();
            return Ok(false);
        };
        found.push(Found::Copied(block, run));
    }
    pieces.buffers = copy_all(found, &mut pieces.copied);
    Ok(true)
}

/// A buffer.
enum Found<'a> {
    /// It lies in the arena.
    There(Piece<'a>),
    /// These are copied to this allocation, and are one buffer then.
    Copied(Block, Vec<Piece<'a>>),
}

/// Copies the buffers that are to be copied, and counts their bytes. A long one is copied by several threads, and each of the others by one.
fn copy_all<'a>(mut found: Vec<Found<'a>>, copied: &mut u64) -> Vec<Piece<'a>> {
    let (mut long, mut short, mut short_bytes) = (Vec::new(), Vec::new(), 0);
    for one in &mut found {
        if let Found::Copied(block, run) = one {
            let bytes = run.iter().map(|piece| piece.len() as u64).sum::<u64>();
            *copied += bytes;
            if bytes >= LONG_BYTES {
                long.push((block, run));
            } else {
                short.push((block, run));
                short_bytes += bytes;
            }
        }
    }
    long.into_iter().for_each(|(block, run)| copy_in(block, run));
    on_threads(short_bytes, short.into_iter(), |(block, run)| copy_in(block, run));
    let piece = |found| match found {
        Found::There(piece) => piece,
        Found::Copied(block, _) => Piece::Shared(block.freeze().to_arrow_buffer()),
    };
    found.into_iter().map(piece).collect()
}

/// The end of a buffer that follows `before` bytes.
fn end(before: usize, len: usize) -> usize {
    before.next_multiple_of(ALIGNMENT) + len
}

/// Copies buffers into a block that is as long as they are, each followed by zeros up to a multiple of 64.
fn copy_in(block: &mut Block, run: &[Piece<'_>]) {
    if let [piece] = run {
        // Cannot fail: the block is as long as the buffer.
        let _ = block.copy_in_parallel(0, piece, copy_threads());
        return;
    }
    let mut to = block.as_bytes_mut();
    for piece in run {
        let (bytes, rest) = to.split_at_mut(piece.len());
        bytes.copy_from_slice(piece);
        let (zeros, rest) = rest.split_at_mut(rest.len().min(piece.len().next_multiple_of(ALIGNMENT) - piece.len()));
        zeros.fill(0);
        to = rest;
    }
}

/// Does this with each of the items, which have so many bytes together: on this thread, and on others where they are many. Each thread takes
/// the next one.
pub(crate) fn on_threads<T>(bytes: u64, items: impl ExactSizeIterator<Item = T> + Send, each: impl Fn(T) + Sync) {
    let threads = (bytes / MIN_BYTES_PER_THREAD).min(copy_threads() as u64).min(items.len() as u64);
    let items = Mutex::new(items);
    let next = || items.lock().next();
    let work = || {
        while let Some(item) = next() {
            each(item);
        }
    };
    if threads < 2 {
        return work();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be started, this one does all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// The number of threads that copy a large array. It is computed once, because the system reads files to answer.
pub(crate) fn copy_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
