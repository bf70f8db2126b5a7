//! A table whose places have a generation, so that a stale id of a place never refers to the place's next entry.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// The id of an entry: its place, and the number of times that the place was used before.
pub(crate) struct Id<T> {
    /// The number of the place, from 1 on, so that no id takes the same room as an id.
    place: NonZeroU32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// The number of bits of the short form that hold the place. The other bits hold the generation.
    const SHORT_INDEX_BITS: u32 = 20;

    fn new(index: usize, generation: u32) -> Id<T> {
        let place = u32::try_from(index).ok().and_then(|index| NonZeroU32::MIN.checked_add(index));
        Id { place: place.unwrap_or(NonZeroU32::MAX), generation, of: PhantomData }
    }

    /// Returns the number of the place, from 0 on.
    pub(crate) fn index(self) -> u32 {
        self.place.get() - 1
    }

    /// Returns the generation and the place in one number.
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index())
    }

    /// Reverses [`Id::to_u64`]. The entry need not exist.
    pub(crate) fn from_u64(n: u64) -> Id<T> {
        #[allow(clippy::cast_possible_truncation)]
        let (index, generation) = (n as u32, (n >> 32) as u32);
        Id::new(index as usize, generation)
    }

    /// Returns 20 bits of the place and 12 bits of the generation, for 32-bit fields on the wire.
    pub(crate) fn short(self) -> u32 {
        self.index() | self.generation << Self::SHORT_INDEX_BITS
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
        write!(f, "{}.{}", self.index(), self.generation)
    }
}

/// A table of entries of type `T`, with ids of type `Id<K>`. `K` is a marker where other modules need the ids but not
/// the entries.
pub(crate) struct Slab<T, K = T> {
    entries: Vec<Option<T>>,
    /// The generation of each place. They lie by themselves, because beside an entry each would take twice its length.
    generations: Vec<u32>,
    free: Vec<u32>,
    ids: PhantomData<fn() -> K>,
}

impl<T, K> Default for Slab<T, K> {
    fn default() -> Self {
        Slab { entries: Vec::new(), generations: Vec::new(), free: Vec::new(), ids: PhantomData }
    }
}

impl<T, K> Slab<T, K> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, entry: T) -> Id<K> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.generations.push(0);
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        }) as usize;
        self.entries[index] = Some(entry);
        Id::new(index, self.generations[index])
    }

    /// Returns the entry at this place.
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    /// Returns the id of the entry that is, or comes, at this place.
    pub(crate) fn id_at(&self, index: u32) -> Id<K> {
        let index = index as usize;
        Id::new(index, self.generations.get(index).copied().unwrap_or(0))
    }

    pub(crate) fn get(&self, id: Id<K>) -> Option<&T> {
        let index = id.index() as usize;
        if *self.generations.get(index)? == id.generation { self.entries.get(index)?.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: Id<K>) -> Option<&mut T> {
        let index = id.index() as usize;
        if *self.generations.get(index)? == id.generation { self.entries.get_mut(index)?.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: Id<K>) -> Option<T> {
        let index = id.index() as usize;
        let generation = self.generations.get_mut(index).filter(|generation| **generation == id.generation)?;
        let entry = self.entries.get_mut(index)?.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.index());
        Some(entry)
    }

    /// Returns the full id of the entry that a peer calls by its short form.
    pub(crate) fn lengthen(&self, short: u32) -> Option<Id<K>> {
        let index = short & ((1 << Id::<K>::SHORT_INDEX_BITS) - 1);
        self.at(index)?;
        Some(self.id_at(index)).filter(|id| id.short() == short)
    }

    /// Whether there is room for another entry whose short form is unique.
    pub(crate) fn has_short_room(&self) -> bool {
        !self.free.is_empty() || self.entries.len() < 1 << Id::<K>::SHORT_INDEX_BITS
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<K>, &T)> {
        self.places(0).filter_map(|(_, entry)| entry)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    /// Returns the places from `begin` on, each with its entry if it has one.
    pub(crate) fn places(&self, begin: usize) -> impl Iterator<Item = (usize, Option<(Id<K>, &T)>)> {
        let entries = self.entries.get(begin..).unwrap_or_default();
        let generations = self.generations.get(begin..).unwrap_or_default();
        entries.iter().zip(generations).enumerate().map(move |(i, (entry, generation))| {
            let index = begin + i;
            (index, entry.as_ref().map(|entry| (Id::new(index, *generation), entry)))
        })
    }

    /// Takes the first entry at this place or a later one, and moves `from` behind its place.
    pub(crate) fn take_first(&mut self, from: &mut usize) -> Option<(Id<K>, T)> {
        let (place, id) = self.places(*from).find_map(|(place, entry)| Some((place, entry?.0)))?;
        *from = place + 1;
        Some((id, self.remove(id)?))
    }

    /// Returns the index after the last place.
    pub(crate) fn end(&self) -> usize {
        self.entries.len()
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
        assert_eq!((slab.at(0), slab.id_at(0), slab.at(1)), (Some(&'b'), b, None));
        assert_eq!(slab.get(Id::from_u64(u64::MAX)), None);
        assert_eq!(size_of::<Option<Id<char>>>(), size_of::<Id<char>>());
    }

    #[test]
    fn entries_are_taken_in_the_order_of_their_places() {
        let mut slab = Slab::<char>::default();
        let [a, b, c] = ['a', 'b', 'c'].map(|entry| slab.insert(entry));
        slab.remove(b);
        let mut from = 0;
        let mut next = || slab.take_first(&mut from);
        assert_eq!((next(), next(), next()), (Some((a, 'a')), Some((c, 'c')), None));
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
