//! Two buffers that take turns, for weights that are updated in place.

use crate::face::Face;
use crate::gate::Gate;
use crate::push::Push;
use crate::{Handle, TensorMut};
use std::collections::VecDeque;
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
/// | [`push_snapshot`](Handle::push_snapshot) | a copy per version, which the report counts | for room in the arena |
/// | [`gate`](Handle::gate) | no copy, and fetches wait during the update | for all readers of the newest version |
/// | [`TwoBuffers`] | no copy, twice the memory | for the readers of the version before the newest |
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
pub struct TwoBuffers<F> {
    client: Handle<F>,
    key: Key,
    meta: TensorMeta,
    /// The versions of the buffers, the older one first.
    published: VecDeque<u64>,
}

impl<F: Face> TwoBuffers<F> {
    pub(crate) fn new(client: Handle<F>, key: Key, meta: TensorMeta) -> Self {
        TwoBuffers { client, key, meta, published: VecDeque::new() }
    }

    /// Returns the buffer whose turn it is, once its version has no reader left. The newest version stays published
    /// meanwhile. The buffer still has the contents of two versions ago.
    pub fn turn(&mut self) -> Gate<F> {
        let session = self.client.session();
        match self.published.len() {
            2 => match self.published.front() {
                Some(version) => Gate::of(session, self.key.clone(), *version, self.meta.clone()),
                None => Gate::fresh(session, self.meta.clone()),
            },
            _ => Gate::fresh(session, self.meta.clone()),
        }
    }

    /// Publishes the buffer as that version, which must be above the last one. It stays until its turn comes again.
    pub fn push(&mut self, buffer: TensorMut, version: u64) -> Push<'static, F> {
        if self.published.len() == 2 {
            self.published.pop_front();
        }
        self.published.push_back(version);
        self.client.push_tensor(&self.key, buffer).version(version).keep(Until::Deleted)
    }
}
