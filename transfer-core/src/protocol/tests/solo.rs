//! One node whose peer, fabric and directory are played by the test. Nothing happens without a call of the test.

use super::pair::{POOL_BYTES, bytes, key, name};
use crate::alloc::Allocation;
use crate::fabric::{Capabilities, DownReason, FabricEvent, FabricKind, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::op::{Command, Fetch, OpId, Push, Reply, Request, Reserve};
use crate::protocol::{
    Action, Claim, Control, DirectoryRequest, FabricAction, HostAction, Node, NodeConfig, PeerInfo, Post, SessionId,
    Tenant, Vouches,
};
use crate::tensor::Select;
use crate::time::Time;
use crate::wire::landing::{HEADER_BYTES, Header};
use crate::wire::message::{Body, Message, NameRef, Role};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(super) const LINK: LinkId = LinkId(7);
pub(super) const SESSION: SessionId = SessionId(1);
pub(super) const ARENA: SegmentId = SegmentId(2);
const ARENA_BYTES: u64 = 1 << 20;

/// The test is the peer. These are its numbers for the key `k`, for the worker `me` of this node and for the worker
/// `you` of its own.
pub(super) const KEY: NameRef = NameRef { id: 0, generation: 0 };
pub(super) const ME: NameRef = NameRef { id: 1, generation: 0 };
pub(super) const YOU: NameRef = NameRef { id: 2, generation: 0 };
/// The tenant of the key and of both workers.
pub(super) const OURS: NameRef = NameRef { id: 3, generation: 0 };
pub(super) const OTHERS: NameRef = NameRef { id: 4, generation: 0 };

/// A node `here` with a worker `me`, and a link to a node `there`.
pub(super) struct Solo {
    pub(super) node: Node,
    pub(super) now: Time,
    /// The messages that the node sent.
    pub(super) sent: Vec<Message>,
    pub(super) writes: Vec<WorkId>,
    /// The headers of its writes.
    pub(super) headers: Vec<Header>,
    /// The digests that it has asked for.
    pub(super) digests: Vec<u64>,
    /// The link over which the test acts as the peer.
    pub(super) at: LinkId,
    /// The segments that the node has passed and that the peer has not kept yet.
    pub(super) shares: Vec<SegmentId>,
    /// The tags of the copies that it has asked for.
    pub(super) copies: Vec<u64>,
    grants: VecDeque<(LinkId, LocalSlice, u64)>,
    revokes: VecDeque<(LinkId, RemoteKey, u64)>,
    pub(super) controls: Vec<Control>,
    pub(super) replies: Vec<Reply>,
    /// The segments that are reported as unused.
    pub(super) unused: Vec<SegmentId>,
    /// The answered and lost pings of operators.
    pub(super) ponged: Vec<(u64, Option<String>)>,
    /// The reason with which the node ended the link.
    pub(super) ended: Option<DownReason>,
    taken: Option<Allocation>,
    /// The receive slots that were used on each link.
    unread: BTreeMap<LinkId, u16>,
    keys: u32,
    ops: u64,
}

impl Solo {
    pub(super) fn new(change: impl FnOnce(&mut NodeConfig)) -> Solo {
        let mut config = NodeConfig::new(name("here"), 1);
        change(&mut config);
        let mut node = Node::new(config, LocalSlice { segment: SegmentId(0), offset: 0, len: 64 * HEADER_BYTES });
        node.add_pool(Tenant::User(0), SegmentId(1), POOL_BYTES);
        node.session_opened(SESSION, name("me"), Tenant::User(0), ARENA, ARENA_BYTES);
        let (vouches, passed_over) = (Vouches::ForAll, Vec::new());
        let peer = PeerInfo { name: name("there"), incarnation: 1, receive_slots: 256, vouches, passed_over };
        node.link_up(Time(0), LINK, peer, FabricKind::Sim, Capabilities::new());
        let mut solo = Solo {
            node,
            now: Time(0),
            sent: Vec::new(),
            writes: Vec::new(),
            headers: Vec::new(),
            digests: Vec::new(),
            at: LINK,
            shares: Vec::new(),
            copies: Vec::new(),
            grants: VecDeque::new(),
            revokes: VecDeque::new(),
            controls: Vec::new(),
            replies: Vec::new(),
            unused: Vec::new(),
            ponged: Vec::new(),
            ended: None,
            taken: None,
            unread: BTreeMap::new(),
            keys: 0,
            ops: 0,
        };
        for (number, text) in [(KEY, "k"), (ME, "me"), (YOU, "you"), (OURS, "0"), (OTHERS, "1")] {
            solo.hear(Role::Pull, 0, Body::Name { name: number, text: name(text) });
        }
        solo
    }

    /// Lets a link to another node come up, and acts as that one from here on. Both use the same numbers for names.
    pub(super) fn link_to(&mut self, link: LinkId, node: &str) {
        let (vouches, passed_over) = (Vouches::ForAll, Vec::new());
        let peer = PeerInfo { name: name(node), incarnation: 1, receive_slots: 256, vouches, passed_over };
        self.node.link_up(self.now, link, peer, FabricKind::Sim, Capabilities::new());
        self.drain();
        self.at = link;
        for (number, text) in [(KEY, "k"), (ME, "me"), (YOU, "you"), (OURS, "0"), (OTHERS, "1")] {
            self.hear(Role::Pull, 0, Body::Name { name: number, text: name(text) });
        }
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, long: Duration) {
        self.now = self.now + long;
        self.node.timeout(self.now);
        self.drain();
    }

    /// Takes the node's actions like the driver does, and records them.
    pub(super) fn drain(&mut self) {
        let mut actions = VecDeque::new();
        while self.node.take_actions(&mut actions) {
            for action in actions.drain(..) {
                match action {
                    Action::Post(Post::Send { link, message, .. }) => {
                        *self.unread.entry(link).or_default() += 1;
                        self.sent.push(Message::decode(&message).unwrap());
                    }
                    Action::Post(Post::Write(write)) => {
                        *self.unread.entry(write.link).or_default() += u16::from(write.immediate.is_some());
                        self.writes.push(write.work);
                        self.headers.extend(write.header.and_then(|(_, bytes)| Header::decode(&bytes).ok()));
                    }
                    Action::Post(Post::Grant { link, range, tag, .. }) => self.grants.push_back((link, range, tag)),
                    Action::Post(Post::Revoke { link, key, tag }) => self.revokes.push_back((link, key, tag)),
                    Action::Post(Post::Share { segment, .. }) => self.shares.push(segment),
                    Action::Host(HostAction::Control(control)) => self.controls.push(control),
                    Action::Host(HostAction::Reply { reply, .. }) => self.replies.push(reply),
                    Action::Host(HostAction::Digest { tag, .. }) => self.digests.push(tag),
                    Action::Host(HostAction::Copy { tag, .. }) => self.copies.push(tag),
                    Action::Host(HostAction::SegmentUnused { segment }) => self.unused.push(segment),
                    Action::Host(HostAction::Ponged { token, lost }) => self.ponged.push((token, lost)),
                    Action::Fabric(FabricAction::Disconnect { reason, .. }) => self.ended = Some(reason),
                    _ => {}
                }
            }
        }
        self.node.check().unwrap();
    }

    /// Receives a message of the peer, which also gives back the receive slots that the node has used.
    pub(super) fn hear(&mut self, role: Role, index: u32, body: Body) {
        let credits = self.unread.remove(&self.at).unwrap_or_default();
        let bytes = Message { credits, index, role, body }.encode();
        self.node.fabric_event(self.now, FabricEvent::Message { link: self.at, bytes: &bytes }, None);
        self.drain();
    }

    /// Receives a message of the peer, which gives back only this number of receive slots.
    pub(super) fn hear_greedily(&mut self, credits: u16, body: Body) {
        let bytes = Message { credits, index: 0, role: Role::Pull, body }.encode();
        self.node.fabric_event(self.now, FabricEvent::Message { link: self.at, bytes: &bytes }, None);
        self.drain();
    }

    /// Completes the grants that the node has posted.
    pub(super) fn grant(&mut self) {
        while let Some((link, range, tag)) = self.grants.pop_front() {
            self.keys += 1;
            let remote = RemoteSlice::new(range.offset, range.len, RemoteKey(self.keys));
            self.node.fabric_event(self.now, FabricEvent::Granted { link, tag, remote }, None);
            self.drain();
        }
    }

    pub(super) fn revoke(&mut self) {
        while let Some((link, key, tag)) = self.revokes.pop_front() {
            self.node.fabric_event(self.now, FabricEvent::Revoked { link, key, tag }, None);
            self.drain();
        }
    }

    /// Completes the last of the ends of grants that the node has posted. Returns whether there was one.
    pub(super) fn revoke_last(&mut self) -> bool {
        let Some((link, key, tag)) = self.revokes.pop_back() else { return false };
        self.node.fabric_event(self.now, FabricEvent::Revoked { link, key, tag }, None);
        self.drain();
        true
    }

    /// Receives an immediate: the peer's write with this header has landed.
    pub(super) fn land(&mut self, header: &Header) {
        let (value, len_bytes) = (header.slot.0, HEADER_BYTES + header.body_len);
        let event = FabricEvent::Immediate { link: self.at, value, len_bytes, copied: 0 };
        // Like the driver, pass the header only if the slot is open.
        let bytes = self.node.landing_header(self.at, value).map(|_| header.encode());
        self.node.fabric_event(self.now, event, bytes.as_ref());
        self.drain();
    }

    /// Lets the peer keep the segments that it was passed. Returns whether there were any.
    pub(super) fn keep(&mut self) -> bool {
        let shares = std::mem::take(&mut self.shares);
        for segment in &shares {
            self.node.fabric_event(self.now, FabricEvent::SegmentKept { link: self.at, segment: *segment }, None);
            self.drain();
        }
        !shares.is_empty()
    }

    /// Takes the largest free range of the pool.
    pub(super) fn fill_pool(&mut self) {
        let most = self.node.landing.pools().get(&Tenant::User(0)).map_or(0, |pool| pool.alloc().largest_free());
        if let Some((range, _)) = self.node.landing.allocate(Tenant::User(0), most) {
            self.taken = Some(range);
        }
    }

    pub(super) fn free_pool(&mut self) -> bool {
        let Some(range) = self.taken.take() else { return false };
        self.node.landing.free(Tenant::User(0), range);
        self.drain();
        true
    }

    pub(super) fn has_to_grant(&self) -> bool {
        !self.grants.is_empty()
    }

    pub(super) fn has_to_revoke(&self) -> bool {
        !self.revokes.is_empty()
    }

    pub(super) fn lose_link(&mut self) {
        let reason = DownReason::Lost("gone".into());
        self.node.fabric_event(self.now, FabricEvent::LinkDown { link: self.at, reason }, None);
        self.drain();
    }

    /// Completes the writes that the node has posted.
    pub(super) fn placed(&mut self) {
        for work in std::mem::take(&mut self.writes) {
            self.node.fabric_event(self.now, FabricEvent::WriteDone { link: self.at, work }, None);
            self.drain();
        }
    }

    pub(super) fn request(&mut self, request: Request) {
        self.node.request(self.now, SESSION, request);
        self.drain();
    }

    pub(super) fn command(&mut self, op: OpId, command: Command) {
        self.request(Request::Command { op, command });
    }

    pub(super) fn op(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops)
    }

    /// Lets the worker `me` fetch `k`. The directory says that the key is at node `there`.
    pub(super) fn fetch(&mut self, select: Select) -> OpId {
        let op = self.op();
        let timeout = Duration::from_secs(1);
        self.command(
            op,
            Command::Fetch(Fetch {
                key: key("k"),
                select,
                timeout,
                require: None,
                trace: None,
                watches: false,
                excerpt: None,
                base: None,
            }),
        );
        if self.controls.iter().any(|c| matches!(c, Control::Directory(DirectoryRequest::Resolve { .. }))) {
            self.controls.clear();
            self.node.located(self.now, &key("k"), &name("there"), 1);
            self.drain();
        }
        op
    }

    /// Lets the worker `me` push 8 bytes as `k`.
    pub(super) fn push(&mut self, to: Option<&str>, timeout: Duration) -> OpId {
        let op = self.op();
        let (to, offset) = (to.map(name), op.0 % 1000 * 64);
        self.command(op, Command::Push(Push { to, timeout, ..Push::new(key("k"), bytes(8), offset) }));
        self.answer();
        op
    }

    pub(super) fn reserve(&mut self) {
        let op = self.op();
        let timeout = Duration::from_secs(1);
        self.command(op, Command::Reserve(Reserve { key: key("k"), meta: bytes(8), to: name("you"), timeout }));
        self.answer();
    }

    /// Answers for the directory: the worker `you` is at node `there`, and each claimed key is free.
    pub(super) fn answer(&mut self) {
        for control in std::mem::take(&mut self.controls) {
            match control {
                Control::Directory(DirectoryRequest::ResolveWorker { worker, tenant }) => {
                    self.node.worker_located(self.now, (&worker, &tenant), Some(&name("there")));
                }
                Control::Claim(Claim { key, .. }) => self.node.claimed(self.now, &key, Ok(1)),
                other => self.controls.push(other),
            }
            self.drain();
        }
    }

    /// Returns the last message of that kind.
    pub(super) fn last(&self, name: &str) -> &Message {
        self.sent.iter().rev().find(|m| m.body.name() == name).unwrap()
    }
}
