//! Copying a large array into a mapping with several threads.

use super::{MapError, Mapping};
use parking_lot::Mutex;
use std::thread;

/// Below this many bytes for each thread, starting a thread costs more than it saves: about 20 µs against 100 µs of
/// copying.
const MIN_BYTES_PER_THREAD: usize = 2 << 20;

/// Pieces start at multiples of this, so that no two threads write one page.
const PIECE_ALIGNMENT: usize = 4096;

/// Copies `from` to `to`, which is as long, with up to `threads` threads, as [`Mapping::copy_in_parallel`] does.
///
/// # Panics
/// If the lengths differ, as [`slice::copy_from_slice`] does.
pub fn copy_in_parallel(to: &mut [u8], from: &[u8], threads: usize) {
    let threads = threads.min(from.len() / MIN_BYTES_PER_THREAD);
    if threads < 2 {
        return to.copy_from_slice(from);
    }
    let piece = from.len().div_ceil(threads).next_multiple_of(PIECE_ALIGNMENT);
    let pieces = Mutex::new(to.chunks_mut(piece).zip(from.chunks(piece)));
    let next = || pieces.lock().next();
    let copy = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be started, this one copies all.
            let _ = thread::Builder::new().spawn_scoped(scope, copy);
        }
        copy();
    });
}

impl Mapping {
    /// Copies `bytes` to `offset` with up to `threads` threads, the calling one included. Uses fewer for few bytes,
    /// and only the calling one below 4 MiB or where no thread can be started.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], [`MapError::ReadOnly`]; then nothing is written.
    pub fn copy_in_parallel(&self, offset: u64, bytes: &[u8], threads: usize) -> Result<(), MapError> {
        let threads = threads.min(bytes.len() / MIN_BYTES_PER_THREAD);
        if threads < 2 {
            return self.copy_in(offset, bytes);
        }
        // An error of the whole range is reported before anything is written.
        self.writable_at(offset, bytes.len() as u64)?;
        let piece = bytes.len().div_ceil(threads).next_multiple_of(PIECE_ALIGNMENT);
        let mut pieces = bytes.chunks(piece).zip((offset..).step_by(piece));
        let own = pieces.next();
        thread::scope(|scope| {
            let mut started = Vec::with_capacity(threads);
            let mut result = Ok(());
            for (piece, at) in pieces {
                match thread::Builder::new().spawn_scoped(scope, move || self.copy_in(at, piece)) {
                    Ok(handle) => started.push(handle),
                    Err(_) => result = result.and(self.copy_in(at, piece)),
                }
            }
            if let Some((piece, at)) = own {
                result = result.and(self.copy_in(at, piece));
            }
            for handle in started {
                // A copy cannot panic. If it did, the panic would belong to the caller.
                result = result.and(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            result
        })
    }
}
