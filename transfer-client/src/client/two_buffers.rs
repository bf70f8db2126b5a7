//! Two buffers that take turns, for weights that are updated in place.

use crate::bundle::{BundleMut, FreshBundle, Layout, source};
use crate::error::Error;
use crate::memory::TensorMut;
use crate::push::{Push, Source, TakeBack, TakenBack};
use crate::request::{AnyClient, Handle};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::marker::PhantomData;
use transfer_core::tensor::{Key, TensorMeta, Until};

/// Two buffers of one key that take turns, for a producer that writes out of place: it writes one buffer while readers
/// read the other.
///
/// # Three ways to publish changing weights
/// A published tensor is immutable, so weights that are updated in place cannot be published directly. There are three
/// ways:
///
/// | way | costs | the update waits |
/// |---|---|---|
/// | [`push_snapshot`](crate::Client::push_snapshot) | a copy per version, which the report counts | for room in the arena |
/// | [`take_back`](crate::Client::take_back) | no copy, and fetches wait during the update | for all readers of the newest version |
/// | [`TwoBuffers`] | no copy, twice the memory | for the readers of the version before the newest |
///
/// With `take_back` a reader must drop its version before it fetches the next one. Otherwise the reader waits for the next
/// push, and the call for the reader, until one of them reaches its deadline.
///
/// For bundles they are [`push_bundle_snapshot`](crate::Client::push_bundle_snapshot), [`take_back_bundle`](crate::Client::take_back_bundle), and
/// the two buffers of [`two_bundle_buffers`](crate::Client::two_bundle_buffers).
///
/// ```no_run
/// # use transfer_client::{Client, DType, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let mut weights = client.two_buffers("w", DType::F32, [1024])?;
/// for step in 1..100 {
///     let mut next = weights.turn().await?;
///     next.as_mut_slice::<f32>()?.fill(step as f32);
///     weights.push(next, step).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TwoBuffers<C, T: Buffer = TensorMut> {
    handle: Handle,
    key: Key,
    layout: T::Layout,
    /// The versions of the buffers, the older one first.
    published: VecDeque<u64>,
    client: PhantomData<C>,
}

/// A buffer: a tensor, or the tensors of a bundle.
pub trait Buffer: TakenBack {
    /// The descriptions of its tensors.
    type Layout: Debug + Clone + Send + Sync;

    /// A buffer that is not allocated yet.
    fn fresh(layout: &Self::Layout) -> Self::Fresh;
}

impl Buffer for TensorMut {
    type Layout = TensorMeta;

    fn fresh(layout: &TensorMeta) -> TensorMeta {
        layout.clone()
    }
}

impl Buffer for BundleMut {
    type Layout = Layout;

    fn fresh(layout: &Layout) -> FreshBundle {
        FreshBundle::new(layout.clone())
    }
}

impl<C: AnyClient, T: Buffer> TwoBuffers<C, T> {
    pub(crate) fn new(handle: Handle, key: Key, layout: T::Layout) -> Self {
        TwoBuffers { handle, key, layout, published: VecDeque::new(), client: PhantomData }
    }

    /// Returns the buffer whose turn it is, once its version has no reader left. The newest version stays published
    /// meanwhile. The buffer still has the contents of two versions ago.
    pub fn turn(&mut self) -> TakeBack<C, T> {
        let (session, fresh) = (self.handle.session(), T::fresh(&self.layout));
        match self.published.front() {
            Some(version) if self.published.len() == 2 => {
                TakeBack::or_fresh(session, self.key.clone(), *version, fresh)
            }
            _ => TakeBack::fresh(session, fresh),
        }
    }

    fn push_source<'a>(&mut self, version: u64, source: Result<Source<'a>, Error>) -> Push<'a, C> {
        if self.published.len() == 2 {
            self.published.pop_front();
        }
        self.published.push_back(version);
        let push = Push::new(self.handle.session(), Ok(self.key.clone()), source);
        push.version(version).keep(Until::Deleted)
    }
}

impl<C: AnyClient> TwoBuffers<C> {
    /// Publishes the buffer as that version, which must be above the last one. It stays until its turn comes again.
    pub fn push(&mut self, buffer: TensorMut, version: u64) -> Push<'static, C> {
        self.push_source(version, Ok(Source::Tensor(buffer)))
    }
}

impl<C: AnyClient> TwoBuffers<C, BundleMut> {
    /// Publishes the buffer as that version, which must be above the last one. It stays until its turn comes again.
    pub fn push(&mut self, buffer: BundleMut, version: u64) -> Push<'static, C> {
        self.push_source(version, source(buffer))
    }
}
