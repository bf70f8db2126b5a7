//! A link with several rails: which rail carries what, and what happens to a rail's posts when it dies.

use super::broken::Broken;
use super::frame::Frame;
use super::grants::{Grants, Outcome};
use super::inbound::Inbound;
use super::rail::{Chore, Entry, Item, Rail, State};
use super::{Out, Report};
use crate::fabric::{DownReason, FabricEvent, LinkId, WorkId};
use crate::memory::RemoteSlice;
use std::collections::VecDeque;

/// The number of entries that may wait on a rail before the link is full.
const MAX_WAITING_PER_RAIL: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Some rail is still connecting, or no rail is up yet.
    Connecting,
    Up,
    /// All rails are being ended, for this reason.
    Ending(DownReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    Write,
    Send,
    /// An atomic operation, with the value of the word before it. The value is 0 until the operation is done.
    Atomic(u64),
}

/// A post of the user.
#[derive(Debug)]
struct Work {
    id: WorkId,
    kind: WorkKind,
    /// The number of its parts that are not done.
    parts: usize,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    /// This side is the initiator and has not got the acceptor's answer yet.
    pub(super) offered: bool,
    pub(super) phase: Phase,
    pub(super) rails: Vec<Rail>,
    /// The rail that carries all messages and immediates of this side. A dead lead is replaced when the peer has
    /// confirmed that its end is dead.
    pub(super) lead: usize,
    next_fence: u64,
    works: VecDeque<Work>,
    works_done: u64,
    pub(super) inbound: Inbound,
    pub(super) grants: Grants,
    broken: Option<Broken>,
}

impl Link {
    pub(super) fn new(id: LinkId, offered: bool, rails: Vec<Rail>, bound: usize, broken: Option<Broken>) -> Link {
        Link {
            id,
            offered,
            phase: Phase::Connecting,
            rails,
            lead: 0,
            next_fence: 0,
            works: VecDeque::new(),
            works_done: 0,
            inbound: Inbound::new(bound),
            grants: Grants::default(),
            broken,
        }
    }

    /// Whether the link has one rail. Its events are then those of the rail.
    pub(super) fn is_single(&self) -> bool {
        self.rails.len() == 1
    }

    pub(super) fn is_dead(&self) -> bool {
        self.rails.iter().all(Rail::is_down)
    }

    /// Whether there is room for one more post.
    pub(super) fn has_room(&self) -> bool {
        self.rails.iter().all(|rail| rail.queue.len() < MAX_WAITING_PER_RAIL)
    }

    /// Returns the rails that can carry a share of a write to `remote`, the lead first. The result is empty if the lead
    /// cannot.
    pub(super) fn open_rails(&self, remote: &RemoteSlice) -> Vec<usize> {
        let usable = |rail: &usize| self.rails[*rail].is_up() && remote.keys.rail(*rail).is_some();
        if !usable(&self.lead) {
            return Vec::new();
        }
        let others = (0..self.rails.len()).filter(|rail| *rail != self.lead && usable(rail));
        std::iter::once(self.lead).chain(others).collect()
    }

    /// Returns the number of the next work.
    pub(super) fn next_work(&self) -> u64 {
        self.works_done + self.works.len() as u64
    }

    pub(super) fn add_work(&mut self, id: WorkId, kind: WorkKind, parts: usize) {
        self.works.push_back(Work { id, kind, parts });
    }

    /// Puts a share into a rail's queue. The receiver learns of its arrival only by a fence.
    pub(super) fn queue_share(&mut self, rail: usize, entry: Entry, len: u64) {
        let rail = &mut self.rails[rail];
        rail.unfenced = Some(rail.unfenced.unwrap_or(0).saturating_add(len));
        rail.queue.push_back(entry);
    }

    fn control(&mut self, rail: usize, frame: Frame<'_>) {
        self.rails[rail].queue.push_back(Entry { item: Item::Message(frame.encode()), work: None });
    }

    /// Makes the receiver hold the next post back until all shares that are queued or posted now have arrived.
    pub(super) fn fence(&mut self) {
        let first = self.next_fence;
        for rail in 0..self.rails.len() {
            // The lead has unfenced bytes only of shares that it carried before it became the lead.
            let Some(bytes) = self.rails[rail].unfenced.take() else { continue };
            if self.broken == Some(Broken::ForgetsFences) {
                continue;
            }
            self.control(rail, Frame::Fence { number: self.next_fence, bytes });
            self.next_fence += 1;
        }
        // There is at most one fence for each rail.
        let count = u8::try_from(self.next_fence - first).unwrap_or(u8::MAX);
        if count > 0 {
            self.control(self.lead, Frame::Wait { first, count });
        }
    }

    fn work_mut(&mut self, number: Option<u64>) -> Option<&mut Work> {
        let place = number?.checked_sub(self.works_done)?;
        self.works.get_mut(usize::try_from(place).ok()?)
    }

    fn part_done(&mut self, work: Option<u64>) {
        if let Some(work) = self.work_mut(work) {
            work.parts = work.parts.saturating_sub(1);
        }
    }

    /// Reports the finished works at the front of the queue, in posting order.
    fn report_done(&mut self, out: &mut Out) {
        while let Some(Work { id, kind, parts: 0 }) = self.works.front() {
            out.reports.push_back(Report::Done { link: self.id, work: *id, kind: *kind });
            self.works.pop_front();
            self.works_done += 1;
        }
    }

    /// Handles the acknowledgement of the oldest post of a rail.
    pub(super) fn acknowledged(&mut self, rail: usize, old: Option<u64>, out: &mut Out) {
        let Some(entry) = self.rails[rail].pop_acknowledged() else { return };
        if let (Some(old), Some(work)) = (old, self.work_mut(entry.work)) {
            work.kind = WorkKind::Atomic(old);
        }
        self.part_done(entry.work);
        self.report_done(out);
    }

    /// Ends the whole link.
    pub(super) fn end(&mut self, reason: DownReason, out: &mut Out) {
        if matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        for rail in 0..self.rails.len() {
            self.end_rail(rail, &reason, out);
        }
        self.phase = Phase::Ending(reason);
    }

    /// Begins to end a rail. An event that the rail is dead and drained will follow.
    pub(super) fn end_rail(&mut self, rail: usize, reason: &DownReason, out: &mut Out) {
        let rail = &mut self.rails[rail];
        if rail.is_live() {
            rail.state = State::Ending;
            out.disconnects.push((rail.fabric, rail.inner, reason.clone()));
        }
    }

    /// Handles the acceptor's answer, which has `count` of the offered rails. Returns the surplus rails.
    pub(super) fn answered(&mut self, count: usize, out: &mut Out) -> Vec<Rail> {
        self.offered = false;
        let spare = self.rails.split_off(count);
        for rail in 0..count {
            if self.rails[rail].is_down() {
                self.confirm(rail);
            }
        }
        self.check_connected(out);
        spare
    }

    pub(super) fn connected(&mut self, rail: usize, out: &mut Out) {
        if self.rails[rail].state == State::Connecting {
            self.rails[rail].state = State::Up;
        }
        self.check_connected(out);
    }

    /// Reports the link as connected once every rail is up or down and at least one is up.
    fn check_connected(&mut self, out: &mut Out) {
        let settled = self.rails.iter().all(|rail| rail.is_up() || rail.is_down());
        if self.phase != Phase::Connecting || !settled || self.is_dead() {
            return;
        }
        self.phase = Phase::Up;
        out.reports.push_back(Report::Connected { link: self.id });
        for rail in 0..self.rails.len() {
            if let State::Down(reason) = &self.rails[rail].state {
                out.reports.push_back(self.rail_down_report(rail, reason.clone()));
            }
        }
    }

    fn rail_down_report(&self, rail: usize, reason: DownReason) -> Report {
        let left = self.rails.iter().filter(|rail| !rail.is_down()).count();
        Report::RailDown { link: self.id, rail, reason, left }
    }

    /// Handles the end of a rail: this side's end is dead and drained.
    pub(super) fn down(&mut self, rail: usize, reason: &DownReason, out: &mut Out) {
        self.rails[rail].state = State::Down(reason.clone());
        self.rails[rail].chores.clear();
        if matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        // A broken contract ends the link, not only the rail.
        let fatal = matches!(reason, DownReason::Violation(_) | DownReason::Refused(_));
        if self.is_dead() || fatal {
            return self.end(reason.clone(), out);
        }
        if self.rails[rail].has_atomics() {
            let why = format!("an operation on a word was under way on rail {rail}, and {reason}");
            return self.end(DownReason::Lost(why), out);
        }
        if self.offered {
            // The peer cannot be told before it has answered the offer.
            return;
        }
        for outcome in self.grants.rail_down(rail) {
            self.grant_outcome(outcome, out);
        }
        if self.phase == Phase::Up {
            out.reports.push_back(self.rail_down_report(rail, reason.clone()));
        }
        self.check_connected(out);
        if self.broken != Some(Broken::ConfirmsUndrained) || self.rails[rail].peer_received.is_none() {
            self.confirm(rail);
        }
        // Confirmations that were sent over this rail may not have arrived. They are sent again at once. If they waited
        // for the confirmation of this rail, the two sides could wait for each other.
        for told in 0..self.rails.len() {
            if self.rails[told].told_over == Some(rail) {
                self.confirm(told);
            }
        }
        self.hand_over_undelivered(rail, out);
    }

    /// Tells the peer that this side's end of a rail is dead and drained, and how many messages it received there.
    fn confirm(&mut self, rail: usize) {
        let number = u8::try_from(rail).unwrap_or(u8::MAX);
        let received = self.rails[rail].received;
        let over = self.live_rail();
        self.rails[rail].told_over = over;
        if let Some(over) = over {
            let item = Item::Notice(Frame::RailDown { rail: number, received }.encode());
            self.rails[over].queue.push_back(Entry { item, work: None });
        }
    }

    /// Returns the lead if it is live, else the lowest live rail.
    fn live_rail(&self) -> Option<usize> {
        let lowest = || self.rails.iter().position(Rail::is_live);
        if self.rails[self.lead].is_live() { Some(self.lead) } else { lowest() }
    }

    /// Handles RAIL_DOWN: the peer's end of a rail is dead and drained, and it received `received` messages and
    /// immediates there.
    fn peer_down(&mut self, over: usize, rail: u8, received: u64, out: &mut Out) -> Result<(), String> {
        let number = usize::from(rail);
        match self.rails.get_mut(number) {
            // The peer repeats the frame if the rail that carried it died.
            Some(rail) if number != over && rail.peer_received.is_none_or(|before| before == received) => {
                rail.peer_received = Some(received);
            }
            _ => return Err(format!("it says on rail {over} that rail {rail} is down after {received} messages")),
        }
        if self.broken == Some(Broken::ConfirmsUndrained) && !self.rails[number].is_down() {
            self.confirm(number);
        }
        self.end_rail(number, &DownReason::Closed("its other end is down".into()), out);
        self.hand_over_undelivered(number, out);
        Ok(())
    }

    /// If both ends of a rail are dead and drained, moves the posts that the peer did not receive to another rail.
    fn hand_over_undelivered(&mut self, rail: usize, out: &mut Out) {
        let from = &mut self.rails[rail];
        if !from.is_down() || from.settled {
            return;
        }
        let mut confirmed = from.peer_received;
        if self.broken == Some(Broken::RedoesUnconfirmed) {
            confirmed = confirmed.or(Some(from.least_received()));
        }
        let (Some(received), Some(to)) = (confirmed, self.live_rail()) else { return };
        let from = &mut self.rails[rail];
        let Some((came, left)) = from.split_at_received(received) else {
            let why = format!("it received {received} messages over rail {rail}, which is not what was sent");
            return self.end(DownReason::Violation(why), out);
        };
        let unfenced = from.unfenced.take();
        for entry in came {
            self.part_done(entry.work);
        }
        self.rails[to].queue.extend(left);
        if rail == self.lead {
            self.lead = to;
        } else if to != self.lead
            && let Some(bytes) = unfenced
        {
            // The lead needs no fence for the posts that it takes over, because later posts are queued behind them.
            let to = &mut self.rails[to];
            to.unfenced = Some(to.unfenced.unwrap_or(0).saturating_add(bytes));
        }
        self.report_done(out);
    }

    /// Checks that an arrival on this rail is in the link's order. The peer may change to another rail only after this
    /// side has confirmed that the previous one is dead.
    fn in_order(&mut self, rail: usize) -> Result<(), String> {
        let lead = self.inbound.lead;
        if rail != lead {
            if !self.rails[lead].is_down() {
                return Err(format!("it turns to rail {rail} while rail {lead} is alive"));
            }
            self.inbound.lead = rail;
        }
        Ok(())
    }

    /// Returns whether arrivals in the link's order are delivered at once.
    fn is_clear(&self) -> bool {
        self.phase == Phase::Up && self.inbound.is_clear()
    }

    /// Handles a message of the peer. `copies` is how many times a processor copies each byte that arrives over this
    /// rail.
    pub(super) fn message(
        &mut self,
        rail: usize,
        bytes: &[u8],
        copies: u64,
        out: &mut Out,
        sink: &mut dyn FnMut(FabricEvent<'_>),
    ) -> Result<(), String> {
        self.rails[rail].received += 1;
        let Some(frame) = Frame::decode(bytes) else { return Err("a message of no known kind".into()) };
        match frame {
            Frame::User(bytes) => {
                self.in_order(rail)?;
                if self.is_clear() {
                    sink(FabricEvent::Message { link: self.id, bytes });
                    return Ok(());
                }
                self.inbound.message(bytes)
            }
            Frame::Wait { first, count } => {
                self.in_order(rail)?;
                self.inbound.wait(first, count)
            }
            Frame::Fence { number, bytes } => self.inbound.fence(number, bytes.saturating_mul(copies)),
            Frame::RailDown { rail: which, received } => self.peer_down(rail, which, received, out),
        }
    }

    pub(super) fn immediate(
        &mut self,
        rail: usize,
        (value, len_bytes, copied): (u32, u64, u64),
        sink: &mut dyn FnMut(FabricEvent<'_>),
    ) -> Result<(), String> {
        self.rails[rail].received += 1;
        self.in_order(rail)?;
        if self.is_clear() {
            let copied = copied.saturating_add(self.inbound.take_copied());
            sink(FabricEvent::Immediate { link: self.id, value, len_bytes, copied });
            return Ok(());
        }
        self.inbound.immediate(value, len_bytes, copied)
    }

    /// Delivers held arrivals as far as their fences have arrived, once the link is up.
    pub(super) fn deliver(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) {
        if self.phase == Phase::Up {
            self.inbound.deliver(self.id, sink);
        }
    }

    /// Puts requests into the queues of their rails.
    pub(super) fn ask(&mut self, asks: Vec<(usize, Chore)>) {
        for (rail, chore) in asks {
            // A rail that is down has no grants.
            if !self.rails[rail].is_down() {
                self.rails[rail].chores.push_back(chore);
            }
        }
    }

    pub(super) fn grant_outcome(&mut self, outcome: Outcome, out: &mut Out) {
        let link = self.id;
        match outcome {
            Outcome::Granted { tag, remote } => out.reports.push_back(Report::Granted { link, tag, remote }),
            Outcome::Revoked { key, tag, times } => {
                out.reports.extend((0..times).map(|_| Report::Revoked { link, key, tag }));
            }
            Outcome::Refused => self.end(DownReason::Closed("no rail could open a range".into()), out),
        }
    }
}
