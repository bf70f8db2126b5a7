//! Buffers that are copied into the arena, each into an allocation of its own.

use super::{Piece, Pieces};
use crate::Error;
use crate::push::copy_threads;
use crate::session::{Session, SharedRange};
use std::task::Waker;

/// Copies the buffers that do not lie in the arena into it. `false` if there is no room now; the buffers that were
/// copied stay copied.
pub(crate) fn copy_apart(
    session: &Session,
    pieces: &mut Pieces<'_>,
    waker: &Waker,
    last_try: bool,
) -> Result<bool, Error> {
    let Pieces { buffers, copied, .. } = pieces;
    for buffer in buffers {
        let len = buffer.len() as u64;
        if SharedRange::find_anywhere(session.arena(), buffer.as_ptr(), len).is_some() {
            continue;
        }
        let Some(mut block) = session.allocate_or_wait(len, waker, last_try)? else { return Ok(false) };
        // Cannot fail: the block is as long as the buffer.
        let _ = block.copy_in_parallel(0, buffer, copy_threads());
        *buffer = Piece::Shared(block.freeze().to_arrow_buffer());
        *copied += len;
    }
    Ok(true)
}
