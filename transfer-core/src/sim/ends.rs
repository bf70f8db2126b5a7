//! How links come up and go down, and how grants begin and end.

use super::connection::{Event, SideNo, SideState, WorkKind};
use super::world::{Happening, WorldState};
use crate::fabric::{DownReason, LinkId};
use crate::memory::RemoteKey;

impl WorldState {
    pub(super) fn link(&self, connection: usize, side: SideNo) -> LinkId {
        self.connections[connection].sides[side].as_ref().map_or(LinkId(0), |s| s.link)
    }

    pub(super) fn connected(&mut self, connection: usize, side: SideNo) {
        let Some(s) = self.connections[connection].sides[side].as_mut() else { return };
        if s.state == SideState::Begun {
            s.state = SideState::Up;
            let (endpoint, link) = (s.endpoint, s.link);
            self.note(|| format!("{endpoint} {link} is up"));
            self.endpoints[endpoint].events.push_back(Event::Connected(link));
        }
    }

    /// Makes a connection die. Some of the work in flight may still land. Each side learns of the loss at its own time.
    pub(super) fn lose(&mut self, connection: usize, reasons: [DownReason; 2]) {
        let c = &mut self.connections[connection];
        if c.lost {
            return;
        }
        c.lost = true;
        let cut = [self.chance(50), self.chance(50)];
        for (side, reason) in reasons.into_iter().enumerate() {
            let mut at = self.soon();
            if self.chance(20) {
                // Sometimes the side learns of it late, as on verbs when the retries run out.
                at = at + self.conditions.delay * 10;
            }
            let Some(s) = self.connections[connection].sides[side].as_mut() else { continue };
            if cut[side] {
                s.pipe.clear();
                s.cut = true;
            }
            let (endpoint, link) = (s.endpoint, s.link);
            self.note(|| format!("{endpoint} will lose {link}: {reason}"));
            if let Some(s) = self.connections[connection].sides[side].as_mut() {
                s.reason = Some(reason);
            }
            self.schedule(at, Happening::Down { connection, side });
        }
    }

    /// Takes a side down: it is dead and drained, so nothing lands here from now on, and nothing of its memory is read.
    /// A write of this side that may still arrive is gathered first.
    pub(super) fn down(&mut self, connection: usize, side: SideNo) {
        let keep_first = self.chance(50);
        let Some(s) = self.connections[connection].sides[side].as_mut() else { return };
        if s.state == SideState::Down {
            return;
        }
        s.state = SideState::Down;
        let ended = (s.endpoint, s.link);
        s.placed.clear();
        let mut keys: Vec<u32> = s.grants.values().filter(|g| g.has_own_key).map(|g| g.remote.key().0).collect();
        s.grants.clear();
        let (endpoint, link) = (s.endpoint, s.link);
        let reason = s.reason.take().unwrap_or_else(|| DownReason::Lost("gone".into()));
        let mut pipe = std::mem::take(&mut s.pipe);
        pipe.truncate(usize::from(keep_first));
        if let Some(first) = pipe.front_mut()
            && let WorkKind::Write { sgl, gathered, .. } = &mut first.kind
        {
            *gathered = self.gather(endpoint, sgl);
            if gathered.is_none() {
                pipe.clear();
            }
        }
        if let Some(s) = self.connections[connection].sides[side].as_mut() {
            s.pipe = pipe;
        }
        self.retired_keys.append(&mut keys);
        self.lied.remove(&ended);
        self.note(|| format!("{endpoint} {link} is down: {reason}"));
        self.endpoints[endpoint].events.push_back(Event::Down(link, reason));
    }

    pub(super) fn granted(&mut self, connection: usize, side: SideNo, tag: u64) {
        let Some(s) = self.connections[connection].sides[side].as_mut() else { return };
        if s.state != SideState::Up {
            return;
        }
        s.outstanding -= 1;
        let Some(grant) = s.grants.get_mut(&tag) else { return };
        grant.in_force = true;
        let event = Event::Granted(s.link, tag, grant.remote);
        let endpoint = s.endpoint;
        self.endpoints[endpoint].events.push_back(event);
    }

    pub(super) fn revoked(&mut self, connection: usize, side: SideNo, key: RemoteKey, tag: u64) {
        let Some(s) = self.connections[connection].sides[side].as_mut() else { return };
        if s.state != SideState::Up {
            return;
        }
        s.outstanding -= 1;
        let gone = s.grants.remove(&tag).filter(|grant| grant.has_own_key);
        self.retired_keys.extend(gone.map(|grant| grant.remote.key().0));
        let event = Event::Revoked(s.link, key, tag);
        let endpoint = s.endpoint;
        self.endpoints[endpoint].events.push_back(event);
    }
}
