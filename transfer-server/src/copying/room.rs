//! The limits of copies: the size of one file, and of all together.

use super::destination::{Destination, Folder};
use super::error::CopyError;
use crate::config::Size;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The room for copies.
#[derive(Debug)]
pub(super) struct Room {
    max_bytes: Size,
    total_bytes: Size,
    coming: Arc<Mutex<Coming>>,
}

/// The copies that are under way.
#[derive(Debug, Default)]
struct Coming {
    bytes: u64,
    places: BTreeSet<(u64, u64, String)>,
}

/// The room of one copy. Dropping it gives it back: the file then has its name and counts by itself, or is gone.
#[derive(Debug)]
pub(super) struct Reserved {
    coming: Arc<Mutex<Coming>>,
    bytes: u64,
    place: (u64, u64, String),
}

impl Room {
    pub(super) fn new(max_bytes: Size, total_bytes: Size) -> Room {
        Room { max_bytes, total_bytes, coming: Arc::default() }
    }

    /// Reserves room for a file. Looks at all files of the folder.
    pub(super) fn reserve(
        &self,
        folder: &Folder,
        place: &Destination,
        path: &str,
        bytes: u64,
    ) -> Result<Reserved, CopyError> {
        if bytes > self.max_bytes.0 {
            return Err(CopyError::TooLarge { bytes, most: self.max_bytes });
        }
        // The lock is held while the files are looked at. A copy that ends meanwhile gives its room back afterwards, so
        // it counts twice at most, and never not at all.
        let mut coming = self.coming.lock();
        if coming.places.contains(&place.id) {
            return Err(CopyError::Twice { path: path.to_owned() });
        }
        let used = folder.used_bytes()?;
        let all = [used, coming.bytes, bytes].into_iter().fold(0u64, u64::saturating_add);
        if all > self.total_bytes.0 {
            return Err(CopyError::Full { bytes, most: self.total_bytes, used, coming: coming.bytes });
        }
        coming.bytes += bytes;
        coming.places.insert(place.id.clone());
        Ok(Reserved { coming: self.coming.clone(), bytes, place: place.id.clone() })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut coming = self.coming.lock();
        coming.bytes = coming.bytes.saturating_sub(self.bytes);
        coming.places.remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: copy-folder
    #[test]
    fn files_and_copies_under_way_share_the_room() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("there"), [0; 30]).unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let room = Room::new(Size(60), Size(100));
        let reserve = |path: &str, bytes| room.reserve(&folder, &folder.place(path, true).unwrap(), path, bytes);
        assert!(matches!(reserve("a", 61), Err(CopyError::TooLarge { bytes: 61, .. })));
        let first = reserve("a", 50).unwrap();
        assert!(matches!(reserve("a", 1), Err(CopyError::Twice { .. })));
        let full = reserve("b", 21).unwrap_err();
        assert!(matches!(full, CopyError::Full { used: 30, coming: 50, .. }), "{full}");
        let second = reserve("b", 20).unwrap();
        drop(first);
        let third = reserve("a", 50).unwrap();
        drop((second, third));
        reserve("a", 60).unwrap();
    }
}
