//! The keys of the directory, stored compactly: each takes 40 bytes of slab and 5 to 10 bytes of hash table, besides
//! the key's own text.

use hashbrown::hash_table::{Entry as TableEntry, HashTable};
use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::BuildHasher;
use transfer_core::tensor::Key;

/// The number of a name in [`super::names::Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NameNo(pub(crate) u32);

/// The number of an attached node. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeNo(pub(crate) u32);

/// The owner of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The owner's worker name.
    pub(crate) owner: NameNo,
    /// The owner's node.
    pub(crate) node: NodeNo,
    /// The number of the entry.
    pub(crate) sequence: u64,
    /// The number by which it had been entered for this owner and node before. 0: it had not.
    pub(crate) earlier: u64,
}

impl Holder {
    /// Returns the number by which it was first entered for this owner and node.
    pub(crate) fn first_entered(&self) -> u64 {
        if self.earlier > 0 { self.earlier } else { self.sequence }
    }
}

#[derive(Debug)]
struct Entry {
    key: Key,
    holder: Holder,
}

/// Maps keys to holders. The table stores 4-byte indexes of a slab, so that growing moves little and empty buckets cost
/// little.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    table: HashTable<u32>,
    slab: Vec<Option<Entry>>,
    free: Vec<u32>,
    hasher: DefaultHashBuilder,
    /// The number of keys of each node.
    of_node: HashMap<NodeNo, u64>,
}

fn key_at(slab: &[Option<Entry>], place: u32) -> &str {
    slab.get(place as usize).and_then(Option::as_ref).map_or("", |e| e.key.as_str())
}

fn one_less(of_node: &mut HashMap<NodeNo, u64>, node: NodeNo) {
    if let Some(count) = of_node.get_mut(&node) {
        *count -= 1;
        if *count == 0 {
            of_node.remove(&node);
        }
    }
}

impl Entries {
    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of keys of a node.
    pub(crate) fn count_of(&self, node: NodeNo) -> u64 {
        self.of_node.get(&node).copied().unwrap_or(0)
    }

    /// Returns the holder of a key.
    pub(crate) fn get(&self, key: &str) -> Option<Holder> {
        let place = self.table.find(self.hasher.hash_one(key), |p| key_at(&self.slab, *p) == key)?;
        self.slab.get(*place as usize)?.as_ref().map(|e| e.holder)
    }

    /// Enters a key, or replaces its holder. Returns the previous holder.
    pub(crate) fn insert(&mut self, key: &Key, holder: Holder) -> Option<Holder> {
        let Entries { table, slab, free, hasher, of_node } = self;
        let text = key.as_str();
        let found =
            table.entry(hasher.hash_one(text), |p| key_at(slab, *p) == text, |p| hasher.hash_one(key_at(slab, *p)));
        let vacant = match found {
            TableEntry::Occupied(place) => {
                let entry = slab.get_mut(*place.get() as usize)?.as_mut()?;
                let before = std::mem::replace(&mut entry.holder, holder);
                *of_node.entry(holder.node).or_default() += 1;
                one_less(of_node, before.node);
                return Some(before);
            }
            TableEntry::Vacant(vacant) => vacant,
        };
        let entry = Some(Entry { key: key.clone(), holder });
        let place = match free.pop() {
            Some(place) => {
                slab[place as usize] = entry;
                place
            }
            None => {
                slab.push(entry);
                // 2^32 keys of 1 byte would need 200 GB here, so the process ends long before the number overflows.
                u32::try_from(slab.len() - 1).unwrap_or(u32::MAX)
            }
        };
        vacant.insert(place);
        *of_node.entry(holder.node).or_default() += 1;
        None
    }

    /// Removes a key. Returns its holder.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Holder> {
        let hash = self.hasher.hash_one(key);
        let found = self.table.find_entry(hash, |p| key_at(&self.slab, *p) == key).ok()?;
        let (place, _) = found.remove();
        self.free.push(place);
        let entry = self.slab.get_mut(place as usize)?.take()?;
        one_less(&mut self.of_node, entry.holder.node);
        self.shrink();
        Some(entry.holder)
    }

    /// Removes every key of a node, and reports the owner of each.
    pub(crate) fn remove_node(&mut self, node: NodeNo, mut removed: impl FnMut(NameNo)) {
        // Most of a cluster's nodes have few keys of many.
        let mut left = self.of_node.remove(&node).unwrap_or(0);
        let mut places = 0..self.slab.len();
        while left > 0
            && let Some(place) = places.next()
        {
            let of_node = self.slab[place].take_if(|e| e.holder.node == node);
            if let Some(entry) = of_node {
                // The slot is empty already, so the search uses the removed key's hash and compares indexes.
                let hash = self.hasher.hash_one(entry.key.as_str());
                if let Ok(found) = self.table.find_entry(hash, |p| *p as usize == place) {
                    self.free.push(found.remove().0);
                }
                removed(entry.holder.owner);
                left -= 1;
            }
        }
        self.shrink();
    }

    /// Frees memory when most keys are gone. The cost is at most one moved key for each removed key.
    fn shrink(&mut self) {
        if self.slab.len() > 1024 && self.table.len() < self.slab.len() / 4 {
            let mut slab = Vec::with_capacity(self.table.len());
            slab.extend(std::mem::take(&mut self.slab).into_iter().filter(Option::is_some));
            (self.slab, self.free) = (slab, Vec::new());
            let (slab, hasher) = (&self.slab, &self.hasher);
            let mut table = HashTable::with_capacity(slab.len());
            for place in 0..u32::try_from(slab.len()).unwrap_or(u32::MAX) {
                let hash = |place: &u32| hasher.hash_one(key_at(slab, *place));
                table.insert_unique(hash(&place), place, hash);
            }
            self.table = table;
        }
    }

    /// Returns the number of bytes on the heap besides the texts of the keys.
    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        self.table.allocation_size()
            + self.slab.capacity() * size_of::<Option<Entry>>()
            + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn holder(owner: u32, node: u32, sequence: u64) -> Holder {
        Holder { owner: NameNo(owner), node: NodeNo(node), sequence, earlier: 0 }
    }

    #[test]
    fn entries_behave_like_a_map() {
        let mut entries = Entries::default();
        let mut model = HashMap::new();
        let mut x = 1u64;
        for step in 0..200_000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = Key::new(&format!("k{}", (x >> 33) % 3000)).unwrap();
            let node = ((x >> 20) % 4) as u32;
            match (x >> 60, step % 20_011) {
                (_, 0) => {
                    let mut count = 0;
                    entries.remove_node(NodeNo(node), |_| count += 1);
                    let before = model.len();
                    model.retain(|_, h: &mut Holder| h.node != NodeNo(node));
                    assert_eq!(count, before - model.len());
                }
                (0..6, _) => assert_eq!(entries.remove(key.as_str()), model.remove(key.as_str())),
                _ => {
                    let h = holder(0, node, step);
                    assert_eq!(entries.insert(&key, h), model.insert(key.as_str().to_owned(), h));
                }
            }
            assert_eq!(entries.get(key.as_str()), model.get(key.as_str()).copied());
            assert_eq!(entries.len(), model.len());
        }
        for (key, h) in model {
            assert_eq!(entries.get(&key), Some(h));
        }
    }

    // Promise: bounded-keys, seen to fail
    #[test]
    fn memory_of_a_removed_node_is_freed_while_others_have_keys() {
        let mut entries = Entries::default();
        for i in 0..100_000u64 {
            // Every thousandth key belongs to another node.
            entries.insert(&Key::new(&format!("k{i}")).unwrap(), holder(0, u32::from(i % 1000 == 0), i));
        }
        let before = entries.heap_bytes();
        assert_eq!((entries.count_of(NodeNo(0)), entries.count_of(NodeNo(1))), (99_900, 100));
        entries.remove_node(NodeNo(0), |_| ());
        assert!(entries.heap_bytes() < before / 100, "{} of {before} bytes are kept", entries.heap_bytes());
        assert_eq!((entries.len(), entries.count_of(NodeNo(0)), entries.count_of(NodeNo(1))), (100, 0, 100));
        for i in (0..100_000u64).step_by(1000) {
            assert_eq!(entries.get(&format!("k{i}")), Some(holder(0, 1, i)));
        }
    }

    #[test]
    fn million_keys_cost_less_than_60_bytes_each() {
        assert_eq!(size_of::<Option<Entry>>(), 40);
        let mut entries = Entries::default();
        for i in 0..1_000_000u64 {
            entries.insert(&Key::new(&format!("layer{i}")).unwrap(), holder(0, 0, i));
        }
        let each = entries.heap_bytes() / entries.len();
        assert!(each < 60, "{each} bytes for each key");
        entries.remove_node(NodeNo(0), |_| ());
        assert_eq!(entries.heap_bytes(), 0);
    }
}
