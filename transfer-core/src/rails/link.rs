//! A link of several rails: which rail carries what, and what becomes of it when one dies.

use super::broken::Broken;
use super::frame::Frame;
use super::grants::{Grants, Outcome};
use super::inbound::Inbound;
use super::rail::{Chore, Entry, Item, Rail, State};
use super::{Out, Report};
use crate::fabric::{DownReason, FabricEvent, LinkId, WorkId};
use crate::memory::RemoteSlice;
use std::collections::VecDeque;

/// How many entries may wait for room on a rail before the link is full.
const BACKLOG: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Until no rail is connecting any more and one at least is up.
    Connecting,
    Up,
    /// All rails are being ended, for this reason.
    Ending(DownReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    Write,
    Send,
    /// And what the word held before.
    Atomic(u64),
}

/// Something that the user posted.
#[derive(Debug)]
struct Work {
    id: WorkId,
    kind: WorkKind,
    /// How many of its parts are not done.
    parts: usize,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    /// The acceptor's answer has not come.
    pub(super) offered: bool,
    pub(super) phase: Phase,
    pub(super) rails: Vec<Rail>,
    /// The rail that carries all messages and immediates of this side. Where it is down: until the peer has confirmed that.
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

    /// Its events are those of its only rail.
    pub(super) fn is_single(&self) -> bool {
        self.rails.len() == 1
    }

    pub(super) fn is_dead(&self) -> bool {
        self.rails.iter().all(Rail::is_down)
    }

    /// Whether there is room for one more post.
    pub(super) fn has_room(&self) -> bool {
        self.rails.iter().all(|rail| rail.queue.len() < BACKLOG)
    }

    /// Rails over which a share of a write to `remote` can go, the lead first.
    pub(super) fn open_rails(&self, remote: &RemoteSlice) -> Vec<usize> {
        let usable = |rail: &usize| self.rails[*rail].is_up() && remote.keys.rail(*rail).is_some();
        if !usable(&self.lead) {
            return Vec::new();
        }
        let others = (0..self.rails.len()).filter(|rail| *rail != self.lead && usable(rail));
        std::iter::once(self.lead).chain(others).collect()
    }

    /// The number of the next work.
    pub(super) fn next_work(&self) -> u64 {
        self.works_done + self.works.len() as u64
    }

    pub(super) fn add_work(&mut self, id: WorkId, kind: WorkKind, parts: usize) {
        self.works.push_back(Work { id, kind, parts });
    }

    /// Puts a share in a rail's queue. Only a fence tells when it has come.
    pub(super) fn queue_share(&mut self, rail: usize, entry: Entry, len: u64) {
        let rail = &mut self.rails[rail];
        rail.unfenced = Some(rail.unfenced.unwrap_or(0).saturating_add(len));
        rail.queue.push_back(entry);
    }

    fn control(&mut self, rail: usize, frame: Frame<'_>) {
        self.rails[rail].queue.push_back(Entry { item: Item::Message(frame.encode()), work: None });
    }

    /// What is posted next must not be heard before what all rails carry now has come.
    pub(super) fn fence(&mut self) {
        let first = self.next_fence;
        for rail in 0..self.rails.len() {
            // The lead has some where it carried shares before it was the lead.
            let Some(bytes) = self.rails[rail].unfenced.take() else { continue };
            if self.broken == Some(Broken::ForgetsFences) {
                continue;
            }
            self.control(rail, Frame::Fence { number: self.next_fence, bytes });
            self.next_fence += 1;
        }
        // At most as many as rails.
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

    /// Reports works that are done, in the order in which they were posted.
    fn report_done(&mut self, out: &mut Out) {
        while let Some(Work { id, kind, parts: 0 }) = self.works.front() {
            out.reports.push_back(Report::Done { link: self.id, work: *id, kind: *kind });
            self.works.pop_front();
            self.works_done += 1;
        }
    }

    /// The first of a rail's posts is acknowledged.
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

    /// Ends a rail of which more is heard: that it is dead and drained.
    pub(super) fn end_rail(&mut self, rail: usize, reason: &DownReason, out: &mut Out) {
        let rail = &mut self.rails[rail];
        if rail.is_live() {
            rail.state = State::Ending;
            out.disconnects.push((rail.fabric, rail.inner, reason.clone()));
        }
    }

    /// The acceptor has so many of the offered rails. Answers those that are too many.
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

    /// Where it is known of every rail whether it has come up.
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

    /// This side's end of a rail is dead and drained.
    pub(super) fn down(&mut self, rail: usize, reason: &DownReason, out: &mut Out) {
        self.rails[rail].state = State::Down(reason.clone());
        self.rails[rail].chores.clear();
        if matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        // A broken contract ends the link, not a rail of it.
        let fatal = matches!(reason, DownReason::Violation(_) | DownReason::Refused(_));
        if self.is_dead() || fatal {
            return self.end(reason.clone(), out);
        }
        if self.rails[rail].has_atomics() {
            let why = format!("an operation on a word was under way on rail {rail}, and {reason}");
            return self.end(DownReason::Lost(why), out);
        }
        if self.offered {
            // Nobody can be told yet.
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
        // What was told over this rail may not have come. It is told again at once: were it to wait for the confirmation of this
        // rail, two sides could wait for each other.
        for told in 0..self.rails.len() {
            if self.rails[told].told_over == Some(rail) {
                self.confirm(told);
            }
        }
        self.hand_over_undelivered(rail, out);
    }

    /// Tells the peer that this side's end of a rail is dead and drained, and what came over it.
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

    /// The lead where it lives, else the lowest that does.
    fn live_rail(&self) -> Option<usize> {
        let lowest = || self.rails.iter().position(Rail::is_live);
        if self.rails[self.lead].is_live() { Some(self.lead) } else { lowest() }
    }

    /// The peer's end of a rail is dead and drained, and it received so many messages and immediates there.
    fn peer_down(&mut self, over: usize, rail: u8, received: u64, out: &mut Out) -> Result<(), String> {
        let number = usize::from(rail);
        match self.rails.get_mut(number) {
            // It is told again where the rail that it was told over died.
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

    /// Where both ends of a rail are dead and drained: gives what the peer did not receive to another rail.
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
            // The lead needs no fence for what it takes over: what is posted later is behind it.
            let to = &mut self.rails[to];
            to.unfenced = Some(to.unfenced.unwrap_or(0).saturating_add(bytes));
        }
        self.report_done(out);
    }

    /// Whether what comes on this rail comes in the link's order. The peer turns to another rail when this side has confirmed that the
    /// one before is dead.
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

    /// Whether what comes in order is handed on at once.
    fn is_clear(&self) -> bool {
        self.phase == Phase::Up && self.inbound.is_clear()
    }

    /// A message of the peer. `copies`: how often a processor copies each byte that comes over this rail.
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

    /// Hands on what waits for nothing any more.
    pub(super) fn deliver(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) {
        if self.phase == Phase::Up {
            self.inbound.deliver(self.id, sink);
        }
    }

    /// Puts what is asked of rails in their queues.
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
