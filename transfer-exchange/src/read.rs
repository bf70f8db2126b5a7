//! Reading a partition.

use crate::block::Decoded;
use crate::calls::ExchangeCall;
use crate::error::{Error, ExchangeError};
use crate::merged::{MAX_MERGED_BYTES, Merged};
use crate::part::{Blocks, Found};
use crate::passes::{InOrder, Then};
use crate::state::{ExchangeState, Handles};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_client::flow::{Flow, Io};
use transfer_client::{AnyClient, Begun, BlockingClient, Client, DEFAULT_TIMEOUT, FabricKind, Report};

/// A flow that is a part of the reading.
type Step<T> = Flow<Result<T, Error>>;

/// The time-out of flows that are parts of a call, whose time-out counts.
const PART_TIMEOUT: Duration = Duration::from_secs(3600);

/// The most tasks of a partition whose commits are waited for at the same time. The others take turns.
const MAX_AWAITED: usize = 32;

/// The most tasks of a partition of which it is found out at the same time where their blocks are.
const MAX_LEARNED: usize = 16;

/// The most fetches of blocks of a partition that are under way at the same time, or wait to be taken: each is of one task,
/// or of several tasks of a node.
const MAX_FETCHED: usize = 4;

/// No further fetch begins while the blocks of several tasks that are under way, or wait to be taken, have this many bytes. With
/// one fetch more, that is twice as much of the landing pool.
const MAX_AHEAD_BYTES: u64 = MAX_MERGED_BYTES;

/// How long a commit is waited for before the task's word is read: if all tasks are waited for, and if they take turns.
const COMMIT_WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));

/// The rows of a partition: batches, in the order in which tasks commit, or in [an order of their
/// own](Partition::in_order_of). Several tasks are fetched at the same time. On one host the batches lie in the memory of
/// the workers that wrote them, and no byte is copied.
///
/// Another `Partition` reads the same rows again.
pub struct Partition<C> {
    handles: Arc<Handles>,
    partition: u32,
    timeout: Duration,
    reader: Arc<Mutex<Reader>>,
    client: PhantomData<C>,
}

/// The state of a partition.
#[derive(Default)]
struct Reader {
    begun: bool,
    /// Whether a call is under way.
    busy: bool,
    /// The tasks that are waiting for their turn.
    todo: VecDeque<u32>,
    locating: Vec<(u32, Step<Option<u32>>)>,
    /// The tasks that have committed, with their attempts.
    located: VecDeque<(u32, u32)>,
    /// The tasks of which it is being found out where their blocks are.
    learning: Vec<(u32, Step<Found>)>,
    /// The tasks whose blocks can be fetched.
    learned: VecDeque<LocatedTask>,
    fetching: Vec<Fetching>,
    /// The blocks that have come: a list for each fetch.
    come: VecDeque<FetchedBlocks>,
    lost: BTreeSet<u32>,
    /// The first schema, and the task that has it.
    schema: Option<(u32, SchemaRef)>,
    order: Order,
    /// The report of what has come last, and of all together.
    reports: Option<(Report, Report)>,
}

/// A task whose blocks can be fetched.
#[derive(Clone, Copy)]
struct LocatedTask {
    task: u32,
    attempt: u32,
    /// Whether its blocks could not be fetched together with those of other tasks.
    alone: bool,
}

/// A fetch that is under way.
struct Fetching {
    of: Vec<LocatedTask>,
    /// The length of the blocks, if they are of several tasks.
    bytes: u64,
    flow: Step<Fetched>,
}

/// The end of a fetch.
enum Fetched {
    /// Of one task.
    One(Found),
    /// Of several tasks of a node. `None`: each of them has to be fetched alone.
    Merged(Option<Vec<(u32, Blocks)>>),
}

/// Blocks that have come together, each with its task.
struct FetchedBlocks {
    blocks: VecDeque<(u32, Decoded)>,
    /// Their length, if they are of several tasks.
    bytes: u64,
    /// Whether they lie in a landing pool, for whose room others may wait.
    in_pool: bool,
}

/// The order of the rows.
#[derive(Default)]
enum Order {
    /// As tasks commit.
    #[default]
    Coming,
    OfSeed(Box<InOrder>),
}

impl<C> fmt::Debug for Partition<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition").field("of", &self.handles.0).field("partition", &self.partition).finish()
    }
}

impl<C: AnyClient> Partition<C> {
    pub(super) fn new(handles: Arc<Handles>, partition: u32) -> Self {
        Partition { handles, partition, timeout: DEFAULT_TIMEOUT, reader: Arc::default(), client: PhantomData }
    }

    /// The time-out of each batch, 30 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Reads the rows in an order that only the seed chooses: with the same tasks it is the same in every run, whichever
    /// attempts and nodes wrote them. Batches have 8,192 rows; see [`rows_per_batch`](Self::rows_per_batch). It begins
    /// when all tasks have committed. A partition that takes too much [`memory`](Self::memory) is read several times.
    #[must_use]
    pub fn in_order_of(self, seed: u64) -> Self {
        self.reader.lock().order = Order::OfSeed(Box::new(InOrder::new(seed)));
        self
    }

    /// Goes on from this row of [`in_order_of`](Self::in_order_of), as [`position`](Self::position) said it before.
    #[must_use]
    pub fn from_position(self, at: u64) -> Self {
        self.with_order(|order| order.position = at)
    }

    /// The number of rows of each batch of [`in_order_of`](Self::in_order_of).
    #[must_use]
    pub fn rows_per_batch(self, rows: NonZeroUsize) -> Self {
        self.with_order(|order| order.rows_per_batch = rows)
    }

    /// The bytes of memory that [`in_order_of`](Self::in_order_of) takes for rows, 1 GiB by default. While rows are put in
    /// order, each takes twice the length of its values, and 40 bytes. If all of the partition takes more, it is read once to
    /// count its rows, and then once for each part of this size. The order, and the batches, are the same.
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        self.with_order(|order| order.memory = bytes)
    }

    /// Changes the order, as long as nothing was read.
    fn with_order(self, set: impl FnOnce(&mut InOrder)) -> Self {
        if let Reader { begun: false, order: Order::OfSeed(order), .. } = &mut *self.reader.lock() {
            set(order);
        }
        self
    }

    /// The number of rows of [`in_order_of`](Self::in_order_of) that were read. A partition that is read later goes on
    /// [from there](Self::from_position).
    #[must_use]
    pub fn position(&self) -> u64 {
        match &self.reader.lock().order {
            Order::Coming => 0,
            Order::OfSeed(order) => order.position,
        }
    }

    /// The report of the fetch that came last, of the blocks of one task, or of several tasks of another node. It may be ahead
    /// of the batch that was returned last. `None` before the first one.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.reader.lock().reports.map(|(last, _)| last)
    }

    /// The report of all fetches so far: their bytes, and what was copied, are added.
    #[must_use]
    pub fn report_of_all(&self) -> Option<Report> {
        self.reader.lock().reports.map(|(_, all)| all)
    }

    fn next_call(&mut self) -> ExchangeCall<C, Option<RecordBatch>> {
        let (handles, partition, reader) = (self.handles.clone(), self.partition, self.reader.clone());
        let client = handles.0.client.clone();
        let reading = Reading::begin(reader, &handles.0, partition);
        let call = ExchangeCall::of_flow(&client, async move |io: Io| reading?.next(&io, &handles.0, partition).await);
        call.timeout(self.timeout)
    }
}

impl Partition<Client> {
    /// The next batch; `None` at the end. A call that is given up loses nothing.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] with the tasks that have to run again; a later call reads on. Any other [`Error`].
    pub async fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        self.next_call().await
    }
}

impl Partition<BlockingClient> {
    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] with the tasks that have to run again; a later call reads on. Any other [`Error`].
    #[expect(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        self.next_call().call()
    }

    /// Begins to read the next batch.
    pub fn begin(&mut self) -> Begun<'static, Result<Option<RecordBatch>, Error>> {
        self.next_call().begin()
    }
}

/// The right to read.
struct Reading(Arc<Mutex<Reader>>);

impl Reading {
    fn begin(reader: Arc<Mutex<Reader>>, shared: &ExchangeState, partition: u32) -> Result<Reading, Error> {
        let (name, partitions) = (shared.name.clone(), shared.partitions());
        if partition >= partitions {
            return Err(ExchangeError::NoSuchPartition { name, partition, partitions }.into());
        }
        if std::mem::replace(&mut reader.lock().busy, true) {
            return Err(ExchangeError::Busy { name, what: format!("partition {partition}") }.into());
        }
        Ok(Reading(reader))
    }

    async fn next(self, io: &Io, shared: &Arc<ExchangeState>, partition: u32) -> Result<Option<RecordBatch>, Error> {
        let started = Instant::now();
        let limit = io.limit();
        poll_fn(|cx| {
            let mut reader = self.0.lock();
            if let ControlFlow::Break(next) = reader.step(io, shared, partition, cx.waker()) {
                return Poll::Ready(next);
            }
            if Instant::now() >= limit {
                let (name, waited) = (shared.name.clone(), started.elapsed());
                let tasks = reader.missing();
                return Poll::Ready(Err(ExchangeError::NotCommitted { name, partition, tasks, waited }.into()));
            }
            io.poll_at(limit);
            Poll::Pending
        })
        .await
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.lock().busy = false;
    }
}

impl Reader {
    /// Continues as far as possible without waiting.
    fn step(
        &mut self,
        io: &Io,
        shared: &Arc<ExchangeState>,
        partition: u32,
        waker: &Waker,
    ) -> ControlFlow<Result<Option<RecordBatch>, Error>> {
        if !std::mem::replace(&mut self.begun, true) {
            self.read_all(shared, partition);
        }
        loop {
            if let Err(e) = shared.ledger.check() {
                return ControlFlow::Break(Err(e));
            }
            if let Some(next) = self.ready().transpose() {
                return ControlFlow::Break(next.map(Some));
            }
            let moved = match self.locate(io, shared, waker) {
                Ok(located) => match self.learn(io, shared, waker) {
                    Ok(learned) => {
                        self.fetch(io, shared, partition, waker).map(|fetched| located || learned || fetched)
                    }
                    Err(e) => Err(e),
                },
                Err(e) => Err(e),
            };
            match moved {
                Ok(true) => continue,
                Ok(false) => {}
                Err(e) => return ControlFlow::Break(Err(e)),
            }
            let waits = !self.located.is_empty()
                || !self.learning.is_empty()
                || !self.learned.is_empty()
                || !self.fetching.is_empty();
            if !waits && !self.lost.is_empty() {
                let tasks: Vec<_> = std::mem::take(&mut self.lost).into_iter().collect();
                // The next call looks for later attempts of them.
                self.todo.extend(&tasks);
                return ControlFlow::Break(Err(ExchangeError::Lost { name: shared.name.clone(), tasks }.into()));
            }
            if waits || !self.locating.is_empty() || !self.todo.is_empty() {
                return ControlFlow::Continue(());
            }
            // All tasks have come.
            let then = match (&mut self.order, &self.schema) {
                (Order::OfSeed(order), Some((_, schema))) => order.go_on(schema),
                _ => Then::End,
            };
            match then {
                Then::ReadAgain => self.read_all(shared, partition),
                Then::Return => {}
                Then::End => return ControlFlow::Break(Ok(None)),
                Then::Changed { expected, found } => {
                    let name = shared.name.clone();
                    return ControlFlow::Break(Err(ExchangeError::Changed { name, partition, expected, found }.into()));
                }
            }
        }
    }

    /// Begins to read all tasks.
    fn read_all(&mut self, shared: &ExchangeState, partition: u32) {
        // Each partition begins with another task, so that not all readers begin at the same node.
        let tasks = shared.tasks();
        for task in (0..tasks).map(|n| (n + partition % tasks) % tasks) {
            match shared.known(task) {
                Some(known) => self.located.push_back((task, known.number)),
                None => self.todo.push_back(task),
            }
        }
    }

    /// The next batch of what has come.
    fn ready(&mut self) -> Result<Option<RecordBatch>, Error> {
        while let Some(FetchedBlocks { blocks, in_pool, .. }) = self.come.front_mut() {
            match (blocks.pop_front(), &mut self.order) {
                (None, _) => drop(self.come.pop_front()),
                (Some((task, block)), Order::OfSeed(order)) => {
                    if let Err(e) = order.take(task, &block, *in_pool) {
                        // The next call takes it.
                        blocks.push_front((task, block));
                        return Err(e.into());
                    }
                }
                (Some((_, block)), Order::Coming) => return Ok(Some(block.into_batch())),
            }
        }
        match &mut self.order {
            Order::OfSeed(order) => Ok(order.next()?),
            Order::Coming => Ok(None),
        }
    }

    /// Waits for commits. Returns whether something has happened.
    fn locate(&mut self, io: &Io, shared: &Arc<ExchangeState>, waker: &Waker) -> Result<bool, Error> {
        // If all can be waited for at the same time, none has to make room for another one.
        let all = self.locating.len() + self.todo.len() <= MAX_AWAITED;
        let patience = if all { COMMIT_WAITS.0 } else { COMMIT_WAITS.1 };
        while self.locating.len() < MAX_AWAITED
            && let Some(task) = self.todo.pop_front()
        {
            let shared = shared.clone();
            let flow = Flow::new(io.client(), async move |io: Io| match shared.known(task) {
                Some(known) => Ok(Some(known.number)),
                None => shared.locate(&io, task, patience).await,
            });
            self.locating.push((task, flow.timeout(PART_TIMEOUT)));
        }
        let (mut moved, mut at) = (false, 0);
        while let Some(((task, _), found)) = next_ended(&mut self.locating, &mut at, |(_, flow)| flow, io, waker) {
            match found {
                Ok(Some(attempt)) => self.located.push_back((task, attempt)),
                Ok(None) => self.todo.push_back(task),
                Err(e) => {
                    self.todo.push_back(task);
                    return Err(e);
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Finds out where the blocks of tasks are. Returns whether something has happened.
    fn learn(&mut self, io: &Io, shared: &Arc<ExchangeState>, waker: &Waker) -> Result<bool, Error> {
        let mut moved = false;
        while self.learning.len() < MAX_LEARNED
            && let Some((task, attempt)) = self.located.pop_front()
        {
            if shared.known(task).is_some_and(|known| known.number == attempt) {
                self.learned.push_back(LocatedTask { task, attempt, alone: false });
                moved = true;
                continue;
            }
            let shared = shared.clone();
            let flow = Flow::new(io.client(), async move |io: Io| shared.deliver(&io, task, None, attempt).await);
            self.learning.push((task, flow.timeout(PART_TIMEOUT)));
        }
        let mut at = 0;
        while let Some(((task, _), ended)) = next_ended(&mut self.learning, &mut at, |(_, flow)| flow, io, waker) {
            moved = true;
            match ended {
                Ok(Found::Blocks(Blocks { attempt, .. })) => {
                    self.learned.push_back(LocatedTask { task, attempt: attempt.number, alone: false });
                }
                Ok(Found::NotYet) => self.todo.push_back(task),
                Ok(Found::Lost) => drop(self.lost.insert(task)),
                Err(e) => {
                    self.todo.push_back(task);
                    return Err(e);
                }
            }
        }
        Ok(moved)
    }

    /// Takes the tasks whose blocks are fetched next: the first one, and those whose blocks can be fetched together with its
    /// blocks.
    fn next_fetch(&mut self, io: &Io, shared: &Arc<ExchangeState>, partition: u32) -> Option<Fetching> {
        let first = self.learned.pop_front()?;
        let mut taken = vec![first];
        let to_merge = |of: &LocatedTask| match of.alone {
            true => None,
            false => shared.to_merge(of.task, of.attempt, partition),
        };
        let mut merged = to_merge(&first).and_then(Merged::new);
        if let Some(merged) = &mut merged {
            self.learned.retain(|of| {
                let is_near = || shared.known(of.task).is_some_and(|known| merged.is_near(&known));
                let takes = !merged.is_full() && is_near() && to_merge(of).is_some_and(|of| merged.add(of));
                if takes {
                    taken.push(*of);
                }
                !takes
            });
        }
        let shared = shared.clone();
        let merged = merged.filter(|merged| merged.tasks.len() > 1);
        let bytes = merged.as_ref().map_or(0, |merged| merged.bytes);
        let flow = match merged {
            Some(merged) => {
                Flow::new(io.client(), async move |io: Io| Ok(Fetched::Merged(shared.fetch_merged(&io, merged).await)))
            }
            None => {
                let LocatedTask { task, attempt, .. } = first;
                Flow::new(io.client(), async move |io: Io| {
                    Ok(Fetched::One(shared.deliver(&io, task, Some(partition), attempt).await?))
                })
            }
        };
        Some(Fetching { of: taken, bytes, flow: flow.timeout(PART_TIMEOUT) })
    }

    /// The length of the blocks of several tasks that are under way, or wait to be taken.
    fn bytes_ahead(&self) -> u64 {
        let fetching: u64 = self.fetching.iter().map(|fetching| fetching.bytes).sum();
        fetching + self.come.iter().map(|come| come.bytes).sum::<u64>()
    }

    /// Fetches blocks. Returns whether something has happened.
    fn fetch(&mut self, io: &Io, shared: &Arc<ExchangeState>, partition: u32, waker: &Waker) -> Result<bool, Error> {
        while self.fetching.len() + self.come.len() < MAX_FETCHED
            && self.bytes_ahead() < MAX_AHEAD_BYTES
            && let Some(next) = self.next_fetch(io, shared, partition)
        {
            self.fetching.push(next);
        }
        let (mut moved, mut at) = (false, 0);
        while let Some((fetching, ended)) =
            next_ended(&mut self.fetching, &mut at, |fetching| &mut fetching.flow, io, waker)
        {
            let Fetching { of, bytes, .. } = fetching;
            moved = true;
            match ended {
                Ok(Fetched::One(Found::Blocks(blocks))) => {
                    self.take(shared, of.iter().map(|of| of.task).zip([blocks]).collect(), bytes)?;
                }
                Ok(Fetched::Merged(Some(found))) => self.take(shared, found, bytes)?,
                Ok(Fetched::Merged(None)) => {
                    for of in of.into_iter().rev() {
                        self.learned.push_front(LocatedTask { alone: true, ..of });
                    }
                }
                Ok(Fetched::One(Found::NotYet)) => self.todo.extend(of.iter().map(|of| of.task)),
                Ok(Fetched::One(Found::Lost)) => self.lost.extend(of.iter().map(|of| of.task)),
                Err(e) => {
                    self.todo.extend(of.iter().map(|of| of.task));
                    return Err(e);
                }
            }
        }
        Ok(moved)
    }

    /// Takes blocks that have come together: of each task all of them, or none.
    fn take(&mut self, shared: &ExchangeState, found: Vec<(u32, Blocks)>, bytes: u64) -> Result<(), Error> {
        let (mut come, mut report, mut failed) = (VecDeque::new(), None, None);
        for (task, blocks) in found {
            report = report.or(blocks.report);
            match self.decode(shared, task, &blocks) {
                Ok(decoded) => come.extend(decoded.into_iter().map(|block| (task, block))),
                Err(e) => {
                    self.todo.push_back(task);
                    failed.get_or_insert(e);
                }
            }
        }
        if come.is_empty() {
            return failed.map_or(Ok(()), Err);
        }
        if let Some(last) = report {
            let mut sum = last;
            if let Some((_, before)) = self.reports {
                sum.bytes += before.bytes;
                sum.copied += before.copied;
                sum.relayed += before.relayed;
            }
            self.reports = Some((last, sum));
        }
        // What is read where it was written takes no room of a pool.
        let in_pool = report
            .is_some_and(|report| report.copied > 0 || !matches!(report.fabric, FabricKind::Local | FabricKind::Shm));
        self.come.push_back(FetchedBlocks { blocks: come, bytes, in_pool });
        failed.map_or(Ok(()), Err)
    }

    fn decode(&mut self, shared: &ExchangeState, task: u32, blocks: &Blocks) -> Result<Vec<Decoded>, Error> {
        let Some(reader) = &blocks.attempt.reader else { return Ok(Vec::new()) };
        match &self.schema {
            Some((first, schema)) if schema != reader.schema() => {
                let (expected, found) = (schema.to_string().into(), reader.schema().to_string().into());
                return Err(
                    ExchangeError::Schemas { name: shared.name.clone(), first: *first, expected, task, found }.into()
                );
            }
            Some(_) => {}
            None => self.schema = Some((task, reader.schema().clone())),
        }
        Ok(blocks.blocks.iter().map(|block| reader.decode(block)).collect::<Result<_, _>>()?)
    }

    /// The tasks that have not come.
    fn missing(&self) -> Vec<u32> {
        let fetched = self.fetching.iter().flat_map(|fetching| &fetching.of).chain(&self.learned).map(|of| of.task);
        let found = self.locating.iter().map(|(task, _)| *task).chain(self.learning.iter().map(|(task, _)| *task));
        let found = found.chain(self.located.iter().map(|(task, _)| *task));
        let all = fetched.chain(found).chain(self.todo.iter().copied());
        let all: BTreeSet<_> = all.collect();
        all.into_iter().collect()
    }
}

/// Polls these flows from `at` on until one ends, and takes that one out. `at` is then the place of the next one.
fn next_ended<T, U>(
    flows: &mut Vec<T>,
    at: &mut usize,
    of: impl Fn(&mut T) -> &mut Flow<U>,
    io: &Io,
    waker: &Waker,
) -> Option<(T, U)> {
    while let Some(one) = flows.get_mut(*at) {
        match of(one).poll(waker) {
            ControlFlow::Continue(again) => {
                io.poll_at(again);
                *at += 1;
            }
            ControlFlow::Break(ended) => return Some((flows.swap_remove(*at), ended)),
        }
    }
    None
}
