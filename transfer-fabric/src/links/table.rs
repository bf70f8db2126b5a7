//! The table of a fabric's links.

use super::Sink;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, FabricError, FabricEvent, LinkId, PostError};

/// A link that has a connection: it greets, is up, or ends.
pub(crate) trait FabricLink {
    fn is_up(&self) -> bool;

    /// The time at which [`LinkTable::late`] returns the link.
    fn deadline(&self) -> Option<Instant>;
}

/// A link that has no connection yet.
pub(crate) trait WaitingLink {
    /// The time at which the link ends.
    fn deadline(&self) -> Option<Instant>;

    /// What has not happened when the deadline passes.
    fn missing(&self) -> &'static str {
        "the peer did not come"
    }
}

fn not_in_time(what: &str) -> DownReason {
    DownReason::NotConnected(format!("{what} in time"))
}

/// Returns the reason for a link whose peer has not answered its greeting by the deadline.
pub(crate) fn no_answer() -> DownReason {
    not_in_time("the peer did not answer")
}

/// The links `L` of a fabric and its waiting links `W`, their deadlines, and the events that wait to be reported.
///
/// A link is first [waiting](Self::wait), or [inserted](Self::insert) at once. It is [removed](Self::remove) when the
/// fabric has let go of everything that belongs to it, and then reported as [down](Self::down).
#[derive(Debug)]
pub(crate) struct LinkTable<L, W> {
    /// Looked up many times for each message. A tree finds one of few in half of the time that a hash takes.
    links: BTreeMap<LinkId, L>,
    waiting: HashMap<LinkId, W>,
    events: VecDeque<FabricEvent<'static>>,
    /// No deadline passes before this moment.
    alarm: Option<Instant>,
    /// The calls of [`LinkTable::due`] until it reads the clock again.
    unread: u8,
}

/// How many times deadlines are looked for until the clock is read. It is read before each sleep, which ends at the next deadline, and a fabric
/// that is polled is polled again within microseconds.
const LOOKS_PER_READING: u8 = 8;

impl<L: FabricLink, W: WaitingLink> LinkTable<L, W> {
    pub(crate) fn new() -> LinkTable<L, W> {
        LinkTable { waiting: HashMap::new(), links: BTreeMap::new(), events: VecDeque::new(), alarm: None, unread: 0 }
    }

    /// Checks that no link has this id.
    pub(crate) fn expect_new(&self, link: LinkId, what: &'static str) -> Result<(), FabricError> {
        let known = self.waiting.contains_key(&link) || self.links.contains_key(&link);
        if known { Err(FabricError::WrongState { link, what }) } else { Ok(()) }
    }

    /// Adds a link without a connection, or replaces what it waits for.
    pub(crate) fn wait(&mut self, link: LinkId, waiting: W) {
        self.waiting.insert(link, waiting);
    }

    pub(crate) fn waiting(&mut self, link: LinkId) -> Option<&mut W> {
        self.waiting.get_mut(&link)
    }

    pub(crate) fn is_any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the first result of `find` for a waiting link.
    pub(crate) fn find_waiting<T>(&self, find: impl Fn(LinkId, &W) -> Option<T>) -> Option<T> {
        self.waiting.iter().find_map(|(link, waiting)| find(*link, waiting))
    }

    /// Takes a waiting link out of the table, and reports nothing.
    pub(crate) fn stop_waiting(&mut self, link: LinkId) -> Option<W> {
        self.waiting.remove(&link)
    }

    /// Ends a link that waits. Returns the reason if no such link waits.
    pub(crate) fn end_waiting(&mut self, link: LinkId, reason: DownReason) -> Option<DownReason> {
        if self.waiting.remove(&link).is_none() {
            return Some(reason);
        }
        self.down(link, reason);
        None
    }

    /// Ends all links that wait.
    pub(crate) fn end_all_waiting(&mut self, reason: &DownReason) {
        self.events
            .extend(self.waiting.drain().map(|(link, _)| FabricEvent::LinkDown { link, reason: reason.clone() }));
    }

    pub(crate) fn insert(&mut self, id: LinkId, link: L) {
        self.links.insert(id, link);
    }

    pub(crate) fn get(&self, id: LinkId) -> Option<&L> {
        self.links.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut L> {
        self.links.get_mut(&id)
    }

    /// Returns the link, if it is connected.
    pub(crate) fn up(&mut self, id: LinkId) -> Result<&mut L, PostError> {
        self.links.get_mut(&id).filter(|link| link.is_up()).ok_or(PostError::LinkDown(id))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &L> {
        self.links.values()
    }

    /// Returns the connected links.
    pub(crate) fn all_up(&mut self) -> impl Iterator<Item = &mut L> {
        self.links.values_mut().filter(|link| link.is_up())
    }

    /// Returns the ids of the links that have a connection.
    pub(crate) fn ids(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Returns the number of links that have a connection.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Takes a link out of the table, and reports nothing.
    pub(crate) fn remove(&mut self, id: LinkId) -> Option<L> {
        self.links.remove(&id)
    }

    /// Reports the end of a link.
    pub(crate) fn down(&mut self, link: LinkId, reason: DownReason) {
        self.report(FabricEvent::LinkDown { link, reason });
    }

    /// Has an event reported by the next [`LinkTable::drain_events`].
    pub(crate) fn report(&mut self, event: FabricEvent<'static>) {
        self.events.push_back(event);
    }

    /// Reports the events that wait. Returns whether there were any.
    pub(crate) fn drain_events(&mut self, sink: &mut Sink<'_>) -> bool {
        if self.events.is_empty() {
            return false;
        }
        self.events.drain(..).for_each(sink);
        true
    }

    /// Returns the moment `after` from now, and has deadlines checked then.
    pub(crate) fn deadline_after(&mut self, after: Duration) -> Instant {
        let at = Instant::now() + after;
        self.alarm = Some(self.alarm.map_or(at, |alarm| alarm.min(at)));
        at
    }

    /// Has deadlines checked `after` from now, and calls `set` with that moment to set a deadline of the link.
    pub(crate) fn set_deadline(&mut self, id: LinkId, after: Duration, set: impl FnOnce(&mut L, Instant)) {
        let at = self.deadline_after(after);
        if let Some(link) = self.links.get_mut(&id) {
            set(link, at);
        }
    }

    /// Returns the time at which deadlines have to be checked, before a sleep that ends then.
    pub(crate) fn alarm(&mut self) -> Option<Instant> {
        self.unread = 0;
        self.alarm
    }

    /// Returns the time now, if a deadline may have passed, at the latest in the [`LOOKS_PER_READING`]th call after that.
    pub(crate) fn due(&mut self) -> Option<Instant> {
        let alarm = self.alarm?;
        if let Some(left) = self.unread.checked_sub(1) {
            self.unread = left;
            return None;
        }
        let due = Some(Instant::now()).filter(|now| alarm <= *now);
        if due.is_none() {
            self.unread = LOOKS_PER_READING - 1;
        }
        due
    }

    /// Ends the waiting links whose deadline has passed. Returns the others whose deadline has passed: the fabric knows
    /// what is due.
    pub(crate) fn late(&mut self, now: Instant) -> Vec<LinkId> {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        let late = self.waiting.extract_if(|_, waiting| passed(waiting.deadline()));
        self.events
            .extend(late.map(|(link, waiting)| FabricEvent::LinkDown { link, reason: not_in_time(waiting.missing()) }));
        self.links.iter().filter(|(_, link)| passed(link.deadline())).map(|(id, _)| *id).collect()
    }

    /// Sets the alarm, once everything that was due was handled. `other` is the next deadline of the fabric that
    /// belongs to no link.
    pub(crate) fn set_alarm(&mut self, other: Option<Instant>) {
        let waiting = self.waiting.values().filter_map(WaitingLink::deadline);
        self.alarm = waiting.chain(self.links.values().filter_map(FabricLink::deadline)).chain(other).min();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A link or a waiting link with this deadline. It is up if it has none.
    pub(in crate::links) struct Until(Option<Instant>);

    impl FabricLink for Until {
        fn is_up(&self) -> bool {
            self.0.is_none()
        }

        fn deadline(&self) -> Option<Instant> {
            self.0
        }
    }

    impl WaitingLink for Until {
        fn deadline(&self) -> Option<Instant> {
            self.0
        }
    }

    type Table = LinkTable<Until, Until>;

    /// Returns the links that are reported as down, with the texts of the reasons.
    fn downs(table: &mut Table) -> Vec<(LinkId, String)> {
        let mut downs = Vec::new();
        let any = table.drain_events(&mut |event| match event {
            FabricEvent::LinkDown { link, reason } => downs.push((link, reason.to_string())),
            other => panic!("{other:?}"),
        });
        assert_eq!(any, !downs.is_empty());
        downs.sort();
        downs
    }

    #[test]
    fn an_id_is_known_from_the_wait_until_the_link_is_removed() {
        let (mut table, link) = (Table::new(), LinkId(3));
        let is_new = |table: &Table| table.expect_new(link, "offer").is_ok();
        assert!(is_new(&table));
        table.wait(link, Until(None));
        assert!(!is_new(&table) && table.is_any_waiting() && table.is_empty());
        assert!(table.stop_waiting(link).is_some());
        assert!(is_new(&table) && !table.is_any_waiting());
        table.insert(link, Until(None));
        assert!(!is_new(&table) && table.len() == 1);
        assert!(table.remove(link).is_some());
        assert!(is_new(&table));
        assert_eq!(downs(&mut table), [], "the table reports no end by itself");
    }

    #[test]
    fn only_a_connected_link_can_be_used() {
        let mut table = Table::new();
        table.insert(LinkId(1), Until(None));
        table.insert(LinkId(2), Until(Some(Instant::now())));
        table.wait(LinkId(3), Until(None));
        assert!(table.up(LinkId(1)).is_ok());
        for id in [2, 3, 4].map(LinkId) {
            assert_eq!(table.up(id).err(), Some(PostError::LinkDown(id)));
        }
        assert_eq!(table.all_up().count(), 1);
    }

    #[test]
    fn a_waiting_link_ends_once() {
        let (mut table, link) = (Table::new(), LinkId(3));
        let reason = || DownReason::Closed("done".into());
        table.wait(link, Until(None));
        assert_eq!(table.end_waiting(link, reason()), None);
        assert_eq!(table.end_waiting(link, reason()), Some(reason()), "it does not wait");
        table.wait(LinkId(4), Until(None));
        table.end_all_waiting(&reason());
        let text = reason().to_string();
        assert_eq!(downs(&mut table), [(link, text.clone()), (LinkId(4), text)]);
        assert_eq!(downs(&mut table), []);
    }

    #[test]
    fn late_links_are_found_and_those_that_wait_are_ended() {
        let mut table = Table::new();
        let (now, passed) = (Instant::now() + MINUTE, Instant::now());
        for (id, deadline) in [(1, Some(passed)), (2, Some(now)), (3, Some(now + MINUTE)), (4, None)] {
            table.insert(LinkId(id), Until(deadline));
            table.wait(LinkId(10 + id), Until(deadline));
        }
        let mut late = table.late(now);
        late.sort();
        assert_eq!(late, [LinkId(1), LinkId(2)]);
        assert_eq!(table.len(), 4, "the fabric knows what is due for them");
        let text = not_in_time("the peer did not come").to_string();
        assert_eq!(downs(&mut table), [(LinkId(11), text.clone()), (LinkId(12), text)]);
        assert!(table.waiting(LinkId(13)).is_some() && table.waiting(LinkId(14)).is_some());
    }

    #[test]
    fn the_alarm_is_the_earliest_deadline() {
        let mut table = Table::new();
        assert!(table.alarm().is_none() && table.due().is_none());
        let far = table.deadline_after(2 * MINUTE);
        let near = table.deadline_after(MINUTE);
        table.deadline_after(3 * MINUTE);
        assert_eq!(table.alarm(), Some(near));
        assert_eq!(table.due(), None, "a minute is left");
        let passed = table.deadline_after(Duration::ZERO);
        let looks: Vec<_> = (0..LOOKS_PER_READING).map(|_| table.due()).collect();
        assert!(looks.iter().flatten().all(|now| *now >= passed) && looks.iter().flatten().count() == 1, "{looks:?}");
        let far_again = table.deadline_after(2 * MINUTE);
        assert!(
            far_again > far && table.due().is_some(),
            "until it is handled, a deadline that has passed is found each time"
        );
        table.wait(LinkId(1), Until(Some(far)));
        table.set_alarm(None);
        assert_eq!(table.alarm(), Some(far));
        table.insert(LinkId(2), Until(Some(near)));
        table.set_alarm(Some(far));
        assert_eq!(table.alarm(), Some(near));
        assert_eq!(table.due(), None);
        table.set_alarm(Some(passed));
        assert_eq!(table.alarm(), Some(passed));
        assert!(table.due().is_some(), "the clock is read when the fabric is armed");
    }
}
