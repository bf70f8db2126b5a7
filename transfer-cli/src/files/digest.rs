//! Digests of contents: BLAKE3, as `b3sum` prints it.
//!
//! A file of digests has a line for each key: 64 hexadecimal digits, two spaces, and the key as a JSON string. Keys may
//! hold any character, a line's end included, so they are quoted.

use super::error::FilesError;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) use blake3::Hash;

/// The number of bytes of a file that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The digest of bytes in memory.
pub(super) fn of_bytes(bytes: &[u8]) -> Hash {
    blake3::hash(bytes)
}

/// The digest of a range of a file, which is read again.
pub(super) fn of_range(file: &File, offset: u64, len: u64) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(len).unwrap_or(CHUNK_BYTES))];
    let (mut at, end) = (offset, offset.saturating_add(len));
    while at < end {
        let part = chunk.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut chunk[..part], at)?;
        hasher.update(&chunk[..part]);
        at += part as u64;
    }
    Ok(hasher.finalize())
}

/// Checks that a key's bytes have the expected digest.
pub(super) fn same(key: &str, wanted: &Hash, found: &Hash) -> Result<(), FilesError> {
    match wanted == found {
        true => Ok(()),
        false => Err(FilesError::NotVerified {
            key: key.to_owned(),
            wanted: wanted.to_hex().to_string(),
            found: found.to_hex().to_string(),
        }),
    }
}

/// The line for a key.
pub(super) fn line(key: &str, digest: &Hash) -> String {
    let mut line = digest.to_hex().to_string();
    // Writing to a String cannot fail.
    let _ = writeln!(line, "  {}", serde_json::Value::from(key));
    line
}

/// The contents of a file of digests.
#[derive(Debug, Default)]
pub(super) struct Digests(HashMap<String, Hash>);

impl Digests {
    /// Reads a file of digests.
    pub(super) fn read(path: &Path) -> Result<Digests, FilesError> {
        let mut text = String::new();
        let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
        read.map_err(|source| FilesError::File { what: "read", path: path.to_owned(), source })?;
        let mut digests = HashMap::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let parts = line.split_once("  ").and_then(|(digest, key)| {
                Some((serde_json::from_str::<String>(key).ok()?, Hash::from_hex(digest).ok()?))
            });
            let bad = || FilesError::NotDigests { path: path.to_owned(), line: i + 1 };
            let (key, digest) = parts.ok_or_else(bad)?;
            digests.insert(key, digest);
        }
        Ok(Digests(digests))
    }

    /// Compares a fetched tensor's digest with the expected one.
    pub(super) fn check(&self, key: &str, found: &Hash) -> Result<(), FilesError> {
        match self.0.get(key) {
            None => Err(FilesError::NoDigest { key: key.to_owned() }),
            Some(wanted) => same(key, wanted, found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_lines_are_read_back_and_checked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let keys = ["plain", "with  two spaces", "line\nend", "\"quoted\""];
        let text: String = keys.iter().map(|key| line(key, &of_bytes(key.as_bytes()))).collect();
        std::fs::write(file.path(), &text).unwrap();
        let digests = Digests::read(file.path()).unwrap();
        for key in keys {
            digests.check(key, &of_bytes(key.as_bytes())).unwrap();
            let wrong = digests.check(key, &of_bytes(b"other")).unwrap_err();
            assert!(matches!(wrong, FilesError::NotVerified { .. }), "{wrong}");
        }
        assert!(matches!(digests.check("unknown", &of_bytes(b"")), Err(FilesError::NoDigest { .. })));
        for bad in ["x", "00  \"k\"", "zz", &text[1..]] {
            std::fs::write(file.path(), bad).unwrap();
            assert!(matches!(Digests::read(file.path()), Err(FilesError::NotDigests { line: 1, .. })), "{bad}");
        }
    }

    #[test]
    fn range_is_read_in_parts_and_not_beyond_its_end() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3 * CHUNK_BYTES + 17).map(|i| (i % 253) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        assert_eq!(of_range(&file, 5, bytes.len() as u64 - 5).unwrap(), of_bytes(&bytes[5..]));
        assert_eq!(of_range(&file, 5, 0).unwrap(), of_bytes(&[]));
        let beyond = of_range(&file, 0, bytes.len() as u64 + 1).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }
}
