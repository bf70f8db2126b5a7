//! Tasks: writing rows, and committing them.

use super::block::Block;
use super::flow::{ExchangeCall, Io};
use super::keeper::User;
use super::manifest::{BLOCKS_PER_BUNDLE, HEADS, Starts};
use super::partition::PartitionError;
use super::scatter::{Finished, LARGEST_BLOCK_BYTES, Placement, Scatter};
use super::shared::{Holding, How, Shared, push, push_bytes};
use super::word::Word;
use super::{By, ExchangeError};
use crate::allocate::AllocateWait;
use crate::bundle::{BundleTensor, source};
use crate::face::Face;
use crate::{Blocking, Error, TensorMut};
use arrow_array::RecordBatch;
use parking_lot::Mutex;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::op::FailureCode;
use transfer_core::tensor::{DType, Key, Life, TensorMeta};

/// The time after which the word of a task is read again when its home did not say whether it was swapped.
const AGAIN: Duration = Duration::from_millis(100);

/// One attempt of a task: rows that nobody sees before [`ExchangeTask::commit`]. If it is dropped, nothing of it is
/// left, and its memory is free.
///
/// All batches of a task have the same schema, and so have all tasks of an exchange.
pub struct ExchangeTask<F> {
    user: Arc<User>,
    task: u32,
    attempt: u32,
    /// What the task's word said at the beginning: no attempt has committed, or a lost one.
    begun_at: Word,
    written: Arc<Mutex<Written>>,
    face: PhantomData<F>,
}

/// The rows of an attempt.
#[derive(Default)]
struct Written {
    /// Begun by the first batch, whose schema it has.
    scatter: Option<Scatter>,
    /// Whether a call is under way.
    busy: bool,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The number of rows that the task has written.
    pub rows: u64,
    /// The length of their blocks, in bytes.
    pub bytes: u64,
}

impl<F> fmt::Debug for ExchangeTask<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExchangeTask { user, task, attempt, .. } = self;
        f.debug_struct("ExchangeTask").field("of", &user.0).field("task", task).field("attempt", attempt).finish()
    }
}

impl<F: Face> ExchangeTask<F> {
    pub(super) async fn begin(io: &Io, user: Arc<User>, task: u32, attempt: u32) -> Result<Self, Error> {
        let shared = &user.0;
        shared.check_task(task)?;
        shared.check_attempt(task, attempt)?;
        shared.check()?;
        let begun_at = Deciding { io, shared, task, attempt }.expected(Word::Open).await?;
        Ok(ExchangeTask { task, attempt, begun_at, written: Arc::default(), face: PhantomData, user })
    }

    /// The number of the task.
    #[must_use]
    pub fn task(&self) -> u32 {
        self.task
    }

    /// The number of the attempt.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The number of rows that were written.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.written.lock().scatter.as_ref().map_or(0, Scatter::rows)
    }

    /// Writes the rows of a batch, each into the partition that `by` chooses. They are copied once. The call waits for
    /// room in the arena, and fails with [`Error::ArenaFull`] if there is none in time. A batch is written as a whole, or
    /// not at all.
    pub fn write(&mut self, batch: &RecordBatch, by: By<'_>) -> ExchangeCall<F, ()> {
        let shared = &self.user.0;
        let session = shared.connection.session();
        let prepared = self.prepare(batch, &by);
        let user = self.user.clone();
        ExchangeCall::new(session, async move |io: Io| {
            let (placement, writing) = prepared?;
            user.0.check()?;
            let blocks = allocate(&io, placement.sizes()).await?;
            writing.place(placement, blocks);
            Ok(())
        })
    }

    fn prepare(&self, batch: &RecordBatch, by: &By<'_>) -> Result<(Placement, Writing), Error> {
        let shared = &self.user.0;
        let writing = Writing::begin(&self.written, shared, self.task)?;
        let failed = |source: PartitionError| ExchangeError::Partition {
            name: shared.name.clone(),
            task: self.task,
            source: source.into(),
        };
        let mut written = self.written.lock();
        let scatter = match &mut written.scatter {
            Some(scatter) => scatter,
            none => {
                // There is at least one partition, as the record says.
                let partitions = NonZeroU32::new(shared.partitions()).unwrap_or(NonZeroU32::MIN);
                let scatter = Scatter::new(batch.schema_ref(), partitions, self.task, LARGEST_BLOCK_BYTES);
                none.insert(scatter.map_err(|e| failed(PartitionError::Batch(e)))?)
            }
        };
        let placement = scatter.prepare(batch, by).map_err(failed)?;
        drop(written);
        Ok((placement, writing))
    }

    /// Makes this attempt the task, if no other attempt was faster: then it fails with [`ExchangeError::Committed`], and
    /// what it wrote is dropped. If the call fails otherwise, or is given up, either all or nothing is committed.
    pub fn commit(self) -> ExchangeCall<F, Committed> {
        let ExchangeTask { user, task, attempt, begun_at, written, .. } = self;
        let session = user.0.connection.session();
        ExchangeCall::new(session, async move |io: Io| {
            let shared = &user.0;
            let writing = Writing::begin(&written, shared, task)?;
            let (finished, schema) = writing.finish(&io).await?;
            Deciding { io: &io, shared, task, attempt }.commit(begun_at, finished, &schema).await
        })
    }
}

/// Allocates blocks, and waits for room.
async fn allocate(io: &Io, sizes: &[u64]) -> Result<Vec<TensorMut>, Error> {
    let mut blocks = Vec::with_capacity(sizes.len());
    for size in sizes {
        let meta = TensorMeta::of(DType::U8, &[*size])?;
        let wait = AllocateWait::<Blocking>::new(io.session(), Ok(meta), io.left(io.timeout()));
        blocks.push(io.run(wait.call).await?);
    }
    Ok(blocks)
}

/// The right to write.
struct Writing(Arc<Mutex<Written>>);

impl Writing {
    fn begin(written: &Arc<Mutex<Written>>, shared: &Shared, task: u32) -> Result<Writing, Error> {
        if std::mem::replace(&mut written.lock().busy, true) {
            let (name, what) = (shared.name.clone(), format!("task {task}"));
            return Err(ExchangeError::Busy { name, what }.into());
        }
        Ok(Writing(written.clone()))
    }

    fn place(&self, placement: Placement, blocks: Vec<TensorMut>) {
        if let Some(scatter) = &mut self.0.lock().scatter {
            scatter.place(placement, blocks);
        }
    }

    /// Ends the writing. Also returns the message of the schema, which is empty if nothing was written.
    async fn finish(self, io: &Io) -> Result<(Finished, Vec<u8>), Error> {
        let rest = self.0.lock().scatter.as_ref().map(Scatter::prepare_rest).transpose()?;
        if let Some(rest) = rest {
            let blocks = allocate(io, rest.sizes()).await?;
            self.place(rest, blocks);
        }
        Ok(match self.0.lock().scatter.take() {
            Some(scatter) => {
                let schema = scatter.schema_message().to_vec();
                (scatter.finish(), schema)
            }
            None => (Finished { rows: 0, partitions: Vec::new() }, Vec::new()),
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.lock().busy = false;
    }
}

/// An attempt that wants to commit.
struct Deciding<'a> {
    io: &'a Io,
    shared: &'a Arc<Shared>,
    task: u32,
    attempt: u32,
}

impl Deciding<'_> {
    /// What the task's word says, if this attempt may still win. `known` is what it may say without a further look.
    ///
    /// # Errors
    /// [`ExchangeError::Committed`], [`ExchangeError::AttemptUsed`], [`ExchangeError::Over`].
    async fn expected(&self, known: Word) -> Result<Word, Error> {
        let word = self.shared.look(self.io, self.task).await?;
        if word != known {
            self.may_replace(word).await?;
        }
        Ok(word)
    }

    /// Checks that this attempt may commit in the place of what the word says.
    async fn may_replace(&self, word: Word) -> Result<(), Error> {
        let Deciding { io, shared, task, attempt } = *self;
        let name = || shared.name.clone();
        match word {
            Word::Committed(by) if by == attempt => {
                Err(ExchangeError::AttemptUsed { name: name(), task, attempt }.into())
            }
            Word::Committed(by) if shared.is_there(io, (task, by)).await? => {
                Err(ExchangeError::Committed { name: name(), task, attempt, by }.into())
            }
            _ => Ok(()),
        }
    }

    async fn commit(&self, begun_at: Word, finished: Finished, schema: &[u8]) -> Result<Committed, Error> {
        let Deciding { io, shared, task, attempt } = *self;
        let expected = self.expected(begun_at).await?;
        let starts =
            Starts::of((0..shared.partitions() as usize).map(|p| finished.partitions.get(p).map_or(0, Vec::len)));
        let count = starts.blocks().div_ceil(BLOCKS_PER_BUNDLE).max(1);
        let keys = (0..count).map(|n| shared.bundle_key((task, attempt), n)).collect::<Result<Vec<_>, _>>()?;
        let rows = finished.rows;
        let blocks: Vec<_> = finished.partitions.into_iter().flatten().collect();
        let bytes = blocks.iter().map(Block::len_bytes).sum();
        let mut blocks = blocks.into_iter().map(Block::into_frozen).enumerate();

        let (mark, note) = (shared.mark_key((task, attempt))?, shared.note_key(task)?);
        // The keeper deletes these keys at the end, also if this call is given up.
        let holding = shared.hold(task, attempt, keys.clone())?;
        for (n, key) in keys.into_iter().enumerate() {
            let starts = starts.to_bytes();
            let heads = [(HEADS[0], schema), (HEADS[1], &starts)].into_iter().filter(|_| n == 0);
            let mut tensors = Vec::new();
            for (name, bytes) in heads {
                tensors.push((name.to_owned(), BundleTensor::from_bytes(DType::U8, [bytes.len() as u64], bytes)?));
            }
            let blocks = blocks.by_ref().take(BLOCKS_PER_BUNDLE as usize);
            tensors.extend(blocks.map(|(n, block)| (n.to_string(), BundleTensor::from(&block))));
            if let Err(e) = push(io, key, source(tensors)?, How::New(Life::Parent)).await {
                holding.delete(io).await;
                return Err(match e.failure_code() {
                    Some(FailureCode::KeyOwned | FailureCode::VersionNotRising) => {
                        ExchangeError::AttemptUsed { name: shared.name.clone(), task, attempt }.into()
                    }
                    _ => e,
                });
            }
        }
        if let Err(e) = self.decide(expected).await {
            // If nobody knows whether the attempt has won, the keeper finds out.
            if matches!(e, Error::Exchange(_)) {
                holding.delete(io).await;
            }
            return Err(e);
        }
        self.tell(holding, mark, note).await;
        Ok(Committed { rows, bytes })
    }

    /// Swaps the task's word. `Ok` if this attempt has won.
    async fn decide(&self, mut expected: Word) -> Result<(), Error> {
        let Deciding { io, shared, task, attempt } = *self;
        let stamp = shared.id().stamp();
        let mine = Word::Committed(attempt);
        loop {
            let place = shared.word(io, task).await?;
            let found = match place.swap(io, expected.value(stamp), mine.value(stamp)).await {
                // It may have been swapped. The value is this attempt's alone, so the word says it.
                Err(e) if e.failure_code() == Some(FailureCode::OutcomeUnknown) => loop {
                    match shared.look(io, task).await {
                        Err(Error::Failed(_)) if Instant::now() < io.limit() => {
                            io.sleep_until(Instant::now() + AGAIN).await;
                        }
                        looked => break looked?,
                    }
                },
                swapped => {
                    let found = shared.read(swapped)?;
                    if found == expected {
                        return Ok(());
                    }
                    found
                }
            };
            if found == mine {
                return Ok(());
            }
            if found != expected {
                self.may_replace(found).await?;
                expected = found;
            }
        }
    }

    /// Marks the attempt, so that its rows outlive this worker, and tells the readers. They would find out by
    /// themselves, later.
    async fn tell(&self, holding: Holding, mark: Key, note: Key) {
        let Deciding { io, shared, task, attempt } = *self;
        holding.committed([mark.clone(), note.clone()]);
        if let Err(e) = push_bytes(io, mark, &[1], How::New(Life::Parent)).await {
            tracing::debug!(exchange = shared.name, task, attempt, "committed, and lost with this worker: {e}");
        }
        if let Err(e) = push_bytes(io, note, &attempt.to_le_bytes(), How::TakenOver).await {
            tracing::debug!(exchange = shared.name, task, attempt, "committed, and readers are not told: {e}");
        }
    }
}
