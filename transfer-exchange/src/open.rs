//! Opening, joining and releasing an exchange.

use crate::calls::{ExchangeCall, How, delete, fetch_record, push_bytes};
use crate::error::{End, Error, ExchangeError};
use crate::free_words::FreeWords;
use crate::keeper;
use crate::names::{MAX_PARTITIONS, MAX_TASKS, anchor_key, draw_id, record_key, stamp, word_name};
use crate::read::Partition;
use crate::record::Record;
use crate::state::{ExchangeState, Handles};
use crate::task::ExchangeTask;
use crate::word::{Word, WordLocation};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::flow::Io;
use transfer_client::{AnyClient, BlockingClient, Client, FailureCode, Life};
use transfer_core::exchange::Label;
use transfer_core::tensor::Name;
use transfer_memory::Errno;
use transfer_memory::forked::ForkGuard;
use transfer_memory::session::SessionError;
use transfer_memory::socket::SocketError;

/// The time between two looks at something that another thread of this process does.
const RELEASE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Gives the clients of `transfer-client` exchanges.
pub trait ExchangeExt: AnyClient {
    /// Names an exchange of record batches, to open or to join it. A name has at most 440 bytes. See [`Exchange`].
    fn exchange(&self, name: impl AsRef<str>) -> ExchangeBuilder<Self>;
}

impl ExchangeExt for Client {
    fn exchange(&self, name: impl AsRef<str>) -> ExchangeBuilder<Client> {
        ExchangeBuilder::new(self.blocking(), name.as_ref())
    }
}

impl ExchangeExt for BlockingClient {
    fn exchange(&self, name: impl AsRef<str>) -> ExchangeBuilder<BlockingClient> {
        ExchangeBuilder::new(self.clone(), name.as_ref())
    }
}

/// An exchange that is about to be opened or joined; see [`ExchangeExt::exchange`].
#[derive(Debug)]
#[must_use = "nothing is opened before `open` or `join`"]
pub struct ExchangeBuilder<C> {
    client: BlockingClient,
    name: String,
    partitions: u32,
    tasks: u32,
    deadline: Option<Duration>,
    caller: PhantomData<C>,
}

impl<C: AnyClient> ExchangeBuilder<C> {
    fn new(client: BlockingClient, name: &str) -> Self {
        let name = name.to_owned();
        ExchangeBuilder { client, name, partitions: 1, tasks: 1, deadline: None, caller: PhantomData }
    }

    /// The number of partitions, 1 to 4,096, or to the limit of this worker's sidecar if that is lower. The default is 1.
    /// Only [`open`](Self::open) needs it.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// The number of tasks, 1 to 2,048. The default is 1. Only [`open`](Self::open) needs it.
    pub fn tasks(mut self, tasks: u32) -> Self {
        self.tasks = tasks;
        self
    }

    /// The exchange is over this long after it was opened, if it was not released before. Without a deadline it lasts
    /// until it is released, or until the worker that opened it is gone.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Opens the exchange. There is one exchange of a name at a time.
    pub fn open(self) -> ExchangeCall<C, Exchange<C>> {
        let client = self.client.clone();
        ExchangeCall::of_flow(&client, move |io| self.open_by(io))
    }

    async fn open_by(self, io: Io) -> Result<Exchange<C>, Error> {
        let ExchangeBuilder { client, name, partitions, tasks, deadline, .. } = self;
        let opened = Instant::now();
        let key = record_key(&name)?;
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Err(ExchangeError::BadPartitions { name, found: partitions, most: MAX_PARTITIONS }.into());
        }
        if !(1..=MAX_TASKS).contains(&tasks) {
            return Err(ExchangeError::BadTasks { name, found: tasks, most: MAX_TASKS }.into());
        }
        let id = draw_id();
        let worker = Name::new(client.name())?;
        let words = TakenWords::take(&client, tasks);
        let open = Word::Open.value(stamp(id));
        let locations = io.all(words.numbers.iter().copied(), async |number| {
            let location = WordLocation::find(&io, word_name(&worker, number)?).await?;
            location.set(&io, open).await?;
            Ok::<_, Error>(location)
        });
        let session = How::New(Life::Session);
        let locations = locations.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        // The anchor comes first: its sidecar may refuse the number of partitions, and nobody has seen the exchange by now.
        let anchor = anchor_key(&name, id)?;
        match push_bytes(&io, anchor.clone(), &Label::new(partitions, tasks, 0, 0).to_bytes(), session).await {
            Ok(()) => {}
            Err(Error::Client(transfer_client::Error::Failed(failure))) if failure.code == FailureCode::Invalid => {
                return Err(ExchangeError::TooManyPartitions { name, found: partitions, why: failure.text }.into());
            }
            Err(e) => return Err(e),
        }
        let record = Record { id, partitions, opener: worker.clone(), words: words.numbers.clone() };
        if let Err(e) = push_bytes(&io, key, &record.to_bytes(), session).await {
            delete(&io, &name, vec![anchor]).await;
            let owner = match e {
                Error::Client(transfer_client::Error::Failed(failure)) if failure.code == FailureCode::KeyOwned => {
                    failure.text
                }
                e if e.failure_code() == Some(FailureCode::VersionNotRising) => format!("this worker, {worker:?}"),
                e => return Err(e),
            };
            return Err(ExchangeError::Exists { name, owner }.into());
        }
        words.keep();
        // One that is too far away for a clock is none.
        let deadline = deadline.and_then(|deadline| opened.checked_add(deadline));
        Exchange::new(client, name, record, locations, deadline)
    }

    /// Joins the exchange of this name, and waits until it is open. The numbers of partitions and tasks, and the
    /// deadline, are those of the opener.
    pub fn join(self) -> ExchangeCall<C, Exchange<C>> {
        let client = self.client.clone();
        ExchangeCall::of_flow(&client, async move |io: Io| {
            let ExchangeBuilder { client, name, .. } = self;
            let record = fetch_record(&io, record_key(&name)?, &name, io.left(io.timeout())).await?;
            Exchange::new(client, name, record, Vec::new(), None)
        })
    }
}

/// The numbers of words that are about to be used. They are given back if the exchange is not opened.
struct TakenWords {
    free: Arc<FreeWords>,
    numbers: Vec<u32>,
    kept: bool,
}

impl TakenWords {
    fn take(client: &BlockingClient, count: u32) -> TakenWords {
        let free = client.extension::<FreeWords>();
        TakenWords { numbers: free.take(count), free, kept: false }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for TakenWords {
    fn drop(&mut self) {
        if !self.kept {
            self.free.give_back(&self.numbers);
        }
    }
}

/// An exchange of record batches between workers: `tasks` write rows, `partitions` are read. Cheap to clone.
///
/// ```no_run
/// # use transfer_client::Client;
/// # use transfer_exchange::{By, Error, ExchangeExt};
/// # async fn example(client: Client, batch: arrow_array::RecordBatch) -> Result<(), Error> {
/// // One worker opens it. The others join it: client.exchange("epoch-3").join().await?
/// let exchange = client.exchange("epoch-3").partitions(64).tasks(8).open().await?;
///
/// let mut task = exchange.task(0, 0).await?;
/// task.write(&batch, By::Hash(&["user"])).await?;
/// task.commit().await?;
///
/// let mut rows = exchange.partition(17);
/// while let Some(batch) = rows.next().await? {
///     println!("{} rows", batch.num_rows());
/// }
/// exchange.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// - **The first attempt that commits is the task.** Others are dropped whole. So a task may run several times, on
///   different nodes, one after the other or at the same time.
/// - **Readers need not wait for all tasks.** A partition's rows come as tasks commit, and can be read again.
/// - **What is committed outlives the worker that wrote it.** It stays at that worker's sidecar, in memory or on disk,
///   until the exchange is over. If the sidecar is gone, readers get [`ExchangeError::Lost`] with the tasks to run again.
/// - **It is over** when its opener releases it or drops all its handles, at its deadline, or when its opener is gone.
///   All memory is free about a second later.
pub struct Exchange<C> {
    handles: Arc<Handles>,
    client: PhantomData<C>,
}

impl<C> Clone for Exchange<C> {
    fn clone(&self) -> Self {
        Exchange { handles: self.handles.clone(), client: PhantomData }
    }
}

impl<C> fmt::Debug for Exchange<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handles.0.fmt(f)
    }
}

impl<C: AnyClient> Exchange<C> {
    fn new(
        client: BlockingClient,
        name: String,
        record: Record,
        words: Vec<WordLocation>,
        deadline: Option<Instant>,
    ) -> Result<Self, Error> {
        let failed = |step, source| {
            let error = SessionError::Socket(SocketError::System { step, source });
            Error::Client(transfer_client::Error::Connect(error))
        };
        let guard = ForkGuard::new().map_err(|e| failed("watch for forks in", e))?;
        let shared = Arc::new(ExchangeState::new(name, record, client, words, deadline, guard));
        keeper::start(&shared).map_err(|e| {
            failed("start the thread that keeps an exchange for", Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))
        })?;
        Ok(Exchange { handles: Arc::new(Handles(shared)), client: PhantomData })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handles.0.name
    }

    /// The number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.handles.0.partitions()
    }

    /// The number of tasks.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.handles.0.tasks()
    }

    /// Begins an attempt of a task. Each attempt of a task needs a number of its own. Fails at once with
    /// [`ExchangeError::Committed`] if another attempt has committed, and its data are there.
    pub fn task(&self, task: u32, attempt: u32) -> ExchangeCall<C, ExchangeTask<C>> {
        let handles = self.handles.clone();
        let client = handles.0.client.clone();
        ExchangeCall::of_flow(&client, async move |io: Io| ExchangeTask::begin(&io, handles, task, attempt).await)
    }

    /// Reads a partition. See [`Partition`].
    #[must_use]
    pub fn partition(&self, partition: u32) -> Partition<C> {
        Partition::new(self.handles.clone(), partition)
    }

    /// Ends the exchange, for all workers: commits and reads fail from now on with [`ExchangeError::Over`], and all its
    /// memory becomes free. What was read stays readable. Only the handles of its opener can do this.
    pub fn release(&self) -> ExchangeCall<C, ()> {
        let handles = self.handles.clone();
        let client = handles.0.client.clone();
        ExchangeCall::of_flow(&client, async move |io: Io| {
            let shared = &handles.0;
            if !shared.is_opener {
                let (name, opener) = (shared.name.clone(), shared.record.opener.as_str().to_owned());
                return Err(ExchangeError::NotOpener { name, opener }.into());
            }
            let started = Instant::now();
            let limit = io.limit();
            shared.ledger.end(End::Released);
            while !shared.ledger.bell.is_done() {
                if let Some(gone) = io.client().gone() {
                    return Err(transfer_client::Error::from(gone).into());
                }
                if Instant::now() >= limit {
                    return Err(transfer_client::Error::NoAnswer { waited: started.elapsed() }.into());
                }
                io.sleep_until(limit.min(Instant::now() + RELEASE_CHECK_INTERVAL)).await;
            }
            Ok(())
        })
    }
}
