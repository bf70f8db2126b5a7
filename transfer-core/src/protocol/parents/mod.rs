//! Versions that have outlived their worker, and stay as long as somebody publishes the parent of their key.
//!
//! A parent that is published at this node is seen at once. For all others the directory is asked every two seconds: each
//! look asks for the parents first, and then a question that the directory always answers. So if that answer comes and a
//! parent was not located, the directory has no entry for it. A directory that has just started may not have all entries
//! yet, so a parent counts as gone only after [`CHECKS_WITHOUT_PARENT`] such looks, one behind the other. While the directory is out of
//! reach, nothing ends.

#[cfg(test)]
mod tests;

use crate::tensor::Key;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// How many looks in a row must not find a parent until it counts as gone. A directory that starts anew knows all
/// entries within less time than this takes.
const CHECKS_WITHOUT_PARENT: u32 = 5;

/// The keys of versions that stay with their parents, as a state machine.
///
/// It knows keys only by name. The node that holds it
/// - hands it **events**: a key's owner has left versions behind ([`add`](Parents::add)), the directory has located a
///   key ([`located`](Parents::located)) or has answered all questions of a look ([`answered`](Parents::answered)), a
///   key has ended ([`end`](Parents::end));
/// - calls [`look`](Parents::look) at the time of [`look_at`](Parents::look_at), and asks the directory for the keys
///   that it returns;
/// - ends the keys that an event returns.
#[derive(Default)]
pub(super) struct Parents {
    all: BTreeMap<Key, Children>,
    look_at: Option<Time>,
    /// A look that is not answered yet.
    looking: bool,
}

#[derive(Default)]
struct Children {
    keys: BTreeSet<Key>,
    state: State,
    /// How many looks in a row have not found the parent.
    absent: u32,
}

/// What the current look knows about a parent.
#[derive(Default, PartialEq)]
enum State {
    #[default]
    NotAsked,
    Asked,
    Located,
}

impl Parents {
    /// Adds a key whose versions stay as long as its parent.
    pub(super) fn add(&mut self, now: Time, parent: Key, key: Key) {
        self.all.entry(parent).or_default().keys.insert(key);
        self.look_at.get_or_insert(now + CHECK_INTERVAL);
    }

    /// Returns when the next look is due.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.look_at.filter(|_| !self.looking)
    }

    /// Begins a look, if it is due. `stays` says whether a key is still to be kept with its parent, and `is_here`
    /// whether a key is published at this node. Returns the parents for which the directory is asked. If there are any,
    /// [`answered`](Parents::answered) follows once it has answered.
    pub(super) fn look(&mut self, now: Time, stays: impl Fn(&Key) -> bool, is_here: impl Fn(&Key) -> bool) -> Vec<Key> {
        if self.look_at().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.all.retain(|_, children| {
            children.keys.retain(&stays);
            !children.keys.is_empty()
        });
        self.look_at = (!self.all.is_empty()).then(|| now + CHECK_INTERVAL);
        let mut asked = Vec::new();
        for (parent, children) in &mut self.all {
            if is_here(parent) {
                (children.state, children.absent) = (State::NotAsked, 0);
            } else {
                children.state = State::Asked;
                asked.push(parent.clone());
            }
        }
        self.looking = !asked.is_empty();
        asked
    }

    /// Handles the directory's answer where a key is.
    pub(super) fn located(&mut self, key: &Key) {
        if let Some(children) = self.all.get_mut(key) {
            children.state = State::Located;
        }
    }

    /// Handles the end of a look: the directory has answered everything that it was asked before. Returns the parents
    /// for which it has no entry, and the keys that end because their parents are gone.
    pub(super) fn answered(&mut self) -> (Vec<Key>, Vec<Key>) {
        let (mut absent, mut gone) = (Vec::new(), Vec::new());
        if !std::mem::take(&mut self.looking) {
            return (absent, gone);
        }
        for (parent, children) in &mut self.all {
            match std::mem::take(&mut children.state) {
                State::NotAsked => {}
                State::Located => children.absent = 0,
                State::Asked => {
                    children.absent += 1;
                    absent.push(parent.clone());
                    if children.absent >= CHECKS_WITHOUT_PARENT {
                        gone.push(parent.clone());
                    }
                }
            }
        }
        (absent, gone.iter().flat_map(|parent| self.end(parent)).collect())
    }

    /// Handles the end of a key that is nowhere else: the keys that stayed with it end, too. Returns them.
    pub(super) fn end(&mut self, key: &Key) -> Vec<Key> {
        self.all.remove(key).map_or_else(Vec::new, |children| children.keys.into_iter().collect())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
