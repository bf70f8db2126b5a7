//! The tables of bundles that a session remembers.

use std::collections::HashMap;
use std::sync::Arc;
use transfer_core::tensor::Key;
use transfer_core::wire::bundle::BundleTable;

/// The most keys whose tables a session remembers.
const MAX_TABLES: usize = 64;

/// The most tensors that all these tables have together: two of the longest tables.
const MAX_ENTRIES: usize = 1 << 18;

/// The tables of the bundles of which a session has fetched parts.
#[derive(Debug, Default)]
pub(crate) struct KnownTables {
    tables: HashMap<Key, Arc<BundleTable>>,
    /// The number of tensors of all tables together.
    entries: usize,
}

impl KnownTables {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<BundleTable>> {
        self.tables.get(key).cloned()
    }

    pub(crate) fn remember(&mut self, key: &Key, table: Arc<BundleTable>) {
        let len = table.entries().len();
        if let Some(before) = self.tables.remove(key) {
            self.entries -= before.entries().len();
        }
        if self.tables.len() >= MAX_TABLES || self.entries + len > MAX_ENTRIES {
            // Which of them is forgotten matters little: it is fetched again.
            self.tables.clear();
            self.entries = 0;
        }
        self.entries += len;
        self.tables.insert(key.clone(), table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::tensor::{DType, TensorMeta, TensorName};
    use transfer_core::wire::bundle::MAX_TENSORS;

    fn table(len: usize) -> Arc<BundleTable> {
        let meta = TensorMeta::of(DType::U8, &[1]).unwrap();
        let tensors = (0..len).map(|n| (TensorName::new(&n.to_string()).unwrap(), meta.clone()));
        Arc::new(BundleTable::new(tensors.collect()).unwrap())
    }

    fn key(n: usize) -> Key {
        Key::new(&n.to_string()).unwrap()
    }

    #[test]
    fn known_tables_are_bounded_by_keys_and_tensors() {
        let (mut known, short, long) = (KnownTables::default(), table(1), table(MAX_TENSORS));
        for n in 0..MAX_TABLES {
            known.remember(&key(n), short.clone());
        }
        known.remember(&key(3), short.clone());
        assert_eq!((known.tables.len(), known.entries), (MAX_TABLES, MAX_TABLES), "a known key takes no room");
        known.remember(&key(MAX_TABLES), short.clone());
        assert_eq!((known.tables.len(), known.entries), (1, 1));
        known.remember(&key(0), long.clone());
        known.remember(&key(0), long.clone());
        assert_eq!((known.tables.len(), known.entries), (2, 1 + MAX_TENSORS));
        known.remember(&key(1), long.clone());
        assert_eq!(
            (known.tables.len(), known.entries),
            (1, MAX_TENSORS),
            "both long ones and the short one are too many"
        );
        known.remember(&key(2), long);
        assert_eq!((known.tables.len(), known.entries), (2, MAX_ENTRIES));
        assert!(known.get(&key(1)).is_some() && known.get(&key(0)).is_none());
    }
}
