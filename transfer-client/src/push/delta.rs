//! The delta of a push: what has changed since a version that this client has published.

use crate::gathered::copy_threads;
use crate::session::{Base, Held, PushedBytes, Session};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use transfer_core::delta::{Density, TooDense, encode};
use transfer_core::op::{DeltaOf, Deltas, Push};
use transfer_core::tensor::Version;
use transfer_memory::arena::Block;

/// A delta is at most as long as its version divided by this.
const MIN_SAVING: u64 = 2;

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
            NoDelta::NoRoom => "the arena has no room for a delta",
            NoDelta::HasTarget => "the version is pushed to a worker",
        })
    }
}

/// A delta that is made, and its base, which is held until the push has ended: the sidecar finds it by its place in the arena.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) block: Option<Block>,
    pub(super) base: Option<Base>,
}

/// A shorter version is compared where the push is made: that takes less than half a millisecond.
const SHORT_BYTES: u64 = 1 << 20;

/// A push, the memory that it lends, and its delta.
pub(super) type WithDelta = (Push, Held, PushedDelta, Made);

/// The delta of a push is made on another thread, unless the version is short or its caller does nothing else meanwhile.
pub(super) fn begin(
    session: &Arc<Session>,
    (mut push, held): (Push, Held),
    of: u64,
    is_awaited: bool,
) -> Result<WithDelta, oneshot::Receiver<WithDelta>> {
    if !is_awaited || push.meta.len_bytes() <= SHORT_BYTES {
        let (delta, made) = make(session, &mut push, of);
        return Ok((push, held, delta, made));
    }
    let of_session = session.clone();
    Err(session.in_background(copy_threads(), move || {
        let (delta, made) = make(&of_session, &mut push, of);
        (push, held, delta, made)
    }))
}

/// Makes the delta of a push that is about to be sent, whose memory the caller holds. Where there is none, the push says that
/// deltas may follow all the same.
fn make(session: &Arc<Session>, push: &mut Push, of: u64) -> (PushedDelta, Made) {
    let began = Instant::now();
    let mut density = Density::default();
    let made = try_make(session, push, Version(of), &mut density);
    let whole = made.as_ref().err().copied();
    let (bytes, made) = match made {
        Ok((block, base)) => {
            let (offset, len) = (block.slice().offset, block.slice().len);
            push.deltas = Deltas::Of(DeltaOf { base: Version(of), base_offset: base.push.offset, offset, len });
            (len, Made { block: Some(block), base: Some(base) })
        }
        Err(_) => {
            push.deltas = Deltas::Follow;
            (0, Made::default())
        }
    };
    let Density { changed, of: compared } = density;
    (PushedDelta { bytes, changed, compared, took: began.elapsed(), whole }, made)
}

fn try_make(session: &Arc<Session>, push: &Push, of: Version, density: &mut Density) -> Result<(Block, Base), NoDelta> {
    if push.to.is_some() {
        return Err(NoDelta::HasTarget);
    }
    let base = Base::find(session, &push.key, of).ok_or(NoDelta::NoBase)?;
    if base.push.meta != push.meta {
        return Err(NoDelta::OtherLayout);
    }
    let (arena, len) = (session.arena(), push.meta.len_bytes());
    let old = PushedBytes::new(arena, base.push.offset, &base.push.meta, base.push.ranges);
    let new = PushedBytes::new(arena, push.offset, &push.meta, push.ranges);
    let made = encode(len, |at, to| old.read(at, to), |at, to| new.read(at, to), len / MIN_SAVING);
    let made = made.map_err(|TooDense(found)| {
        *density = found;
        NoDelta::TooDense
    })?;
    *density = made.density;
    let mut block = session.allocate(made.bytes.len() as u64).map_err(|_| NoDelta::NoRoom)?;
    block.as_bytes_mut().copy_from_slice(&made.bytes);
    Ok((block, base))
}
