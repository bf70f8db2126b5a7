//! The owners of keys, each stored once and counted.

use super::entries::NameNo;
use hashbrown::HashMap;
use transfer_core::tensor::Name;

/// A worker and its tenant.
pub(crate) type Owner = (Name, Name);

/// Numbers owners. A number is free again after its last use.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: HashMap<Owner, NameNo>,
    slab: Vec<Option<(Owner, u64)>>,
    free: Vec<u32>,
}

impl Names {
    /// Adds one use of a name. Returns its number.
    pub(crate) fn take(&mut self, name: &Owner) -> NameNo {
        if let Some(no) = self.by_name.get(name) {
            if let Some((_, uses)) = self.slab.get_mut(no.0 as usize).and_then(Option::as_mut) {
                *uses += 1;
            }
            return *no;
        }
        let entry = Some((name.clone(), 1));
        let no = match self.free.pop() {
            Some(place) => {
                self.slab[place as usize] = entry;
                NameNo(place)
            }
            None => {
                self.slab.push(entry);
                NameNo(u32::try_from(self.slab.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.by_name.insert(name.clone(), no);
        no
    }

    /// Removes one use.
    pub(crate) fn give_back(&mut self, no: NameNo) {
        let Some(slot) = self.slab.get_mut(no.0 as usize) else { return };
        let Some((_, uses)) = slot.as_mut() else { return };
        *uses -= 1;
        if *uses == 0
            && let Some((name, _)) = slot.take()
        {
            self.by_name.remove(&name);
            self.free.push(no.0);
        }
    }

    /// Returns the name of a number.
    pub(crate) fn get(&self, no: NameNo) -> Option<&Owner> {
        self.slab.get(no.0 as usize)?.as_ref().map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_end_with_their_last_use() {
        let mut names = Names::default();
        let owner = |worker: &str, tenant: u32| (Name::new(worker).unwrap(), Name::of_number(tenant));
        let (a, b) = (owner("a", 1), owner("a", 2));
        let no = names.take(&a);
        assert_eq!(names.take(&a), no);
        assert_ne!(names.take(&b), no);
        names.give_back(no);
        assert_eq!(names.get(no), Some(&a));
        names.give_back(no);
        assert_eq!(names.get(no), None);
        names.give_back(no);
        assert_eq!(names.take(&owner("c", 1)), no);
    }
}
