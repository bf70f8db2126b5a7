//! One rail of a link, as its sender sees it: what waits to be posted, and what is posted and not acknowledged.

use super::grants::GrantNo;
use crate::fabric::{DownReason, GrantAccess, LinkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice};
use crate::plan::GatherList;
use std::collections::VecDeque;

/// Where a rail's own end is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Up,
    /// This side ends it; what is under way may still come.
    Ending,
    /// Dead and drained on this side.
    Down(DownReason),
}

/// What is posted to a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// With its frame.
    Message(Box<[u8]>),
    /// A RAIL_DOWN. Told over another rail as soon as this one dies, and not done again when it is settled.
    Notice(Box<[u8]>),
    Write {
        sgl: GatherList,
        remote: RemoteSlice,
        immediate: Option<u32>,
    },
    /// Posted at once or not at all; it cannot be done again.
    Atomic,
}

impl Item {
    /// Whether it uses one of the peer's receive slots, and the peer so counts it.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Item::Message(_) | Item::Notice(_) | Item::Write { immediate: Some(_), .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) item: Item,
    /// The number of the user's work that it belongs to.
    pub(super) work: Option<u64>,
}

/// Asked of the inner fabric, and neither ordered nor done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chore {
    Grant { range: LocalSlice, access: GrantAccess, number: GrantNo },
    Revoke { key: RemoteKey, number: GrantNo },
}

#[derive(Debug)]
pub(super) struct Rail {
    /// The place of its fabric among the inner ones.
    pub(super) fabric: usize,
    /// The inner fabric's name for it.
    pub(super) inner: LinkId,
    pub(super) state: State,
    /// Waits to be posted. On a rail that is down: to be given to another.
    pub(super) queue: VecDeque<Entry>,
    pub(super) chores: VecDeque<Chore>,
    /// Posted and not acknowledged.
    posted: VecDeque<Entry>,
    /// How many messages and immediates were posted, and how many of those are acknowledged.
    counted: u64,
    acknowledged: u64,
    /// How many of the peer's came.
    pub(super) received: u64,
    /// How many of ours the peer says that it received, once its end is dead and drained.
    pub(super) peer_received: Option<u64>,
    /// The rail over which the peer was told that this one's end here is dead and drained.
    pub(super) told_over: Option<usize>,
    /// What was not received has been given to another rail.
    pub(super) settled: bool,
    /// It carried a share since its last fence, and how many bytes.
    pub(super) unfenced: Option<u64>,
}

impl Rail {
    pub(super) fn new(fabric: usize, inner: LinkId) -> Rail {
        Rail {
            fabric,
            inner,
            state: State::Connecting,
            queue: VecDeque::new(),
            chores: VecDeque::new(),
            posted: VecDeque::new(),
            counted: 0,
            acknowledged: 0,
            received: 0,
            peer_received: None,
            told_over: None,
            settled: false,
            unfenced: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// It can be used, now or when it is connected.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Connecting | State::Up)
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }

    /// The inner fabric took it.
    pub(super) fn note_posted(&mut self, entry: Entry) {
        self.counted += u64::from(entry.item.is_counted());
        self.posted.push_back(entry);
    }

    /// The first of what is posted is acknowledged. `None` where nothing is.
    pub(super) fn pop_acknowledged(&mut self) -> Option<Entry> {
        let entry = self.posted.pop_front()?;
        self.acknowledged += u64::from(entry.item.is_counted());
        Some(entry)
    }

    /// Whether something is under way that must not be done twice.
    pub(super) fn has_atomics(&self) -> bool {
        self.posted.iter().any(|entry| entry.item == Item::Atomic)
    }

    /// How many of ours the peer has received for certain.
    pub(super) fn least_received(&self) -> u64 {
        self.acknowledged
    }

    /// The peer received `received` messages and immediates over this rail, and no more will come. Answers what came with or
    /// before them, and what did not come, in order. `None` for a number that cannot be.
    pub(super) fn split_at_received(&mut self, received: u64) -> Option<(Vec<Entry>, Vec<Entry>)> {
        if received < self.acknowledged || received > self.counted {
            return None;
        }
        let mut came = Vec::new();
        while self.acknowledged < received {
            came.push(self.pop_acknowledged()?);
        }
        let left = self.posted.drain(..).chain(self.queue.drain(..));
        let left = left.filter(|entry| !matches!(entry.item, Item::Notice(_))).collect();
        self.settled = true;
        Some((came, left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RemoteKey;

    fn rail(items: &[Item]) -> Rail {
        let mut rail = Rail::new(0, LinkId(1));
        for (i, item) in items.iter().enumerate() {
            rail.note_posted(Entry { item: item.clone(), work: Some(i as u64) });
        }
        rail
    }

    fn numbers(entries: &[Entry]) -> Vec<u64> {
        entries.iter().filter_map(|entry| entry.work).collect()
    }

    #[test]
    fn what_lies_behind_the_last_received_is_left() {
        let write =
            Item::Write { sgl: GatherList::new(), remote: RemoteSlice::new(0, 0, RemoteKey(1)), immediate: None };
        let message = Item::Message(Box::new([1]));
        let items = [write.clone(), message.clone(), write.clone(), message.clone(), write];
        for (received, came, left) in
            [(0, vec![], vec![0, 1, 2, 3, 4]), (1, vec![0, 1], vec![2, 3, 4]), (2, vec![0, 1, 2, 3], vec![4])]
        {
            let mut rail = rail(&items);
            let (a, b) = rail.split_at_received(received).unwrap();
            assert_eq!((numbers(&a), numbers(&b)), (came, left));
        }
        assert_eq!(rail(&items).split_at_received(3), None);
        let mut acknowledged = rail(&items);
        for _ in 0..2 {
            acknowledged.pop_acknowledged();
        }
        assert_eq!(acknowledged.split_at_received(0), None);
        let (came, left) = acknowledged.split_at_received(1).unwrap();
        assert_eq!((numbers(&came), numbers(&left)), (vec![], vec![2, 3, 4]));
    }
}
