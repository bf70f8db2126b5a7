//! Files in pieces: a file that is larger than one arena is published as several tensors, and put together again.
//!
//! Piece number N of KEY is `KEY/.transferctl-pieces/N`. KEY itself is the list of the pieces, published after all of
//! them: version, length and digest of each. A fetch takes exactly those versions and checks each digest. So it never
//! combines pieces of different pushes; while a newer version is pushed, it fails with [`FilesError::PieceGone`].
//!
//! A list differs from every other tensor by its shape, which no file gets by itself, and by its beginning.

use super::digest::Hash;
use super::error::FilesError;
use serde::{Deserialize, Serialize};
use transfer_client::{DType, Tensor, TensorMeta};

/// The folder between the key and the number of a piece.
pub(super) const FOLDER: &str = ".transferctl-pieces";

/// The beginning of a list.
pub(super) const LIST_MAGIC: &[u8] = b"a list of pieces, by transferctl, version 1\n";

/// The longest piece, in bytes: several fit into an arena, and one into any usual landing pool.
pub(super) const PIECE_BYTES: u64 = 256 << 20;

/// The most pieces of one file.
pub(super) const MAX_PIECES: u64 = 100_000;

/// The bytes of the longest entry of a list, and of everything besides the entries.
const ENTRY_BYTES: u64 = 192;
const BESIDE_BYTES: u64 = 1024;

/// The key of a piece.
pub(super) fn key_of(key: &str, piece: u64) -> String {
    format!("{key}/{FOLDER}/{piece:05}")
}

/// Whether a key is that of a piece. Files cannot have such a key, so no file is mistaken for a piece.
pub(super) fn is_piece(key: &str) -> bool {
    key.split('/').any(|name| name == FOLDER)
}

/// The description of a list of that many pieces. Its length is that of the longest possible list; shorter lists end
/// with spaces.
pub(super) fn list_of(pieces: u64) -> Result<TensorMeta, transfer_core::tensor::InvalidShape> {
    TensorMeta::of(DType::U8, &[LIST_MAGIC.len() as u64 + BESIDE_BYTES + pieces * ENTRY_BYTES, 1])
}

/// Whether a tensor may be a list.
pub(super) fn may_be_list(meta: &TensorMeta) -> bool {
    let fits = |len: u64| (LIST_MAGIC.len() as u64..=MAX_PIECES * ENTRY_BYTES + 2 * BESIDE_BYTES).contains(&len);
    meta.dtype() == DType::U8 && matches!(meta.shape().dims(), [len, 1] if fits(*len))
}

/// One piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    pub(super) version: u64,
    blake3: String,
}

impl Piece {
    pub(super) fn new(bytes: u64, version: u64, digest: &Hash) -> Piece {
        Piece { bytes, version, blake3: digest.to_hex().to_string() }
    }

    pub(super) fn digest(&self) -> Option<Hash> {
        Hash::from_hex(&self.blake3).ok()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Text {
    dtype: String,
    shape: Vec<u64>,
    pieces: Vec<Piece>,
}

/// A tensor in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pieces {
    /// The description of the whole.
    pub(super) meta: TensorMeta,
    pub(super) pieces: Vec<Piece>,
}

impl Pieces {
    /// Writes the list, as long as [`list_of`] says.
    pub(super) fn write(&self) -> Vec<u8> {
        let Pieces { meta, pieces } = self;
        let (dtype, shape) = (meta.dtype().name().to_owned(), meta.shape().dims().to_vec());
        let text = serde_json::json!(Text { dtype, shape, pieces: pieces.clone() }).to_string();
        let mut bytes = [LIST_MAGIC, text.as_bytes()].concat();
        let len = LIST_MAGIC.len() as u64 + BESIDE_BYTES + pieces.len() as u64 * ENTRY_BYTES;
        bytes.resize(usize::try_from(len).unwrap_or(usize::MAX), b' ');
        bytes
    }

    /// Parses a list of pieces; `None` if the tensor is none.
    pub(super) fn of(key: &str, tensor: &Tensor) -> Result<Option<Pieces>, FilesError> {
        match may_be_list(tensor.meta()) {
            true => Pieces::read(tensor.as_bytes())
                .map_err(|why| FilesError::NotPieces { key: key.to_owned(), why: why.to_owned() }),
            false => Ok(None),
        }
    }

    fn read(bytes: &[u8]) -> Result<Option<Pieces>, &'static str> {
        let Some(text) = bytes.strip_prefix(LIST_MAGIC) else { return Ok(None) };
        let text: Text = serde_json::from_slice(text).map_err(|_| "its text is not understood")?;
        let dtype = DType::from_name(&text.dtype).ok_or("unknown element type")?;
        let meta = TensorMeta::of(dtype, &text.shape).map_err(|_| "invalid shape")?;
        let sum = text.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.bytes));
        if sum != Some(meta.len_bytes()) {
            return Err("its pieces are not as long as the whole");
        }
        match text.pieces.iter().all(|piece| piece.digest().is_some()) {
            true => Ok(Some(Pieces { meta, pieces: text.pieces })),
            false => Err("a digest is not 64 hexadecimal digits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::digest;

    fn pieces(count: u64) -> Pieces {
        let piece = |n: u64| Piece::new(u64::MAX >> 24, u64::MAX - n, &digest::of_bytes(&n.to_le_bytes()));
        let bytes = (u64::MAX >> 24) * count;
        Pieces { meta: TensorMeta::of(DType::U8, &[bytes]).unwrap(), pieces: (0..count).map(piece).collect() }
    }

    #[test]
    fn list_reads_back_and_has_the_planned_length() {
        for count in [1, 2, 1000] {
            let list = pieces(count);
            let (bytes, meta) = (list.write(), list_of(count).unwrap());
            assert_eq!(bytes.len() as u64, meta.len_bytes());
            assert!(may_be_list(&meta));
            assert_eq!(Pieces::read(&bytes), Ok(Some(list)));
        }
        // A tensor of an ordinary file is no list.
        let meta = list_of(1).unwrap();
        assert!(!may_be_list(&TensorMeta::of(DType::U8, &[meta.len_bytes()]).unwrap()));
        assert_eq!(Pieces::read(b"anything else"), Ok(None));
    }

    #[test]
    fn invalid_lists_are_errors() {
        let good = String::from_utf8(pieces(2).write()).unwrap();
        for (from, to) in
            [("u8", "u9"), ("\"shape\":[", "\"shape\":[2,"), ("\"blake3\":\"", "\"blake3\":\"x"), ("}]", "")]
        {
            let bad = good.replacen(from, to, 1);
            assert!(Pieces::read(bad.as_bytes()).is_err(), "{from} {to}");
        }
    }

    #[test]
    fn keys_of_pieces_are_known() {
        assert_eq!(key_of("a/b", 7), "a/b/.transferctl-pieces/00007");
        assert!(is_piece(&key_of("a", 0)));
        assert!(!is_piece("a/.transferctl-pieces.old/0") && !is_piece("transferctl"));
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_list_of_pieces() {
        let examples = [1, 3].map(|count| pieces(count).write());
        transfer_fuzz::Target::new("list-of-pieces", examples).bound(1 << 20).rounds(5_000).run(|bytes| {
            match Pieces::read(bytes) {
                Ok(Some(list)) => {
                    assert_eq!(list.meta.len_bytes(), list.pieces.iter().map(|piece| piece.bytes).sum::<u64>());
                    format!("a list of {}", list.pieces.len())
                }
                Ok(None) => "no list".to_owned(),
                Err(why) => why.to_owned(),
            }
        });
    }
}
