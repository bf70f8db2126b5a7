//! The delta of a push: what has changed since a version that this client has published.

use crate::gathered::copy_threads;
use crate::session::{BackgroundCall, Base, Held, LentDeltas, OneCall, PushedBytes, Session};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use transfer_core::delta::{
    Buffers, Density, Sample, Section, TooDense, encode_section, front, head_bytes, sample, section,
};
use transfer_core::op::{Command, DeltaOf, Deltas, Push};
use transfer_core::tensor::{Key, Version};
use transfer_memory::arena::Block;

/// A delta is at most as long as its version divided by this.
const MIN_SAVING: u64 = 2;

/// The most threads that compare versions. A few fill the memory's bandwidth.
const MAX_THREADS: usize = 4;

/// Another thread is worth its start for so many sections of 1 MiB.
const SECTIONS_PER_THREAD: u64 = 8;

/// The delta of a push that asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushedDelta {
    /// Its length. 0: there is none, and all readers get the whole version.
    pub bytes: u64,
    /// The bytes that have changed, in elements of two bytes, of those that were compared: `changed / compared` is the density.
    pub changed: u64,
    /// The bytes that were compared: all of the version, or a sample if that has changed too much, or 0 if there is no base.
    pub compared: u64,
    /// The time that it took.
    pub took: Duration,
    /// The bytes per second at which the versions before left this node for the node that got them slowest, as the sidecar has measured
    /// until the base was pushed. 0: it is not known.
    pub link_rate: u64,
    /// How many deltas before it are published with it: a node that has missed as many versions gets them, too.
    pub kept: u32,
    /// The reason why there is none.
    pub whole: Option<NoDelta>,
}

/// The reason why a version has no delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoDelta {
    /// The base is not published by this client under this key, or not any more.
    NoBase,
    /// The base has other tensors, types, shapes or digests.
    OtherLayout,
    /// Too much has changed: the delta would be more than half as long as the version.
    TooDense,
    /// The links are so fast that the whole version is there sooner: making the delta and applying it would take longer. This is told from
    /// [`PushedDelta::link_rate`], and from a sample of the version, whose delta has the time that it takes.
    FastLinks,
    /// The arena has no room for it.
    NoRoom,
    /// The push goes to a worker, whose node gets the whole version.
    HasTarget,
}

impl fmt::Display for NoDelta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoDelta::NoBase => "the base is not published by this client under this key",
            NoDelta::OtherLayout => "the base has other tensors, types, shapes or digests",
            NoDelta::TooDense => "too much has changed",
            NoDelta::FastLinks => "over these links the whole version is there sooner",
            NoDelta::NoRoom => "the arena has no room for a delta",
            NoDelta::HasTarget => "the version is pushed to a worker",
        })
    }
}

/// A delta that is made, and its base, which is held until the push has ended: the sidecar finds it by its place in the arena.
#[derive(Debug, Default)]
struct Made {
    deltas: Option<LentDeltas>,
    base: Option<Base>,
}

/// A shorter version is compared where the push is made: that takes less than half a millisecond.
const SHORT_BYTES: u64 = 1 << 20;

/// A push whose memory is there.
pub(super) struct Ready {
    pub(super) push: Push,
    pub(super) held: Held,
    /// The version of which it is to have a delta, and its key, if that is another one.
    pub(super) of: Option<(u64, Option<Key>)>,
    /// The most deltas before it that it keeps.
    pub(super) keep_chain: u32,
    pub(super) started: Instant,
    pub(super) limit: Instant,
}

/// A push that can be sent, or was.
#[derive(Debug)]
pub(super) struct Sending {
    /// What it would have lent, if its time was over before.
    pub(super) call: Result<OneCall, Held>,
    pub(super) delta: Option<PushedDelta>,
    /// Held until the push has ended.
    pub(super) base: Option<Base>,
}

impl Ready {
    /// Whether another thread makes the delta and sends the push: if the version is long, unless its caller does nothing else
    /// meanwhile, and if it does so already with an earlier push of the key, which this one would overtake.
    pub(super) fn is_for_background(&self, session: &Session, is_awaited: bool) -> bool {
        let is_long = self.of.is_some() && self.push.meta.len_bytes() > SHORT_BYTES;
        (is_long && is_awaited && Instant::now() < self.limit) || session.has_background(&self.push.key)
    }

    /// Makes the delta on another thread, which sends the push: those that wait behind it depend on nobody who polls this one.
    pub(super) fn begin_in_background(self, session: &Arc<Session>) -> BackgroundCall<Sending> {
        let (key, of_session) = (self.push.key.clone(), session.clone());
        session.in_background(key, (copy_threads() / 2).clamp(1, MAX_THREADS), move |try_send| {
            let mut sending = self.begin(&of_session);
            if let Ok(call) = &mut sending.call {
                call.submit(try_send);
            }
            sending
        })
    }

    /// Makes the delta, unless the time is over.
    pub(super) fn begin(mut self, session: &Arc<Session>) -> Sending {
        let late = |held| Sending { call: Err(held), delta: None, base: None };
        if Instant::now() >= self.limit {
            return late(self.held);
        }
        let (delta, Made { deltas, base }) = match self.of {
            Some(of) => {
                let (delta, made) = make(session, &mut self.push, (Version(of.0), of.1), self.keep_chain);
                (Some(delta), made)
            }
            None => Default::default(),
        };
        // The delta took its time, and the sidecar counts from now on.
        self.push.timeout = self.limit.saturating_duration_since(Instant::now());
        if self.push.timeout.is_zero() {
            return late(self.held);
        }
        let call = OneCall::new(session.clone(), Command::Push(self.push), self.started, self.limit);
        Sending { call: Ok(call.lending(self.held).with_deltas(deltas)), delta, base }
    }
}

/// Makes the delta of a push that is about to be sent, whose memory the caller holds. Where there is none, the push says that
/// deltas may follow all the same.
fn make(
    session: &Arc<Session>,
    push: &mut Push,
    (of, key): (Version, Option<Key>),
    keep_chain: u32,
) -> (PushedDelta, Made) {
    let began = Instant::now();
    let (mut density, mut link_rate) = Default::default();
    let made = try_make(session, push, (of, key.as_ref().unwrap_or(&push.key)), (&mut density, &mut link_rate));
    let whole = made.as_ref().err().copied();
    let (bytes, kept, made) = match made {
        Ok((block, base)) => {
            let (offset, len) = (block.slice().offset, block.slice().len);
            let earlier: Box<[_]> = chain(&base.push, len, session.arena().free_bytes(), keep_chain).into();
            let deltas = LentDeltas::new(session, block, earlier.iter().map(|(offset, _)| *offset));
            let kept = earlier.len() as u32;
            push.deltas = Deltas::Of(DeltaOf { base: of, base_offset: base.push.offset, offset, len, earlier });
            (len, kept, Made { deltas: Some(deltas), base: Some(base) })
        }
        Err(_) => {
            push.deltas = Deltas::Follow;
            (0, 0, Made::default())
        }
    };
    let Density { changed, of: compared } = density;
    (PushedDelta { bytes, changed, compared, took: began.elapsed(), link_rate, kept, whole }, made)
}

/// Returns the deltas before one of `len` bytes that are kept with it, the oldest first: so many at most, as long as all together are worth
/// it, and leave room for the next version and its delta. `free` bytes of the arena are free while the base is still there.
fn chain(base: &Push, len: u64, free: u64, keep_chain: u32) -> Vec<(u64, u64)> {
    let Deltas::Of(of) = &base.deltas else { return Vec::new() };
    // With the base go those of its deltas that are not kept, and in its place comes the next version.
    let with_base = of.ranges().map(|(_, len)| len).sum::<u64>();
    let worth = (base.meta.len_bytes() / MIN_SAVING).saturating_sub(len);
    let mut room = worth.min(free.saturating_add(with_base).saturating_sub(len));
    let fits = |(_, len): &(u64, u64)| {
        let left = room.checked_sub(*len);
        room = left.unwrap_or(0);
        left.is_some()
    };
    let mut kept: Vec<_> = of.ranges().rev().take(keep_chain as usize).take_while(fits).collect();
    kept.reverse();
    kept
}

fn try_make(
    session: &Arc<Session>,
    push: &Push,
    (of, key): (Version, &Key),
    (density, link_rate): (&mut Density, &mut u64),
) -> Result<(Block, Base), NoDelta> {
    if push.to.is_some() {
        return Err(NoDelta::HasTarget);
    }
    let base = Base::find(session, key, of).ok_or(NoDelta::NoBase)?;
    if base.push.meta != push.meta {
        return Err(NoDelta::OtherLayout);
    }
    let (arena, len) = (session.arena(), push.meta.len_bytes());
    let old = PushedBytes::new(arena, base.push.offset, &base.push.meta, base.push.ranges);
    let new = PushedBytes::new(arena, push.offset, &push.meta, push.ranges);
    *link_rate = base.link_rate;
    let made = encode_on_threads(len, &old, &new, (len / MIN_SAVING, base.link_rate));
    let sections = made.map_err(|(why, found)| {
        *density = found;
        why
    })?;
    sections.iter().for_each(|section| *density += section.density);
    let front = front(len, &sections);
    let pieces = || std::iter::once(&front).chain(sections.iter().map(|section| &section.parts));
    let bytes: usize = pieces().map(Vec::len).sum();
    let mut block = session.allocate(bytes as u64).map_err(|_| NoDelta::NoRoom)?;
    let mut rest = block.as_bytes_mut();
    for piece in pieces() {
        let (to, behind) = rest.split_at_mut(piece.len());
        to.copy_from_slice(piece);
        rest = behind;
    }
    Ok((block, base))
}

/// Whether a version of this length is there sooner as a whole than as this delta, at this rate of the links: if a delta takes this time to be
/// made, and the reader as long to apply it.
fn is_there_sooner(len: u64, delta: u64, make: Duration, link_rate: u64) -> bool {
    let sent = |bytes: u64| bytes as f64 / link_rate as f64;
    link_rate > 0 && sent(len) < 2.0 * make.as_secs_f64() + sent(delta)
}

/// Makes the sections of a delta of at most `limit` bytes on this thread and others beside it, unless the whole version would be there sooner.
fn encode_on_threads(
    len: u64,
    old: &PushedBytes<'_>,
    new: &PushedBytes<'_>,
    (limit, link_rate): (u64, u64),
) -> Result<Vec<Section>, (NoDelta, Density)> {
    let began = Instant::now();
    let sampled = sample(len, |at, to| old.read(at, to), |at, to| new.read(at, to), limit);
    let sampled = sampled.map_err(|TooDense(density)| (NoDelta::TooDense, density))?;
    let threads = section::count(len).div_ceil(SECTIONS_PER_THREAD).min(copy_threads().clamp(1, MAX_THREADS) as u64);
    if let Some(Sample { bytes, density }) = sampled {
        let make = began.elapsed().mul_f64(len as f64 / (density.of * threads) as f64);
        if is_there_sooner(len, bytes, make, link_rate) {
            return Err((NoDelta::FastLinks, density));
        }
    }
    let (count, next, bytes) = (section::count(len), AtomicU64::new(0), AtomicU64::new(head_bytes(len)));
    let work = || {
        let (mut buffers, mut made) = (Buffers::default(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || bytes.load(Ordering::Relaxed) > limit {
                return made;
            }
            let read = |at: u64, to: &mut [u8]| old.read(at, to);
            let section = encode_section((len, number), &mut buffers, read, |at, to| new.read(at, to));
            bytes.fetch_add(section.parts.len() as u64, Ordering::Relaxed);
            made.push((number, section));
        }
    };
    let mut made = std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().name("transfer-push".into()).spawn_scoped(scope, work);
        // Where the system allows no thread, this one does all.
        let others: Vec<_> = (1..threads).filter_map(|number| start(number).ok()).collect();
        let mut made = work();
        for other in others {
            made.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        made
    });
    if bytes.into_inner() > limit {
        let mut density = Density::default();
        made.iter().for_each(|(_, section)| density += section.density);
        return Err((NoDelta::TooDense, density));
    }
    made.sort_unstable_by_key(|(number, _)| *number);
    Ok(made.into_iter().map(|(_, section)| section).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::tensor::TensorMeta;

    // Promise: deltas
    #[test]
    fn whole_versions_are_sent_where_links_are_fast() {
        let (len, delta, make) = (500 << 20, 22 << 20, Duration::from_millis(200));
        let is_whole = |link_rate| is_there_sooner(len, delta, make, link_rate);
        // The rest of the version takes 0.4 s at 1.25 GB/s.
        assert_eq!(
            [0, 1, 100 << 20, 1 << 30, 1300 << 20, 10 << 30].map(is_whole),
            [false, false, false, false, true, true]
        );
    }

    // Promise: deltas, seen to fail
    #[test]
    fn a_chain_leaves_room_for_the_next_version() {
        let key = Key::new("k").unwrap();
        let meta = TensorMeta::of(transfer_core::tensor::DType::U8, &[1000]).unwrap();
        let earlier = [(3000, 30), (4000, 40)].into();
        let deltas = Deltas::Of(DeltaOf { base: Version(1), base_offset: 0, offset: 5000, len: 50, earlier });
        let base = Push { deltas, ..Push::new(key, meta, 0) };
        let kept =
            |len, free, count| chain(&base, len, free, count).into_iter().map(|(_, len)| len).collect::<Vec<_>>();
        assert_eq!(kept(60, 1_000_000, 8), [30, 40, 50]);
        assert_eq!(kept(60, 1_000_000, 2), [40, 50]);
        assert_eq!(kept(60, 1_000_000, 0), [0_u64; 0]);
        // All together are worth half of the version.
        assert_eq!(kept(400, 1_000_000, 8), [40, 50]);
        // With the base go 120 bytes of deltas, and the next one needs 60.
        assert_eq!(kept(60, 60, 8), [30, 40, 50]);
        assert_eq!(kept(60, 59, 8), [40, 50]);
        assert_eq!(kept(60, 0, 8), [50]);
        assert_eq!(kept(121, 0, 8), [0_u64; 0]);
    }
}
