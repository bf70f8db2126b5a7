//! Opening, joining and releasing an exchange.

use super::keeper::{self, User};
use super::names::{MAX_PARTITIONS, MAX_TASKS, anchor_key, draw_id, record_key, stamp, word_name};
use super::part::fetch_record;
use super::record::Record;
use super::shared::{ExchangeState, How, push_bytes};
use super::word::{Word, WordLocation};
use super::{End, ExchangeError, ExchangeTask, Partition};
use crate::client::both_clients;
use crate::error::Error;
use crate::push::Order;
use crate::request::{AnyClient, BlockingClient, HasHandle};
use crate::request::{FlowCall as ExchangeCall, Io};
use crate::session::Connection;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::exchange::Label;
use transfer_core::op::{Command, FailureCode};
use transfer_core::tensor::{Life, Name};
use transfer_memory::Errno;
use transfer_memory::session::SessionError;
use transfer_memory::socket::SocketError;

/// The time between two looks at something that another thread of this process does.
const LOOK: Duration = Duration::from_millis(10);

/// An exchange that is about to be opened or joined; see [`Client::exchange`](crate::Client::exchange).
#[derive(Debug)]
#[must_use = "nothing is opened before `open` or `join`"]
pub struct ExchangeBuilder<C> {
    connection: Arc<Connection>,
    worker: Name,
    node: Name,
    name: String,
    partitions: u32,
    tasks: u32,
    deadline: Option<Duration>,
    client: PhantomData<C>,
}

impl<C: AnyClient> ExchangeBuilder<C> {
    pub(crate) fn new(connection: Arc<Connection>, worker: Name, node: Name, name: &str) -> Self {
        let name = name.to_owned();
        ExchangeBuilder { connection, worker, node, name, partitions: 1, tasks: 1, deadline: None, client: PhantomData }
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
        let session = self.connection.session();
        ExchangeCall::new(session, move |io| self.open_by(io))
    }

    async fn open_by(self, io: Io) -> Result<Exchange<C>, Error> {
        let ExchangeBuilder { connection, worker, node, name, partitions, tasks, deadline, .. } = self;
        let opened = Instant::now();
        let key = record_key(&name)?;
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Err(ExchangeError::BadPartitions { name, found: partitions, most: MAX_PARTITIONS }.into());
        }
        if !(1..=MAX_TASKS).contains(&tasks) {
            return Err(ExchangeError::BadTasks { name, found: tasks, most: MAX_TASKS }.into());
        }
        let id = draw_id();
        let words = Numbers::take(&connection, tasks);
        let open = Word::Open.value(stamp(id));
        let places = io.all(words.numbers.iter().copied(), async |number| {
            let place = WordLocation::find(&io, word_name(&worker, number)?).await?;
            place.set(&io, open).await?;
            Ok::<_, Error>(place)
        });
        let session = How::New(Life::Session);
        let places = places.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        // The anchor comes first: its sidecar may refuse the number of partitions, and nobody has seen the exchange by now.
        let anchor = anchor_key(&name, id)?;
        match push_bytes(&io, anchor.clone(), &Label::new(partitions, tasks, 0, 0).to_bytes(), session).await {
            Ok(()) => {}
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => {
                return Err(ExchangeError::TooManyPartitions { name, found: partitions, why: failure.text }.into());
            }
            Err(e) => return Err(e),
        }
        let record = Record { id, partitions, opener: worker.clone(), words: words.numbers.clone() };
        if let Err(e) = push_bytes(&io, key, &record.to_bytes(), session).await {
            let order = Order::<BlockingClient>::new(io.session(), Ok(Command::Delete { key: anchor }));
            // It ends with this session otherwise.
            let _ = io.run(order.call).await;
            let owner = match e {
                Error::Failed(failure) if failure.code == FailureCode::KeyOwned => failure.text,
                Error::Failed(failure) if failure.code == FailureCode::VersionNotRising => {
                    format!("this worker, {worker:?}")
                }
                e => return Err(e),
            };
            return Err(ExchangeError::Exists { name, owner }.into());
        }
        words.keep();
        let deadline = deadline.map(|deadline| crate::session::deadline(opened, deadline));
        Exchange::new(ExchangeState::new(name, record, (connection, node), places, deadline))
    }

    /// Joins the exchange of this name, and waits until it is open. The numbers of partitions and tasks, and the
    /// deadline, are those of the opener.
    pub fn join(self) -> ExchangeCall<C, Exchange<C>> {
        let session = self.connection.session();
        ExchangeCall::new(session, async move |io: Io| {
            let ExchangeBuilder { connection, node, name, .. } = self;
            let record = fetch_record(&io, record_key(&name)?, &name, io.left(io.timeout())).await?;
            Exchange::new(ExchangeState::new(name, record, (connection, node), Vec::new(), None))
        })
    }
}

/// The numbers of words that are about to be used. They are given back if the exchange is not opened.
struct Numbers<'a> {
    connection: &'a Connection,
    numbers: Vec<u32>,
    kept: bool,
}

impl<'a> Numbers<'a> {
    fn take(connection: &'a Connection, count: u32) -> Numbers<'a> {
        Numbers { connection, numbers: connection.words().take(count), kept: false }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Numbers<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.connection.words().give_back(&self.numbers);
        }
    }
}

/// An exchange of record batches between workers: `tasks` write rows, `partitions` are read. Cheap to clone.
///
/// ```no_run
/// # use transfer_client::{By, Client, Error};
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
    user: Arc<User>,
    client: PhantomData<C>,
}

impl<C> Clone for Exchange<C> {
    fn clone(&self) -> Self {
        Exchange { user: self.user.clone(), client: PhantomData }
    }
}

impl<C> fmt::Debug for Exchange<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.user.0.fmt(f)
    }
}

impl<C: AnyClient> Exchange<C> {
    fn new(shared: ExchangeState) -> Result<Self, Error> {
        let shared = Arc::new(shared);
        keeper::start(&shared).map_err(|e| {
            let source = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
            let step = "start the thread that keeps an exchange for";
            Error::Connect(SessionError::Socket(SocketError::System { step, source }))
        })?;
        Ok(Exchange { user: Arc::new(User(shared)), client: PhantomData })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.user.0.name
    }

    /// The number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.user.0.partitions()
    }

    /// The number of tasks.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.user.0.tasks()
    }

    /// Begins an attempt of a task. Each attempt of a task needs a number of its own. Fails at once with
    /// [`ExchangeError::Committed`] if another attempt has committed, and its data are there.
    pub fn task(&self, task: u32, attempt: u32) -> ExchangeCall<C, ExchangeTask<C>> {
        let user = self.user.clone();
        let session = user.0.connection.session();
        ExchangeCall::new(session, async move |io: Io| ExchangeTask::begin(&io, user, task, attempt).await)
    }

    /// Reads a partition. See [`Partition`].
    #[must_use]
    pub fn partition(&self, partition: u32) -> Partition<C> {
        Partition::new(self.user.clone(), partition)
    }

    /// Ends the exchange, for all workers: commits and reads fail from now on with [`ExchangeError::Over`], and all its
    /// memory becomes free. What was read stays readable. Only the handles of its opener can do this.
    pub fn release(&self) -> ExchangeCall<C, ()> {
        let user = self.user.clone();
        let session = user.0.connection.session();
        ExchangeCall::new(session, async move |io: Io| {
            let shared = &user.0;
            if !shared.is_opener {
                let (name, opener) = (shared.name.clone(), shared.record.opener.as_str().to_owned());
                return Err(ExchangeError::NotOpener { name, opener }.into());
            }
            let started = Instant::now();
            let limit = io.limit();
            shared.end(End::Released);
            while !shared.bell.is_done() {
                if let Some(gone) = io.session().gone() {
                    return Err(gone.into());
                }
                if Instant::now() >= limit {
                    return Err(Error::NoAnswer { waited: started.elapsed() });
                }
                io.sleep_until(limit.min(Instant::now() + LOOK)).await;
            }
            Ok(())
        })
    }
}

both_clients! {
    /// Names an exchange of record batches, to open or to join it. A name has at most 440 bytes. See [`Exchange`].
    pub fn exchange(&self, name: impl AsRef<str>) -> ExchangeBuilder<Self> {
        let handle = self.handle();
        ExchangeBuilder::new(handle.connection().clone(), handle.worker().clone(), handle.node().clone(), name.as_ref())
    }
}
