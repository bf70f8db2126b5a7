//! Buffers that are copied into the arena. A long one gets an allocation of its own, and neighbours that are short share
//! one: with 100,000 of them, allocations would take longer than their bytes.

use super::{ALIGNMENT, Piece, Pieces};
use crate::error::Error;
use crate::session::{Session, SharedRange};
use std::sync::OnceLock;
use std::task::Waker;
use transfer_memory::arena::Block;

/// A buffer from this length on has an allocation of its own. Bytes.
const OWN_ALLOCATION_BYTES: usize = 64 << 10;

/// The most bytes that short buffers share.
const SHARED_ALLOCATION_BYTES: usize = 1 << 20;

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
    let mut there = Vec::new();
    let mut rest = std::mem::take(&mut pieces.buffers).into_iter().peekable();
    while let Some(piece) = rest.next() {
        if lies(&piece) {
            there.push(piece);
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
            pieces.buffers = there.into_iter().chain(run).chain(rest).collect();
            return Ok(false);
        };
        pieces.copied += run.iter().map(|piece| piece.len() as u64).sum::<u64>();
        there.push(Piece::Shared(copy_in(block, &run).freeze().to_arrow_buffer()));
    }
    pieces.buffers = there;
    Ok(true)
}

/// The end of a buffer that follows `before` bytes.
fn end(before: usize, len: usize) -> usize {
    before.next_multiple_of(ALIGNMENT) + len
}

/// Copies buffers into a block that is as long as they are, each followed by zeros up to a multiple of 64.
fn copy_in(mut block: Block, run: &[Piece<'_>]) -> Block {
    if let [piece] = run {
        // Cannot fail: the block is as long as the buffer.
        let _ = block.copy_in_parallel(0, piece, copy_threads());
        return block;
    }
    let mut to = block.as_bytes_mut();
    for piece in run {
        let (bytes, rest) = to.split_at_mut(piece.len());
        bytes.copy_from_slice(piece);
        let (zeros, rest) = rest.split_at_mut(rest.len().min(piece.len().next_multiple_of(ALIGNMENT) - piece.len()));
        zeros.fill(0);
        to = rest;
    }
    block
}

/// The number of threads that copy a large array. It is computed once, because the system reads files to answer.
pub(crate) fn copy_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
