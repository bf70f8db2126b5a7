//! Atomic operations on words over a link with several rails.

use super::MultiRail;
use super::fabric::of_post;
use super::link::{Phase, WorkKind};
use super::rail::{Entry, Item};
use crate::fabric::{AtomicOp, Atomics, Fabric, FabricError, LinkId, PostError, WorkId};
use crate::memory::{LocalSlice, RemoteSlice};

pub(super) const NO_ATOMICS: &str = "operate on words: no rail over the first device is up";

/// Returns the atomic operations of an inner fabric.
fn atomics<M>(fabric: &mut dyn Fabric<Memory = M>, link: LinkId) -> Result<&mut dyn Atomics, PostError> {
    fabric.atomics().ok_or(PostError::Unsupported { link, what: NO_ATOMICS })
}

impl<M: Clone> Atomics for MultiRail<M> {
    /// Posts over a rail of the first inner fabric, because that fabric's device is the one that operates on words
    /// here. The operation has no order relative to writes and messages.
    fn post_atomic(&mut self, link: LinkId, work: WorkId, remote: RemoteSlice, op: AtomicOp) -> Result<(), PostError> {
        let MultiRail { inner, links, .. } = self;
        let found = links.links.get_mut(&link).ok_or(PostError::LinkDown(link))?;
        if let [rail] = &found.rails[..] {
            let posted = atomics(&mut *inner[rail.fabric], link)?.post_atomic(rail.inner, work, remote, op);
            return posted.map_err(|error| of_post(error, link));
        }
        if found.phase != Phase::Up {
            return Err(PostError::LinkDown(link));
        }
        let entry = Entry { item: Item::Atomic, work: Some(found.next_work()) };
        let mut rails = found.rails.iter_mut().enumerate();
        let usable = rails.find_map(|(number, rail)| {
            let key = remote.keys.rail(number).filter(|_| rail.is_up() && rail.fabric == 0)?;
            Some((rail, key))
        });
        let (rail, key) = usable.ok_or(PostError::Unsupported { link, what: NO_ATOMICS })?;
        let remote = RemoteSlice::new(remote.address, remote.len, key);
        let posted = atomics(&mut *inner[rail.fabric], link)?.post_atomic(rail.inner, work, remote, op);
        posted.map_err(|error| match of_post(error, link) {
            PostError::LinkDown(_) => PostError::Full(link),
            error => error,
        })?;
        rail.note_posted(entry);
        found.add_work(work, WorkKind::Atomic(0), 1);
        Ok(())
    }

    fn post_local_atomic(&mut self, work: WorkId, word: LocalSlice, op: AtomicOp) -> Result<(), FabricError> {
        match self.inner.first_mut().and_then(|fabric| fabric.atomics()) {
            Some(atomics) => atomics.post_local_atomic(work, word, op),
            None => {
                Err(FabricError::Device { what: "a device's atomic operation", why: "this fabric has none".into() })
            }
        }
    }
}
