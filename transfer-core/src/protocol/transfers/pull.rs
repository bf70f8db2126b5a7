//! A request of this node to a peer, and the fetches that wait for its answer.

use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::op::{Content, Destination};
use crate::protocol::ids::{BlobId, OperationId, PullId, SlotId};
use crate::protocol::relays::{Redirect, Spreading};
use crate::protocol::search::Search;
use crate::protocol::tenant::Tenant;
use crate::tensor::{BodyRange, DType, Excerpt, Gathered, Key, Select, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::Header;
use smallvec::{SmallVec, smallvec};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Fetches that one request answers. Usually there is one.
pub(crate) type Readers = SmallVec<[OperationId; 1]>;

/// A request of this node to a peer. It lives until no more data can arrive for it.
pub(crate) struct Pull {
    /// The fetches that the answer is for. They had arrived before the peer was asked. Those that have ended are skipped.
    readers: Readers,
    /// Fetches of the same that have arrived since. The peer may have a newer version by now, so it is asked once more for
    /// all of them.
    next: Readers,
    /// How many of both have not ended.
    waiting: usize,
    /// The version that this node has already, as the peer was told.
    held: Option<Held>,
    /// The peer was told of a version that this node has, and has not answered otherwise.
    pub(crate) is_conditional: bool,
    pub(crate) key: Key,
    pub(crate) select: Select,
    /// The part that was asked for. `None`: all of the version.
    pub(crate) excerpt: Option<Box<Excerpt>>,
    /// The owner has to answer itself, and not by REDIRECT.
    pub(crate) is_direct: bool,
    /// What the owner has said, if this request is for a chunk, or has the fetches of one to an owner whose link has ended.
    redirect: Option<Arc<Redirect>>,
    /// The chunk that it is for. It has no fetches of its own.
    chunk: Option<Box<ChunkPull>>,
    /// The search at the nodes that the owner has named in its answer.
    pub(crate) search: Option<Box<Search>>,
    /// The version that comes, once the peer has said so.
    pub(crate) coming: Option<Version>,
    /// Requests of other nodes wait for the version that it may bring.
    pub(super) is_awaited: bool,
    /// The ranges of several versions that were asked for together. `key` is the first of them.
    pub(crate) gathered: Option<Arc<Gathered>>,
    pub(crate) domain: Tenant,
    pub(crate) state: PullState,
    /// The slot that the peer may write to, or will be allowed to write to.
    pub(crate) slot: Option<SlotId>,
    /// The description that the slot was made for, and the description's number.
    pub(crate) described: Option<(u32, TensorMeta)>,
    /// The length of the delta that comes in place of that, if one does.
    delta: Option<u64>,
    /// The time at which the peer was asked, or at which the request was given up.
    pub(crate) asked: Time,
    /// The bytes that this request takes of the pool's share for speculative slots.
    pub(crate) speculative: u64,
    /// The version that the peer is writing, and the trace context of its push, if the peer has sent them.
    told: Option<(Version, TraceContext)>,
    /// The newest version of the peer, if that is not the one before what is asked for.
    pub(crate) behind: Option<Version>,
    /// The memory of the worker in which the version is to land.
    to: Option<Box<Target>>,
}

/// A chunk that a peer is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkPull {
    /// The blob where it lands, to which the request has a reference.
    pub(crate) blob: BlobId,
    /// Its number, and which part it is of all that is sent of the version.
    pub(crate) number: usize,
    pub(crate) range: BodyRange,
    /// Where it lands.
    pub(crate) slice: LocalSlice,
}

/// The memory of a worker in which a version is to land.
struct Target {
    destination: Destination,
    /// Where its ranges lie.
    slices: Vec<LocalSlice>,
    state: TargetState,
}

/// How far the memory of a worker is open to the peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TargetState {
    /// It is not, and the version does not land there so far.
    Closed,
    /// The version is to land there as soon as there is a slot.
    Wanted,
    /// It has a slot, which is being opened.
    Open,
    /// The peer was told of the slot.
    Told,
}

/// A version that has landed here, and its owner's number of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) blob: BlobId,
    pub(crate) identity: NonZeroU64,
}

/// What fetches ask for that share an answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    pub(crate) domain: Tenant,
    pub(crate) key: Key,
    pub(crate) select: Select,
    pub(crate) excerpt: Option<Box<Excerpt>>,
    pub(crate) is_direct: bool,
}

/// A list of fetches that is this much longer than twice what it needs is tidied.
const TIDY_AT: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PullState {
    /// A slot for the first message is being granted; the peer knows nothing yet.
    Preparing,
    /// The peer was asked.
    Asked,
    /// The peer has named other nodes, and one of them is asked for the version. The request waits, so that the peer holds it.
    Redirected,
    /// The peer has described the version. The request waits for room.
    WaitingForRoom,
    /// The peer has described the version. A slot is being granted.
    Granting,
    /// The request was given up. Data may arrive until the peer's CANCELLED.
    Cancelling,
    /// A delta has landed and is being applied. The peer is done.
    Applying,
    /// The request has ended without the data. The memory of the worker is being closed.
    Closing,
}

impl Pull {
    /// Creates a request that the peer does not know yet. `described` is the last known description of the key.
    pub(crate) fn new(
        now: Time,
        readers: Readers,
        (key, select, excerpt): (Key, Select, Option<Box<Excerpt>>),
        domain: Tenant,
        described: Option<(u32, TensorMeta)>,
        speculative: u64,
    ) -> Pull {
        Pull {
            waiting: readers.len(),
            readers,
            next: smallvec![],
            held: None,
            is_conditional: false,
            key,
            select,
            excerpt,
            is_direct: false,
            redirect: None,
            chunk: None,
            search: None,
            coming: None,
            is_awaited: false,
            gathered: None,
            domain,
            state: PullState::Preparing,
            slot: None,
            described,
            delta: None,
            asked: now,
            speculative,
            told: None,
            behind: None,
            to: None,
        }
    }

    /// Makes it a request for a version that lands in the memory of its worker, where that can be.
    pub(crate) fn landing_in(self, to: Option<(Destination, Vec<LocalSlice>)>) -> Pull {
        let target = |(destination, slices)| Box::new(Target { destination, slices, state: TargetState::Closed });
        Pull { to: to.map(target), ..self }
    }

    /// Returns the memory of the worker in which the version is to land.
    pub(crate) fn destination(&self) -> Option<&Destination> {
        self.to.as_ref().map(|to| &to.destination)
    }

    /// Decides that the version lands in the memory of the worker.
    pub(crate) fn land_in_place(&mut self) {
        self.set_target(TargetState::Wanted);
    }

    /// Whether the version lands in the memory of the worker.
    pub(crate) fn lands_in_place(&self) -> bool {
        self.to.as_ref().is_some_and(|to| to.state >= TargetState::Wanted)
    }

    /// Opens the memory of the worker for its slot. Returns its ranges, if the version lands there.
    pub(crate) fn open_memory(&mut self) -> Vec<LocalSlice> {
        if self.lands_in_place() {
            self.set_target(TargetState::Open);
        }
        self.opened_memory().map_or_else(Vec::new, <[LocalSlice]>::to_vec)
    }

    /// Returns the ranges apart from the header where what comes lands, if it has a slot: of the worker's memory, or of a version that comes in
    /// chunks.
    pub(crate) fn opened_memory(&self) -> Option<&[LocalSlice]> {
        let of_worker = self.to.as_ref().filter(|to| to.state >= TargetState::Open).map(|to| to.slices.as_slice());
        of_worker.or_else(|| self.chunk.as_ref().map(|chunk| std::slice::from_ref(&chunk.slice)))
    }

    /// Notes that the peer is told of the slot.
    pub(crate) fn tell_of_memory(&mut self) {
        if self.opened_memory().is_some() {
            self.set_target(TargetState::Told);
        }
    }

    /// Whether the peer may have written into the memory of the worker.
    pub(crate) fn may_be_torn(&self) -> bool {
        self.to.as_ref().is_some_and(|to| to.state == TargetState::Told)
    }

    /// Notes that the memory of the worker is closed.
    pub(crate) fn close_memory(&mut self) {
        self.set_target(TargetState::Closed);
    }

    fn set_target(&mut self, state: TargetState) {
        if let Some(to) = &mut self.to {
            to.state = state;
        }
    }

    /// Returns the length of the body that the landing pool needs room for, if the version is described.
    pub(crate) fn pool_bytes(&self) -> Option<u64> {
        self.len_bytes().map(|len| if self.lands_in_place() { 0 } else { len })
    }

    /// Makes it a request for ranges of several versions.
    pub(crate) fn for_gathered(self, gathered: Option<Arc<Gathered>>) -> Pull {
        Pull { gathered, ..self }
    }

    /// Notes whether the owner has to answer itself.
    pub(crate) fn directly(self, is_direct: bool) -> Pull {
        Pull { is_direct, ..self }
    }

    /// Makes it one that has the fetches of a request to an owner, which has said this.
    pub(crate) fn asking(self, redirect: Arc<Redirect>) -> Pull {
        Pull { redirect: Some(redirect), ..self }
    }

    /// Makes it a request for a chunk.
    pub(crate) fn for_chunk(self, chunk: ChunkPull) -> Pull {
        Pull { chunk: Some(Box::new(chunk)), ..self }
    }

    /// Returns the chunk that it is for.
    pub(crate) fn chunk(&self) -> Option<ChunkPull> {
        self.chunk.as_deref().copied()
    }

    /// Takes the chunk out of the request: no peer can write to its place any more. The caller releases its blob.
    pub(crate) fn take_chunk(&mut self) -> Option<ChunkPull> {
        self.slot = None;
        self.chunk.take().map(|chunk| *chunk)
    }

    /// Returns what the owner has said, if this request is for a chunk, or the link to the owner has ended.
    pub(crate) fn redirect(&self) -> Option<&Arc<Redirect>> {
        self.redirect.as_ref()
    }

    /// Returns the key of an owner whose version will be here, and can be sent to other nodes: if it goes to the owner over this
    /// link, or to a node that it has named. Not for memory of a worker, which may change it.
    pub(crate) fn spreading(&self, link: LinkId) -> Option<Spreading> {
        let is_kept = self.gathered.is_none() && self.excerpt.is_none();
        is_kept.then(|| (self.owner(link), self.domain, self.key.clone()))
    }

    /// Whether this request to the owner may bring a publication, which has this version and identity.
    pub(super) fn may_bring(&self, (_, domain, key): &Spreading, version: Version, identity: NonZeroU64) -> bool {
        let is_kept = self.gathered.is_none() && self.excerpt.is_none() && self.to.is_none() && self.redirect.is_none();
        let is_over = matches!(self.state, PullState::Cancelling | PullState::Closing);
        is_kept
            && !is_over
            && (self.domain, &self.key) == (*domain, key)
            && match (&self.search, self.coming) {
                (Some(search), _) => search.redirect.identity == identity,
                (None, Some(coming)) => coming == version,
                (None, None) => self.select.takes(version),
            }
    }

    /// Returns the link to the owner of its key, if it goes over this one.
    fn owner(&self, link: LinkId) -> LinkId {
        self.redirect.as_ref().map_or(link, |redirect| redirect.owner)
    }

    /// Whether the owner may answer it by REDIRECT.
    pub(crate) fn may_be_redirected(&self) -> bool {
        let is_open = !self.is_direct && self.redirect.is_none() && self.coming.is_none();
        is_open && self.state == PullState::Asked && !self.is_for_parts()
    }

    /// Lets it wait while the version is searched for at the nodes that the owner has named, for those of these fetches that have not
    /// ended. Returns the fetches that came later: they ask anew.
    pub(crate) fn begin_search(&mut self, described: (u32, TensorMeta), waiting: usize, search: Search) -> Readers {
        (self.described, self.coming) = (Some(described), Some(search.redirect.version));
        (self.state, self.is_conditional) = (PullState::Redirected, false);
        self.search = Some(Box::new(search));
        self.waiting = waiting;
        std::mem::take(&mut self.next)
    }

    /// Adds fetches that the owner has answered with the same publication.
    pub(crate) fn add_readers(&mut self, readers: Readers) {
        self.waiting += readers.len();
        self.readers.extend(readers);
    }

    /// Lets the request name a version that this node has, and holds for it.
    pub(crate) fn holding(self, held: Option<Held>) -> Pull {
        Pull { is_conditional: held.is_some(), held, ..self }
    }

    /// Returns what other fetches have to ask for to share its answer. `None`: it is for one fetch alone. Ranges of several
    /// versions serve who asked for them, memory of a worker is that worker's, and streams count who has fetched.
    pub(super) fn shared(&self) -> Option<Wanted> {
        let is_alone = self.gathered.is_some() || self.to.is_some() || self.redirect.is_some();
        let is_shared = !is_alone && !matches!(self.select, Select::Following(_));
        is_shared.then(|| self.wanted())
    }

    /// Returns what its fetches ask for.
    pub(crate) fn wanted(&self) -> Wanted {
        let Pull { domain, key, select, excerpt, is_direct, .. } = self;
        let (domain, select, is_direct) = (*domain, *select, *is_direct);
        Wanted { domain, key: key.clone(), select, excerpt: excerpt.clone(), is_direct }
    }

    /// Adds a fetch of the same. It is answered with the others if the peer is not asked yet, and after them if it is and
    /// the fetch `asks_late`.
    pub(crate) fn join(&mut self, op: OperationId, asks_late: bool, is_waiting: impl Fn(OperationId) -> bool) {
        let list = match self.state {
            PullState::Preparing => &mut self.readers,
            _ if !asks_late => &mut self.readers,
            _ => &mut self.next,
        };
        if list.len() >= 2 * self.waiting + TIDY_AT {
            // While the request waits, fetches may come and end.
            list.retain(|op| is_waiting(*op));
        }
        list.push(op);
        self.waiting += 1;
    }

    /// Notes that one of its fetches has ended. Returns whether it was the last one.
    pub(crate) fn leave(&mut self) -> bool {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting == 0
    }

    /// Returns the fetches that the answer is for.
    pub(crate) fn readers(&self) -> &[OperationId] {
        &self.readers
    }

    /// Takes the fetches that the answer is for, and those that came later.
    pub(crate) fn take_readers(&mut self) -> (Readers, Readers) {
        self.waiting = 0;
        (std::mem::take(&mut self.readers), std::mem::take(&mut self.next))
    }

    /// Returns the identity of the version that the peer is told of.
    pub(crate) fn identity(&self) -> Option<NonZeroU64> {
        self.held.map(|held| held.identity)
    }

    /// Takes the version that it holds. The caller releases it.
    pub(crate) fn take_held(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// Whether it holds a version that has landed before.
    pub(in crate::protocol) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Whether it holds this one.
    pub(super) fn holds_this(&self, blob: BlobId) -> bool {
        self.held.is_some_and(|held| held.blob == blob)
    }

    /// Whether it holds a base that a worker lends, which was not proved.
    pub(in crate::protocol) fn holds_lent(&self) -> bool {
        self.held.is_some_and(|held| Content::from_wire(held.identity.get()).is_some())
    }

    /// Whether parts of versions are asked for. Their description serves this request alone.
    pub(crate) fn is_for_parts(&self) -> bool {
        self.gathered.is_some() || self.excerpt.is_some()
    }

    /// Whether the peer may describe the answer like this. For ranges of several versions there is one right description.
    pub(crate) fn may_be(&self, metadata_id: u32, meta: &TensorMeta) -> bool {
        let right = |gathered: &Gathered| TensorMeta::of(DType::U8, &[gathered.len_bytes()]);
        self.gathered.as_deref().is_none_or(|gathered| metadata_id == 0 && right(gathered).as_ref() == Ok(meta))
    }

    /// Notes that a delta of this length is to come in place of the version, and waits for room for it.
    pub(crate) fn describe_delta(&mut self, (version, metadata_id): (Version, u32), meta: TensorMeta, len: u64) {
        self.coming = Some(version);
        (self.described, self.delta) = (Some((metadata_id, meta)), Some(len));
        (self.state, self.is_conditional) = (PullState::WaitingForRoom, false);
    }

    /// Marks the peer as asked.
    pub(crate) fn ask(&mut self, now: Time) {
        (self.state, self.asked) = (PullState::Asked, now);
    }

    /// Whether the request waits for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.state == PullState::WaitingForRoom
    }

    /// Whether a delta comes in place of the version, and has a slot.
    pub(super) fn has_room_for_delta(&self) -> bool {
        self.delta.is_some() && self.slot.is_some()
    }

    /// Returns the length of the version, if it is known.
    pub(in crate::protocol) fn version_bytes(&self) -> Option<u64> {
        self.described.as_ref().map(|(_, meta)| meta.len_bytes())
    }

    /// Returns the length of the delta that comes in place of the version, if one does.
    pub(in crate::protocol) fn delta_bytes(&self) -> Option<u64> {
        self.delta
    }

    /// Returns the length of what is to land, if it is known: of the tensor, or of its delta.
    pub(crate) fn len_bytes(&self) -> Option<u64> {
        self.delta.or_else(|| self.version_bytes())
    }

    /// Whether the peer may answer the request with this version now.
    pub(crate) fn takes(&self, version: Version) -> bool {
        self.state == PullState::Asked && self.select.takes(version)
    }

    /// Notes that the peer's newest version is this one. Returns whether the request waits for a later one.
    pub(crate) fn is_behind(&mut self, newest: Version) -> bool {
        let waits = self.state == PullState::Asked && !self.takes(newest);
        if waits {
            self.behind = Some(newest);
        }
        waits
    }

    /// Stores the trace context of the push of the version that the peer writes.
    pub(crate) fn tell(&mut self, version: Version, context: TraceContext) {
        self.told = Some((version, context));
    }

    /// Returns the trace context of the push of this version, if the peer has sent it.
    pub(crate) fn origin_of(&self, version: Version) -> Option<TraceContext> {
        self.told.filter(|(told, _)| *told == version).map(|(_, context)| context)
    }

    /// Checks that a landed tensor is the one that was asked for. Returns `None` if the request was given up.
    pub(crate) fn check_landing(&self, own: PullId, header: &Header) -> Result<Option<TensorMeta>, String> {
        if self.state == PullState::Cancelling {
            return Ok(None);
        }
        if let (Some(chunk), Some(redirect)) = (self.chunk.as_deref(), self.redirect()) {
            return chunk.check_landing(own, redirect, header).map(|()| Some(redirect.meta.clone()));
        }
        let (id, meta) = self.described.as_ref().ok_or("the slot's request has no description")?;
        if header.index != own.short() {
            return Err(format!("the header names request {:#x}, the slot is for {:#x}", header.index, own.short()));
        }
        let len = self.delta.unwrap_or(meta.len_bytes());
        if header.is_delta != self.delta.is_some() {
            return Err(format!("the header says that it is a delta: {}, which is false", header.is_delta));
        }
        if header.metadata_id != *id || header.body_len != len {
            return Err(format!(
                "the header has description {} and {} bytes, the slot was granted for {id} and {}",
                header.metadata_id, header.body_len, len
            ));
        }
        if !self.select.takes(header.version) {
            return Err(format!("the header has {}, asked was {}", header.version, self.select));
        }
        Ok(Some(meta.clone()))
    }
}

impl ChunkPull {
    fn check_landing(&self, own: PullId, redirect: &Redirect, header: &Header) -> Result<(), String> {
        let (found, asked) = ((header.index, header.body_len), (own.short(), self.range.len));
        if found != asked || header.metadata_id != 0 || header.is_delta {
            return Err(format!(
                "the header is not that of a chunk of {} bytes for request {:#x}: {header:?}",
                asked.1, asked.0
            ));
        }
        if (header.version, header.identity) != (redirect.version, Some(redirect.identity)) {
            return Err("the header has another publication than the one that the owner has named".to_owned());
        }
        Ok(())
    }
}
