//! What both sides of a link call by number: names, and descriptions of tensors.

use crate::tensor::{Key, Name, TensorMeta};
use crate::wire::message::NameRef;
use hashbrown::HashMap;

/// One message uses as many names.
const MIN_NAMES: usize = 4;

/// The names that this side has numbered for the peer.
#[derive(Default)]
pub(super) struct NamesOut {
    numbers: HashMap<Name, NameRef>,
    places: Vec<(Name, u32)>,
    next: usize,
}

impl NamesOut {
    /// The number of a name, and whether the peer has to be told. With a full table the oldest number gets a new meaning: what was
    /// sent before is in order before that. `together` are the names of the same message, whose numbers stay.
    pub(super) fn number(&mut self, name: &Name, together: &[&Name], limit: usize) -> (NameRef, bool) {
        if let Some(n) = self.numbers.get(name) {
            return (*n, false);
        }
        let (place, generation) = if self.places.len() < limit.max(MIN_NAMES) {
            self.places.push((name.clone(), 0));
            (self.places.len() - 1, 0)
        } else {
            while together.contains(&&self.places[self.next].0) {
                self.next = (self.next + 1) % self.places.len();
            }
            let place = self.next;
            self.next = (self.next + 1) % self.places.len();
            let (old, generation) = &mut self.places[place];
            self.numbers.remove(old);
            *old = name.clone();
            *generation = generation.wrapping_add(1);
            (place, *generation)
        };
        let number = NameRef { id: u32::try_from(place).unwrap_or(u32::MAX), generation };
        self.numbers.insert(name.clone(), number);
        (number, true)
    }
}

/// The names that the peer has numbered for us.
#[derive(Default)]
pub(super) struct NamesIn {
    places: Vec<Option<(u32, Name)>>,
}

impl NamesIn {
    /// Enters a name. `false` where the number is beyond the limit.
    pub(super) fn enter(&mut self, name: NameRef, text: Name, limit: usize) -> bool {
        let place = name.id as usize;
        if place >= limit.max(MIN_NAMES) {
            return false;
        }
        if place >= self.places.len() {
            self.places.resize(place + 1, None);
        }
        self.places[place] = Some((name.generation, text));
        true
    }

    pub(super) fn look_up(&self, name: NameRef) -> Option<&Name> {
        let (generation, text) = self.places.get(name.id as usize)?.as_ref()?;
        (*generation == name.generation).then_some(text)
    }
}

/// Descriptions of tensors that both sides know by number. When full it forgets them all, which costs a round trip each.
#[derive(Default)]
pub(super) struct MetaCache {
    known: HashMap<Key, (u32, TensorMeta)>,
}

impl MetaCache {
    pub(super) fn get(&self, key: &Key) -> Option<&(u32, TensorMeta)> {
        self.known.get(key)
    }

    pub(super) fn set(&mut self, key: &Key, id: u32, meta: TensorMeta, limit: usize) {
        if self.known.len() >= limit && !self.known.contains_key(key) {
            self.known.clear();
        }
        self.known.insert(key.clone(), (id, meta));
    }
}
