//! A table whose places have a generation, so that a stale id of a place never refers to the place's next entry.

use std::fmt;
use std::marker::PhantomData;

/// The id of an entry: its place, and the number of times that the place was used before.
pub(crate) struct Id<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// The number of bits of the short form that hold the place. The other bits hold the generation.
    const SHORT_INDEX_BITS: u32 = 20;

    /// Returns the generation and the place in one number.
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Reverses [`Id::to_u64`]. The entry need not exist.
    pub(crate) fn from_u64(n: u64) -> Id<T> {
        #[allow(clippy::cast_possible_truncation)]
        let (index, generation) = (n as u32, (n >> 32) as u32);
        Id { index, generation, of: PhantomData }
    }

    /// Returns 20 bits of the place and 12 bits of the generation, for 32-bit fields on the wire.
    pub(crate) fn short(self) -> u32 {
        self.index | self.generation << Self::SHORT_INDEX_BITS
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_u64() == other.to_u64()
    }
}
impl<T> Eq for Id<T> {}
impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.to_u64().cmp(&other.to_u64())
    }
}
impl<T> std::hash::Hash for Id<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.to_u64().hash(state);
    }
}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

struct Place<T> {
    generation: u32,
    entry: Option<T>,
}

/// A table of entries of type `T`, with ids of type `Id<K>`. `K` is a marker where other modules need the ids but not
/// the entries.
pub(crate) struct Slab<T, K = T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    ids: PhantomData<fn() -> K>,
}

impl<T, K> Default for Slab<T, K> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new(), ids: PhantomData }
    }
}

impl<T, K> Slab<T, K> {
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, entry: T) -> Id<K> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, entry: None });
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.places[index as usize];
        place.entry = Some(entry);
        Id { index, generation: place.generation, of: PhantomData }
    }

    pub(crate) fn get(&self, id: Id<K>) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        if place.generation == id.generation { place.entry.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: Id<K>) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.entry.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: Id<K>) -> Option<T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let entry = place.entry.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(entry)
    }

    /// Returns the full id of the entry that a peer calls by its short form.
    pub(crate) fn lengthen(&self, short: u32) -> Option<Id<K>> {
        let index = short & ((1 << Id::<K>::SHORT_INDEX_BITS) - 1);
        let place = self.places.get(index as usize)?;
        let id = Id { index, generation: place.generation, of: PhantomData };
        (place.entry.is_some() && id.short() == short).then_some(id)
    }

    /// Whether there is room for another entry whose short form is unique.
    pub(crate) fn has_short_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < 1 << Id::<K>::SHORT_INDEX_BITS
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<K>, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let index = u32::try_from(index).ok()?;
            let id = Id { index, generation: place.generation, of: PhantomData };
            place.entry.as_ref().map(|entry| (id, entry))
        })
    }

    /// Returns the places from `begin` on, each with its entry if it has one.
    pub(crate) fn places(&self, begin: usize) -> impl Iterator<Item = (usize, Option<(Id<K>, &T)>)> {
        let rest = self.places.get(begin..).unwrap_or_default();
        rest.iter().enumerate().map(move |(i, place)| {
            let index = u32::try_from(begin + i).unwrap_or(u32::MAX);
            let id = Id { index, generation: place.generation, of: PhantomData };
            (begin + i, place.entry.as_ref().map(|entry| (id, entry)))
        })
    }

    /// Returns the index after the last place.
    pub(crate) fn end(&self) -> usize {
        self.places.len()
    }

    /// Returns the ids of the entries for which `keep` returns `true`, in the order of their places.
    pub(crate) fn ids(&self, mut keep: impl FnMut(&T) -> bool) -> Vec<Id<K>> {
        self.iter().filter(|(_, entry)| keep(entry)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_id_finds_no_entry() {
        let mut slab = Slab::<char>::default();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.lengthen(a.short()), None);
        assert_eq!(slab.lengthen(b.short()), Some(b));
        assert_eq!(Id::from_u64(b.to_u64()), b);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn short_form_wraps_its_generation() {
        let mut slab = Slab::<()>::default();
        for _ in 0..5000 {
            let id = slab.insert(());
            assert_eq!(slab.lengthen(id.short()), Some(id));
            slab.remove(id);
        }
    }
}
