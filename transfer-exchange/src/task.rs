//! Tasks: writing rows, and committing them.

use crate::calls::{ExchangeCall, How, REREAD_INTERVAL, push, push_bytes};
use crate::error::{Error, ExchangeError, PartitionError};
use crate::ledger::Holding;
use crate::manifest::{BLOCKS_PER_BUNDLE, HEADS, Starts};
use crate::partition::By;
use crate::pieces::{AttemptContext, add_lengths, allocate_now, named};
use crate::scatter::{Chosen, LARGEST_BLOCK_BYTES, Scatter};
use crate::state::{ExchangeState, Handles};
use crate::word::Word;
use crate::written::{Writing, Written};
use arrow_array::RecordBatch;
use parking_lot::Mutex;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;
use transfer_client::flow::Io;
use transfer_client::{AnyClient, BundleTensor, DType, FailureCode, Key, Life, Spill};
use transfer_core::exchange::Label;

/// One attempt of a task: rows that nobody sees before [`ExchangeTask::commit`]. If it is dropped, nothing of it is
/// left, and its memory is free.
///
/// All batches of a task have the same schema, and so have all tasks of an exchange.
pub struct ExchangeTask<C> {
    handles: Arc<Handles>,
    task: u32,
    attempt: u32,
    /// What the task's word said at the beginning: no attempt has committed, or a lost one.
    begun_at: Word,
    written: Arc<Mutex<Written>>,
    client: PhantomData<C>,
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

impl<C> fmt::Debug for ExchangeTask<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExchangeTask { handles, task, attempt, .. } = self;
        f.debug_struct("ExchangeTask").field("of", &handles.0).field("task", task).field("attempt", attempt).finish()
    }
}

impl<C: AnyClient> ExchangeTask<C> {
    pub(super) async fn begin(io: &Io, handles: Arc<Handles>, task: u32, attempt: u32) -> Result<Self, Error> {
        let shared = &handles.0;
        shared.check_task(task)?;
        shared.check_attempt(task, attempt)?;
        shared.ledger.check()?;
        let begun_at = Deciding { io, shared, task, attempt }.expected(Word::Open).await?;
        Ok(ExchangeTask { task, attempt, begun_at, written: Arc::default(), client: PhantomData, handles })
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
    /// room in the arena, and fails with [`transfer_client::Error::ArenaFull`] if there is none in time. A batch is written as a whole, or
    /// not at all.
    pub fn write(&mut self, batch: &RecordBatch, by: By<'_>) -> ExchangeCall<C, ()> {
        let chosen = self.choose(batch, &by);
        let (handles, task, attempt) = (self.handles.clone(), self.task, self.attempt);
        let client = handles.0.client.clone();
        ExchangeCall::of_flow(&client, async move |io: Io| {
            let (chosen, writing) = chosen?;
            let shared = &handles.0;
            shared.ledger.check()?;
            writing.write(AttemptContext { io: &io, shared, task, attempt }, chosen).await
        })
    }

    fn choose(&self, batch: &RecordBatch, by: &By<'_>) -> Result<(Chosen, Writing), Error> {
        let shared = &self.handles.0;
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
        let chosen = scatter.choose(batch, by).map_err(failed)?;
        drop(written);
        Ok((chosen, writing))
    }

    /// Makes this attempt the task, if no other attempt was faster: then it fails with [`ExchangeError::Committed`], and
    /// what it wrote is dropped. If the call fails otherwise, or is given up, either all or nothing is committed.
    pub fn commit(self) -> ExchangeCall<C, Committed> {
        let ExchangeTask { handles, task, attempt, begun_at, written, .. } = self;
        let client = handles.0.client.clone();
        ExchangeCall::of_flow(&client, async move |io: Io| {
            let shared = &handles.0;
            let writing = Writing::begin(&written, shared, task)?;
            writing.write_rest(AttemptContext { io: &io, shared, task, attempt }).await?;
            Deciding { io: &io, shared, task, attempt }.commit(begun_at, &writing).await
        })
    }
}

/// An attempt that wants to commit.
struct Deciding<'a> {
    io: &'a Io,
    shared: &'a Arc<ExchangeState>,
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

    async fn commit(&self, begun_at: Word, writing: &Writing) -> Result<Committed, Error> {
        let Deciding { io, shared, task, attempt } = *self;
        let expected = self.expected(begun_at).await?;
        let note = shared.note_key(task)?;
        let mark = shared.mark_key((task, attempt))?;
        let (holding, label) = self.publish(writing).await.map_err(|e| match e.failure_code() {
            Some(FailureCode::KeyOwned | FailureCode::VersionNotRising) => {
                ExchangeError::AttemptUsed { name: shared.name.clone(), task, attempt }.into()
            }
            _ => e,
        })?;
        if let Err(e) = self.decide(expected).await {
            // If nobody knows whether the attempt has won, the keeper finds out.
            if matches!(e, Error::Exchange(_)) {
                holding.delete(io).await;
            }
            return Err(e);
        }
        self.tell(holding, mark, &label, note).await;
        Ok(Committed { rows: label.rows, bytes: label.bytes })
    }

    /// Publishes all rows that are not published yet, and the list of the bundles. Returns what the mark will say. If this
    /// is given up or fails, the keeper deletes what was published.
    async fn publish(&self, writing: &Writing) -> Result<(Holding, Label), Error> {
        let Deciding { io, shared, task, attempt } = *self;
        let (rows, schema) = match &writing.0.lock().scatter {
            Some(scatter) => (scatter.rows(), scatter.schema_message().to_vec()),
            None => (0, Vec::new()),
        };
        // An attempt that had to make room before goes on with it. Otherwise the blocks come with the list, if they fit.
        if writing.0.lock().holding.is_some() {
            writing.publish(AttemptContext { io, shared, task, attempt }, Spill::Now).await?;
        }
        let (holding, mut bundles, mut lengths, mut last) = {
            let mut written = writing.0.lock();
            written.reserve = None;
            let (bundles, lengths) = (std::mem::take(&mut written.bundles), std::mem::take(&mut written.lengths));
            (written.holding.take(), bundles, lengths, written.last_bundle)
        };
        let key = shared.bundle_key((task, attempt), 0)?;
        let holding = match holding {
            Some(holding) => {
                holding.add(key.clone())?;
                holding
            }
            None => shared.ledger.hold(task, attempt, vec![key.clone()])?,
        };
        let blocks = writing.take();
        add_lengths(&mut lengths, &blocks);
        lengths.resize(shared.partitions() as usize, 0);
        let mut parts = Vec::new();
        for part in blocks.chunks(BLOCKS_PER_BUNDLE as usize) {
            let number = if parts.is_empty() { 0 } else { last + 1 };
            last = last.max(number);
            bundles.0.push((number, Starts::of(shared.partitions(), part.iter().map(|(partition, _)| *partition))));
            parts.push((number, part));
        }
        let list = bundles.to_bytes();
        let first = parts.first().map_or(&[][..], |(_, part)| part);
        let mut tensors = Vec::new();
        for (name, bytes) in HEADS.into_iter().zip([&schema[..], &list, shared.client.node().as_bytes()]) {
            tensors.push((name.to_owned(), BundleTensor::from_bytes(DType::U8, [bytes.len() as u64], bytes)?));
        }
        tensors.extend(named(first));
        push(io, io.client().push_bundle(key, tensors), How::Rows(Spill::Allowed)).await?;
        for (number, part) in parts.into_iter().skip(1) {
            let key = shared.bundle_key((task, attempt), number)?;
            holding.add(key.clone())?;
            push(io, io.client().push_bundle(key, named(part)), How::Rows(Spill::Allowed)).await?;
        }
        Ok((holding, Label::of_task(shared.tasks(), rows, &lengths)))
    }

    /// Swaps the task's word. `Ok` if this attempt has won.
    async fn decide(&self, mut expected: Word) -> Result<(), Error> {
        let Deciding { io, shared, task, attempt } = *self;
        let stamp = shared.stamp();
        let mine = Word::Committed(attempt);
        loop {
            let location = shared.word(io, task).await?;
            let found = match location.swap(io, expected.value(stamp), mine.value(stamp)).await {
                // It may have been swapped. The value is this attempt's alone, so the word says it.
                Err(e) if e.failure_code() == Some(FailureCode::OutcomeUnknown) => loop {
                    match shared.look(io, task).await {
                        Err(e) if e.failure_code().is_some() && Instant::now() < io.limit() => {
                            io.sleep_until(Instant::now() + REREAD_INTERVAL).await;
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
    async fn tell(&self, holding: Holding, mark: Key, label: &Label, note: Key) {
        let Deciding { io, shared, task, attempt } = *self;
        holding.committed([mark.clone(), note.clone()]);
        if let Err(e) = self.push_mark(mark, label).await {
            tracing::debug!(exchange = shared.name, task, attempt, "committed, and lost with this worker: {e}");
        }
        if let Err(e) = push_bytes(io, note, &attempt.to_le_bytes(), How::TakenOver).await {
            tracing::debug!(exchange = shared.name, task, attempt, "committed, and readers are not told: {e}");
        }
    }

    /// Publishes the mark. If there is no room now for what it says of the partitions, it says their sum alone: readers
    /// wait for it, and nobody else needs the rest.
    async fn push_mark(&self, mark: Key, label: &Label) -> Result<(), Error> {
        let bytes = label.to_bytes();
        let room = allocate_now(self.io, &[bytes.len() as u64])?.and_then(|mut blocks| blocks.pop());
        match room {
            Some(mut tensor) => {
                tensor.as_mut_bytes().copy_from_slice(&bytes);
                push(self.io, self.io.client().push_tensor(mark, tensor), How::New(Life::Parent)).await
            }
            None => {
                let short = label.without_partitions().to_bytes();
                push_bytes(self.io, mark, &short, How::New(Life::Parent)).await
            }
        }
    }
}
