//! The names that the two ends of a link refer to by number.

use crate::tensor::Name;
use crate::wire::message::NameRef;
use hashbrown::HashMap;

/// The most names that one message uses. A table has room for at least this many.
const MIN_NAMES: usize = 4;

/// The names that this side has numbered for the peer.
#[derive(Default)]
pub(super) struct NamesOut {
    numbers: HashMap<Name, NameRef>,
    places: Vec<(Name, u32)>,
    next: usize,
}

impl NamesOut {
    /// Returns the number of a name, and whether the peer has to be told. In a full table the oldest number gets a new
    /// meaning. Messages are in order, so the peer reads earlier messages with the old meaning. The numbers of
    /// `together`, the names of the same message, do not change.
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
    places: Vec<(u32, Name)>,
}

impl NamesIn {
    /// Stores a name, in the next free place or with the next generation in a place that is taken. Only this message
    /// gives a number a new meaning, and no later message uses the old one. The error says what is wrong with the
    /// message.
    pub(super) fn enter(&mut self, name: NameRef, text: Name, limit: usize) -> Result<(), String> {
        let NameRef { id, generation } = name;
        let (place, used) = (id as usize, self.places.len());
        let right = match self.places.get(place) {
            Some((before, _)) => before.wrapping_add(1),
            None if place >= limit.max(MIN_NAMES) => {
                return Err(format!("it numbers a name {id}, the limit is {limit}"));
            }
            None if place > used => return Err(format!("it numbers a name {id}, the next number is {used}")),
            None => 0,
        };
        if generation != right {
            return Err(format!("it gives the name {id} the generation {generation}, the next one is {right}"));
        }
        match self.places.get_mut(place) {
            Some(entry) => *entry = (generation, text),
            None => self.places.push((generation, text)),
        }
        Ok(())
    }

    pub(super) fn look_up(&self, name: NameRef) -> Option<&Name> {
        let (generation, text) = self.places.get(name.id as usize)?;
        (*generation == name.generation).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u32) -> Name {
        Name::new(&format!("name{n}")).unwrap()
    }

    #[test]
    fn oldest_number_of_a_full_table_gets_a_new_meaning_on_both_sides() {
        let (mut out, mut into) = (NamesOut::default(), NamesIn::default());
        let mut before: HashMap<u32, NameRef> = HashMap::new();
        for n in (0..40).chain(0..40) {
            let (number, new) = out.number(&name(n), &[], 8);
            assert!(new && number.id < 8);
            into.enter(number, name(n), 8).unwrap();
            assert_eq!(into.look_up(number), Some(&name(n)));
            if let Some(old) = before.insert(number.id, number) {
                assert_eq!(into.look_up(old), None, "the old meaning is gone on both sides");
            }
        }
        assert_eq!((out.places.len(), out.numbers.len(), into.places.len()), (8, 8, 8));
    }

    #[test]
    fn the_names_of_one_message_keep_their_numbers() {
        let mut out = NamesOut::default();
        let names: Vec<Name> = (0..6).map(name).collect();
        for some in names.windows(3) {
            let together: Vec<&Name> = some.iter().collect();
            let numbers: Vec<u32> = some.iter().map(|n| out.number(n, &together, 0).0.id).collect();
            assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
        }
    }

    #[test]
    fn numbers_out_of_order_are_refused() {
        let mut into = NamesIn::default();
        let number = |id, generation| NameRef { id, generation };
        assert!(into.enter(number(1, 0), name(1), 8).unwrap_err().contains("the next number is 0"));
        assert!(into.enter(number(0, 1), name(1), 8).unwrap_err().contains("the next one is 0"));
        into.enter(number(0, 0), name(1), 8).unwrap();
        assert!(into.enter(number(0, 0), name(2), 8).unwrap_err().contains("the next one is 1"));
        assert!(into.enter(number(8, 0), name(2), 8).unwrap_err().contains("the limit is 8"));
        into.places[0].0 = u32::MAX;
        into.enter(number(0, 0), name(2), 8).unwrap();
    }
}
