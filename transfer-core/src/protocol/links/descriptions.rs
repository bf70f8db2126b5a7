//! The descriptions of tensors that both ends of a link keep, so that they are not sent again.

use crate::tensor::{Key, TensorMeta};
use hashbrown::HashMap;

/// The ids of descriptions in both directions.
pub(super) struct Descriptions {
    to_peer: Table,
    from_peer: Table,
    next_id: u32,
}

impl Descriptions {
    pub(super) fn new() -> Descriptions {
        Descriptions { to_peer: Table::default(), from_peer: Table::default(), next_id: 1 }
    }

    /// Returns the id by which the peer knows this description of a key, if the peer knows it.
    pub(super) fn told(&self, key: &Key, meta: &TensorMeta) -> Option<u32> {
        self.to_peer.known.get(key).filter(|(_, known)| known == meta).map(|(id, _)| *id)
    }

    /// Gives a description a new id. The caller sends both to the peer.
    pub(super) fn tell(&mut self, key: &Key, meta: &TensorMeta, limit: usize) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1).max(1);
        self.to_peer.set(key, id, meta.clone(), limit);
        id
    }

    /// Returns the peer's id for its description of a key, and the description.
    pub(super) fn heard(&self, key: &Key) -> Option<&(u32, TensorMeta)> {
        self.from_peer.known.get(key)
    }

    /// Stores the peer's description of a key.
    pub(super) fn hear(&mut self, key: &Key, id: u32, meta: TensorMeta, limit: usize) {
        self.from_peer.set(key, id, meta, limit);
    }

    /// Removes the peer's description of a key.
    pub(super) fn forget(&mut self, key: &Key) {
        self.from_peer.known.remove(key);
    }
}

/// The descriptions of one direction. A full table is cleared, which costs a round trip for each of them.
#[derive(Default)]
struct Table {
    known: HashMap<Key, (u32, TensorMeta)>,
}

impl Table {
    fn set(&mut self, key: &Key, id: u32, meta: TensorMeta, limit: usize) {
        if self.known.len() >= limit && !self.known.contains_key(key) {
            self.known.clear();
        }
        self.known.insert(key.clone(), (id, meta));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn key(n: u32) -> Key {
        Key::new(&format!("key{n}")).unwrap()
    }

    fn meta(len: u64) -> TensorMeta {
        TensorMeta::of(DType::U8, &[len]).unwrap()
    }

    #[test]
    fn a_description_that_changed_gets_a_new_id() {
        let mut d = Descriptions::new();
        assert_eq!(d.told(&key(1), &meta(8)), None);
        let first = d.tell(&key(1), &meta(8), 4);
        assert_eq!(d.told(&key(1), &meta(8)), Some(first));
        assert_eq!(d.told(&key(1), &meta(9)), None);
        assert_ne!(d.tell(&key(1), &meta(9), 4), first);
        assert_eq!(d.heard(&key(1)), None, "the directions know nothing of each other");
    }

    #[test]
    fn full_table_is_cleared_and_no_id_is_zero() {
        let mut d = Descriptions::new();
        d.next_id = u32::MAX;
        assert_eq!([d.tell(&key(1), &meta(1), 2), d.tell(&key(2), &meta(1), 2)], [u32::MAX, 1]);
        d.tell(&key(3), &meta(1), 2);
        assert_eq!([1, 2, 3].map(|n| d.told(&key(n), &meta(1))), [None, None, Some(2)]);
        d.hear(&key(1), 7, meta(1), 2);
        d.forget(&key(1));
        assert_eq!(d.heard(&key(1)), None);
    }
}
