//! Digests of chunks, on several threads.

use parking_lot::Mutex;
use std::thread;
use transfer_core::tensor::Digest;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Below this many bytes for each thread, starting a thread costs more than it saves.
const MIN_BYTES_PER_THREAD: u64 = 2 << 20;

/// What lies behind a buffer, up to the next multiple of 64.
const ZEROS: [u8; 64] = [0; 64];

/// The digest of these bytes. XXH3 in its canonical form, the highest byte first.
pub(super) fn digest(kind: Digest, bytes: &[u8]) -> Vec<u8> {
    match kind {
        Digest::Blake3 => blake3::hash(bytes).as_bytes().to_vec(),
        // All other kinds are refused before.
        _ => xxh3_128(bytes).to_be_bytes().to_vec(),
    }
}

/// The digest of bytes that come one behind the other.
pub(crate) enum Hasher {
    Xxh3(Box<Xxh3>),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    pub(crate) fn new(kind: Digest) -> Hasher {
        match kind {
            Digest::Blake3 => Hasher::Blake3(Box::default()),
            _ => Hasher::Xxh3(Box::default()),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Xxh3(hasher) => hasher.update(bytes),
            Hasher::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// Writes the digest to memory of its length.
    pub(crate) fn end(self, to: &mut [u8]) {
        match self {
            Hasher::Xxh3(hasher) => to.copy_from_slice(&hasher.digest128().to_be_bytes()),
            Hasher::Blake3(hasher) => to.copy_from_slice(hasher.finalize().as_bytes()),
        }
    }
}

/// Makes `count` digests, one behind the other, of `bytes` bytes together, with up to `threads` threads. `make` writes the one of a number.
pub(crate) fn make_all(
    kind: Digest,
    (count, bytes): (usize, u64),
    threads: usize,
    make: impl Fn(usize, &mut [u8]) + Sync,
) -> Vec<u8> {
    let len = kind.len_bytes();
    let mut found = vec![0; count * len];
    let threads = threads.min((bytes / MIN_BYTES_PER_THREAD) as usize).min(count);
    let places = Mutex::new(found.chunks_exact_mut(len).enumerate());
    let next = || places.lock().next();
    let work = || {
        while let Some((n, to)) = next() {
            make(n, to);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be started, this one does all.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    found
}

/// The bytes of a body, where they lie: their offsets in the body rise, and what is between two is zeros, less than 64.
pub(super) struct Pieces<'a> {
    pub(super) pieces: Vec<(u64, &'a [u8])>,
    pub(super) len: u64,
}

impl<'a> Pieces<'a> {
    /// The pieces of a range, zeros included.
    fn range(&self, start: u64, end: u64) -> impl Iterator<Item = &'a [u8]> {
        let first = self.pieces.partition_point(|(at, _)| *at <= start).saturating_sub(1);
        let (mut at, mut pieces) = (start, self.pieces[first.min(self.pieces.len())..].iter());
        let mut next = pieces.next();
        std::iter::from_fn(move || {
            loop {
                if at == end {
                    return None;
                }
                let Some((offset, bytes)) = next else {
                    let zeros = &ZEROS[..(end - at).min(64) as usize];
                    at += zeros.len() as u64;
                    return Some(zeros);
                };
                if at < *offset {
                    let zeros = &ZEROS[..(end.min(*offset) - at).min(64) as usize];
                    at += zeros.len() as u64;
                    return Some(zeros);
                }
                // `at` is not before the piece.
                match bytes.get((at - offset) as usize..).filter(|rest| !rest.is_empty()) {
                    Some(rest) => {
                        let found = &rest[..(end - at).min(rest.len() as u64) as usize];
                        at += found.len() as u64;
                        return Some(found);
                    }
                    None => next = pieces.next(),
                }
            }
        })
    }

    /// The digest of a range.
    fn digest(&self, kind: Digest, start: u64, end: u64, to: &mut [u8]) {
        let mut pieces = self.range(start, end).peekable();
        let first = pieces.next().unwrap_or_default();
        if pieces.peek().is_none() {
            // Of one piece at once, which is faster.
            return to.copy_from_slice(&digest(kind, first));
        }
        let mut hasher = Hasher::new(kind);
        std::iter::once(first).chain(pieces).for_each(|bytes| hasher.add(bytes));
        hasher.end(to);
    }

    /// The digests of all chunks of `chunk_bytes`, one behind the other, with up to `threads` threads.
    pub(super) fn digests(&self, kind: Digest, chunk_bytes: u32, threads: usize) -> Vec<u8> {
        let chunk = u64::from(chunk_bytes);
        make_all(kind, (self.len.div_ceil(chunk) as usize, self.len), threads, |n, to| {
            let start = n as u64 * chunk;
            self.digest(kind, start, (start + chunk).min(self.len), to);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 64 << 10;

    #[test]
    fn digests_are_those_of_the_published_test_vectors() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(digest(Digest::Xxh3, b"")), "99aa06d3014798d86001c324468d497f");
        let blake3 = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(hex(digest(Digest::Blake3, b"")), blake3);
    }

    #[test]
    fn digests_are_the_same_however_a_body_lies_and_on_any_number_of_threads() {
        let body: Vec<u8> = (0..7_u64 << 20).map(|n| (n / 3 % 251) as u8).collect();
        // Each piece is followed by zeros up to a multiple of 64.
        let ends = [1, 64, 65, 100_000, 100_001, 3 << 20, body.len() - 7];
        let (mut lies, mut at, mut pieces) = (Vec::new(), 0, Vec::new());
        for end in ends {
            pieces.push((lies.len() as u64, &body[at..end]));
            lies.extend_from_slice(&body[at..end]);
            lies.resize(lies.len().next_multiple_of(64), 0);
            at = end;
        }
        let len = lies.len() as u64;
        let (many, one) = (Pieces { pieces, len }, Pieces { pieces: vec![(0, &lies[..])], len });
        for kind in Digest::ALL {
            let expected: Vec<u8> = lies.chunks(CHUNK as usize).flat_map(|chunk| digest(kind, chunk)).collect();
            for threads in [1, 3] {
                assert_eq!(many.digests(kind, CHUNK, threads), expected);
                assert_eq!(one.digests(kind, CHUNK, threads), expected);
            }
        }
        assert!(Pieces { pieces: Vec::new(), len: 0 }.digests(Digest::Xxh3, CHUNK, 2).is_empty());
    }
}
