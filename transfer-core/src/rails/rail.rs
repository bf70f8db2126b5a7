//! One rail of a link, as its sender sees it: the entries that wait to be posted, and those that are posted and not
//! acknowledged.

use super::grants::GrantNo;
use crate::fabric::{DownReason, GrantAccess, LinkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice};
use crate::plan::GatherList;
use std::collections::VecDeque;

/// The state of a rail's own end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Up,
    /// This side is ending the rail. Arrivals in flight may still be reported.
    Ending,
    /// The rail is dead and drained on this side.
    Down(DownReason),
}

/// An item that is posted to a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A message with its frame.
    Message(Box<[u8]>),
    /// A RAIL_DOWN. It is sent again over another rail as soon as this rail dies, so it is not reposted when the rail
    /// is settled.
    Notice(Box<[u8]>),
    Write {
        sgl: GatherList,
        remote: RemoteSlice,
        immediate: Option<u32>,
    },
    /// An atomic operation. It is posted at once or not at all, because it cannot be repeated.
    Atomic,
}

impl Item {
    /// Returns whether the item uses one of the peer's receive slots, so that the peer counts it as received.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Item::Message(_) | Item::Notice(_) | Item::Write { immediate: Some(_), .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) item: Item,
    /// The number of the user's work that the entry belongs to.
    pub(super) work: Option<u64>,
}

/// A request to the inner fabric that is neither ordered nor repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chore {
    Grant { range: LocalSlice, access: GrantAccess, number: GrantNo },
    Revoke { key: RemoteKey, number: GrantNo },
}

#[derive(Debug)]
pub(super) struct Rail {
    /// The index of the rail's fabric among the inner ones.
    pub(super) fabric: usize,
    /// The id of the inner link.
    pub(super) inner: LinkId,
    pub(super) state: State,
    /// Entries that wait to be posted. On a rail that is down, they wait to be moved to another rail.
    pub(super) queue: VecDeque<Entry>,
    pub(super) chores: VecDeque<Chore>,
    /// Entries that are posted and not acknowledged.
    posted: VecDeque<Entry>,
    /// The number of messages and immediates that were posted, and below it the number of those that are acknowledged.
    counted: u64,
    acknowledged: u64,
    /// The number of the peer's messages and immediates that this side received.
    pub(super) received: u64,
    /// The number of this side's messages and immediates that the peer received. The peer reports it when its end is
    /// dead and drained.
    pub(super) peer_received: Option<u64>,
    /// The rail over which the peer was told that this end is dead and drained.
    pub(super) told_over: Option<usize>,
    /// The posts that the peer did not receive have been moved to another rail.
    pub(super) settled: bool,
    /// The number of bytes of the shares since the last fence; `None` without a share.
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

    /// Returns whether the rail can be used, now or once it is connected.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Connecting | State::Up)
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }

    /// Records that the inner fabric accepted the entry.
    pub(super) fn note_posted(&mut self, entry: Entry) {
        self.counted += u64::from(entry.item.is_counted());
        self.posted.push_back(entry);
    }

    /// Removes the oldest posted entry, which is acknowledged. Returns `None` if nothing is posted.
    pub(super) fn pop_acknowledged(&mut self) -> Option<Entry> {
        let entry = self.posted.pop_front()?;
        self.acknowledged += u64::from(entry.item.is_counted());
        Some(entry)
    }

    /// Returns whether an atomic operation is in flight. It must not be done twice.
    pub(super) fn has_atomics(&self) -> bool {
        self.posted.iter().any(|entry| entry.item == Item::Atomic)
    }

    /// Returns the number of this side's messages and immediates that the peer has certainly received.
    pub(super) fn least_received(&self) -> u64 {
        self.acknowledged
    }

    /// Handles the peer's report that it received `received` messages and immediates over this rail and will receive no
    /// others. Returns the entries up to the last received one, and the rest, in order. Returns `None` if the number is
    /// impossible.
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
    fn entries_behind_the_last_received_are_left() {
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
