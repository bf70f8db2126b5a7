//! The records: one per range, free or used, linked in address order.

/// "No record": the end of a list.
pub(super) const NONE: u32 = u32::MAX;

const FREE: u64 = 1 << 63;

/// One range. Its length is the distance to its neighbour, so it is not stored: 24 bytes a record.
#[derive(Debug, Clone, Copy)]
struct Record {
    /// First granule, and in the top bit whether the range is free.
    start: u64,
    /// Neighbours by address.
    below: u32,
    above: u32,
    /// Neighbours in a list of free ranges. A vacant record uses `list_next` for the list of vacant records.
    list_prev: u32,
    list_next: u32,
}

/// All ranges of a region, in a table of records which never shrinks below its high-water mark.
#[derive(Debug)]
pub(super) struct Records {
    table: Vec<Record>,
    vacant: u32,
    end: u64,
}

impl Records {
    /// Bytes of one record.
    pub(super) const RECORD_BYTES: usize = size_of::<Record>();

    /// The first record is the lowest range for ever: it is merged into, never away.
    pub(super) const LOWEST: u32 = 0;

    /// One free range of `granules`.
    pub(super) fn new(granules: u64) -> Records {
        let all = Record { start: FREE, below: NONE, above: NONE, list_prev: NONE, list_next: NONE };
        Records { table: vec![all], vacant: NONE, end: granules }
    }

    fn at(&self, id: u32) -> &Record {
        &self.table[id as usize]
    }

    fn at_mut(&mut self, id: u32) -> &mut Record {
        &mut self.table[id as usize]
    }

    pub(super) fn start(&self, id: u32) -> u64 {
        self.at(id).start & !FREE
    }

    pub(super) fn len(&self, id: u32) -> u64 {
        let above = self.at(id).above;
        let end = if above == NONE { self.end } else { self.start(above) };
        end - self.start(id)
    }

    pub(super) fn is_free(&self, id: u32) -> bool {
        self.at(id).start & FREE != 0
    }

    pub(super) fn set_free(&mut self, id: u32, free: bool) {
        let record = self.at_mut(id);
        record.start = if free { record.start | FREE } else { record.start & !FREE };
    }

    pub(super) fn below(&self, id: u32) -> u32 {
        self.at(id).below
    }

    pub(super) fn above(&self, id: u32) -> u32 {
        self.at(id).above
    }

    pub(super) fn list_links(&self, id: u32) -> (u32, u32) {
        (self.at(id).list_prev, self.at(id).list_next)
    }

    /// The records of a list, from `head` on.
    pub(super) fn list_from(&self, head: u32) -> impl Iterator<Item = u32> + use<'_> {
        let some = |id: u32| (id != NONE).then_some(id);
        std::iter::successors(some(head), move |id| some(self.at(*id).list_next))
    }

    pub(super) fn set_list_prev(&mut self, id: u32, prev: u32) {
        self.at_mut(id).list_prev = prev;
    }

    pub(super) fn set_list_next(&mut self, id: u32, next: u32) {
        self.at_mut(id).list_next = next;
    }

    /// Whether `id` names a used range that starts at `start`.
    pub(super) fn is_used_at(&self, id: u32, start: u64) -> bool {
        self.table.get(id as usize).is_some_and(|r| r.start == start)
    }

    /// Cuts `id` behind its first `granules`; answers the new, free, unlisted upper part. `None` when the numbers run out.
    pub(super) fn split(&mut self, id: u32, granules: u64) -> Option<u32> {
        let above = self.at(id).above;
        let upper =
            Record { start: (self.start(id) + granules) | FREE, below: id, above, list_prev: NONE, list_next: NONE };
        let new = self.take(upper)?;
        self.at_mut(id).above = new;
        if above != NONE {
            self.at_mut(above).below = new;
        }
        Some(new)
    }

    /// Gives the range of `id`'s upper neighbour to `id`. The neighbour's record is vacant then.
    pub(super) fn absorb_above(&mut self, id: u32) {
        let gone = self.at(id).above;
        let above = self.at(gone).above;
        self.at_mut(id).above = above;
        if above != NONE {
            self.at_mut(above).below = id;
        }
        *self.at_mut(gone) = Record { start: FREE, below: NONE, above: NONE, list_prev: NONE, list_next: self.vacant };
        self.vacant = gone;
    }

    fn take(&mut self, record: Record) -> Option<u32> {
        if self.vacant != NONE {
            let id = self.vacant;
            self.vacant = self.at(id).list_next;
            *self.at_mut(id) = record;
            return Some(id);
        }
        let id = u32::try_from(self.table.len()).ok().filter(|id| *id != NONE)?;
        self.table.push(record);
        Some(id)
    }

    /// Whether so many records can be added.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.table.len() as u64 + more as u64 <= u64::from(NONE)
    }

    /// Bytes the table holds at present.
    pub(super) fn table_bytes(&self) -> usize {
        self.table.capacity() * Records::RECORD_BYTES
    }
}
