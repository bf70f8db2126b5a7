//! The worker's library: publish tensors and fetch them, with no copy where the hardware allows.
//!
//! A worker talks only to the sidecar of its node, `transferd`. Tensors lie in an *arena*: pinned memory that the
//! worker, the sidecar and the fabrics share. A push tells the sidecar where a tensor lies, and a fetch tells the
//! worker where to read it.
//!
//! # A first program
//! ```no_run
//! use transfer_client::{Client, DType, Error};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let client = Client::connect("/run/transfer/worker.sock").name("trainer-0").await?;
//!
//!     // Write a tensor where it can be read from, and publish it: no byte moves.
//!     let mut weights = client.allocate(DType::F32, [256, 128])?;
//!     weights.as_mut_slice::<f32>()?.fill(0.5);
//!     client.push_tensor("layer0/w", weights).version(1).await?;
//!
//!     // Any worker of the cluster can read it.
//!     let weights = client.fetch("layer0/w").at_least(1).await?;
//!     let sum: f32 = weights.as_slice::<f32>()?.iter().sum();
//!     println!("sum {sum}, {}", weights.report());
//!     Ok(())
//! }
//! ```
//!
//! Without a runtime, use [`BlockingClient`] and `call()`:
//! ```no_run
//! # use transfer_client::{BlockingClient, Error};
//! # fn main() -> Result<(), Error> {
//! let client = BlockingClient::connect("/run/transfer/worker.sock").name("trainer-1").call()?;
//! let weights = client.fetch("layer0/w").call()?;
//! # drop(weights);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `embedded`, `Client::embedded()` replaces `Client::connect(path)` and runs a sidecar inside the
//! process, for programs of one process, for examples and for tests. `Client::embedded_with(config)` makes it a node of a
//! cluster.
//!
//! # Record batches
//! Arrow record batches are pushed in place, and read where they landed. [`BatchBuilder`] builds batches in the arena.
//! ```no_run
//! # use transfer_client::{Client, Error};
//! # async fn example(client: Client, batch: arrow_array::RecordBatch) -> Result<(), Error> {
//! let pushed = client.push_batch("samples", &batch).await?;
//! println!("{} bytes lay elsewhere and were copied", pushed.report.copied);
//! let samples = client.fetch_batch("samples").await?.into_batch();
//! # drop(samples);
//! # Ok(())
//! # }
//! ```
//!
//! # Bundles
//! Many tensors are published as one version, and fetched as one: all weights of a model, for instance.
//! ```no_run
//! # use transfer_client::{Client, DType, Error};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let (w, b) = (client.allocate(DType::F32, [256, 128])?, client.allocate(DType::F32, [256])?);
//! client.push_bundle("policy", [("w", w), ("b", b)]).version(1).await?;
//! let policy = client.fetch_bundle("policy").at_least(1).await?;
//! let w = policy.get("w").map(|w| w.as_slice::<f32>()).transpose()?;
//! # drop(w);
//! # Ok(())
//! # }
//! ```
//!
//! # Slices
//! A part of a tensor is fetched alone, in numpy's form; see [`s!`].
//! ```no_run
//! # use transfer_client::{Client, Error, s};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let shard = client.fetch("layer0/w").slice(s![0..1024, -512..]).await?;
//! let w: Vec<f32> = shard.to_vec()?;
//! let shards = client.fetch_bundle("policy").slices([("w", s![.., 0..64]), ("b", s![0..64])]).await?;
//! println!("{:?} {}", shards.get("w").map(|w| w.shape()), shards.report());
//! # drop(w);
//! # Ok(())
//! # }
//! ```
//!
//! # Rows
//! Rows are gathered where the tensor lies, by their indices; see [`Client::take`](crate::Client::take).
//! ```no_run
//! # use transfer_client::{Client, Error};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let samples = client.take("rows/3", [7, 4_000_000, 7]).await?;
//! println!("{:?} {}", samples.shape(), samples.report());
//! # Ok(())
//! # }
//! ```
//!
//! # Sharded states
//! Each rank of a job pushes its boxes of global tensors. A version is there when all ranks have pushed theirs, and is fetched in any
//! other layout.
//! ```no_run
//! # use transfer_client::{Client, DType, Error, Rank, Shard, s};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let columns = client.allocate(DType::BF16, [8192, 1024])?;
//! let shards = [Shard::new("layer0/w", [8192, 8192], [0, 3 * 1024], columns)];
//! client.push_shards("policy", 7, Rank { rank: 3, world_size: 8 }, shards).await?;
//!
//! let rows = client.fetch_sharded("policy").slices([("layer0/w", s![0..4096])]).at_least(7).await?;
//! println!("{:?} {}", rows.get("layer0/w").map(|w| w.shape()), rows.report());
//! # Ok(())
//! # }
//! ```
//!
//! # Into the caller's memory
//! What comes from another node lands in a tensor of the arena, without a further copy; see [`Fetch::into`].
//! ```no_run
//! # use transfer_client::{Client, DType, Error};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let mut weights = client.allocate(DType::F32, [256, 128])?;
//! for version in 1.. {
//!     let fetched = client.fetch("layer0/w").at_least(version).into(weights).await?;
//!     println!("{}, {}", fetched.landing(), fetched.report());
//!     weights = fetched.into_tensor();
//! }
//! # Ok(())
//! # }
//! ```
//! Tensors of a bundle, slices of them, and what ranks have of a sharded state land in the same way, also in parts of tensors:
//! ```no_run
//! # use transfer_client::{BundleMut, Client, DType, Error, s};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let fused = client.allocate(DType::F32, [768, 256])?;
//! let into: BundleMut = [("qkv".to_owned(), fused)].into_iter().collect();
//! let fetch = client.fetch_bundle("layer0").into(into);
//! let fetch = fetch.at("q", "qkv", s![..256]).at("k", "qkv", s![256..512]).at("v", "qkv", s![512..]);
//! for (name, landing) in fetch.await?.landings() {
//!     println!("{name}: {landing}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Versions of one key
//! A [`Publisher`] has the options of all pushes of a key. A [`Subscriber`] returns each version at most once: weights that
//! are read while they are trained, for instance.
//! ```no_run
//! # use transfer_client::{Client, Error};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let weights = client.bundle_subscriber("policy")?;
//! loop {
//!     // The newest one that is not known yet.
//!     let policy = weights.next().await?;
//!     println!("version {}", policy.version());
//! }
//! # }
//! ```
//!
//! # Counters and barriers
//! A counter exists once in the whole job, and so does a barrier; see [`Counter`] and [`Barrier`].
//! ```no_run
//! # use transfer_client::{Client, Error};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let steps = client.counter("steps").await?;
//! let first = steps.add(1).await?.old == 0;
//! let round = client.barrier("epoch", 4).wait().await?;
//! println!("first: {first}, last of round {}: {}", round.number, round.leader);
//! # Ok(())
//! # }
//! ```
//!
//! # GPUs
//! A fetched tensor is copied to a GPU, and a tensor that is being written from one, by the GPU itself; see [`gpu`].
//!
//! # Rules
//! - A published tensor is immutable: a push consumes it. A push that fails returns it, see [`ErrorWith::into_tensor`].
//! - The memory of a fetched [`Tensor`] is not reused until its last clone, and the last Arrow array made of it, is
//!   dropped.
//! - Every wait has a deadline, 30 s by default.
//! - Dropping a future gives the call up. Nothing leaks: a late result is released.
//! - [`Client::close`](crate::Client::close) ends the session at once, and every call that waits.
//! - When the sidecar ends, the calls under way fail with [`Error::SidecarGone`], and everything that was fetched stays
//!   readable. The client reconnects by itself and publishes its versions again; see [`Connect::reconnect`]. Counts of
//!   fetches ([`Until::Fetched`]) then begin anew. Versions that have landed on other nodes stay there.
//! - A session belongs to its process: in a forked child calls fail with [`Error::Forked`], and drops do nothing.
//!   Connect anew there.
//! - For weights that are updated in place, see [`TwoBuffers`].
//!
//! # Contents
//! - [`Client`], [`BlockingClient`]: the clients; [`Connect`] makes one.
//! - [`TensorMut`], [`Frozen`], [`Tensor`]: a writable tensor, an immutable one, a fetched one.
//! - [`Request`]: a call that is about to be made: [`Push`], [`PushMany`], [`Fetch`], [`FetchInto`], [`FetchMany`], [`FetchOnly`], [`Take`], [`Order`],
//!   [`AllocateWait`], [`TakeBack`], [`Counting`], [`Finish`].
//! - [`s!`], [`Slice`], [`FetchedSlice`], [`FetchedSlices`]: parts of tensors, of which nothing else moves.
//! - [`Publisher`], [`Subscriber`]: the pushes, and the fetches, of one key.
//! - [`Begun`], [`Doorbell`]: calls that begin now and are waited for later, for bindings to other languages.
//! - [`BatchBuilder`], [`ColumnMut`], [`FetchedBatch`], [`FetchedTable`], [`BatchStream`], [`BatchStreamReader`],
//!   [`FixedShapeTensor`], [`BatchError`]: record batches.
//! - [`BundleTensor`], [`FetchedBundle`], [`BundleMut`], [`BundleError`]: bundles.
//! - [`Digest`], [`DigestError`], [`Digested`]: versions that are proved, by [`Push::digest`] and [`Fetch::verify`].
//! - [`OwnedMemory`]: memory of the program that is registered, by [`Client::register`].
//! - [`TakeBack`], [`TwoBuffers`]: tensors and bundles that are updated in place.
//! - [`gpu`]: copies between tensors and GPUs.
//! - [`Counter`], [`Barrier`]: counters and barriers of the job.
//! - [`Rank`], [`Shard`], [`PushShards`], [`PushedShards`], [`FetchSharded`], [`ShardedLayout`], [`ShardedError`]: sharded states.
//! - [`FetchInto`], [`FetchBundleInto`], [`FetchShardedInto`], [`FetchedInto`], [`Landing`], [`MemoryView`]: fetches into the caller's memory.
//! - For libraries on the clients, as `transfer-exchange` is one: [`flow`], calls that consist of many; [`FetchExcerpt`], bytes of
//!   versions; [`EncodedBatch`], [`BatchDecoder`], batches in a layout of one's own; [`Client::extension`].
//! - [`Error`], [`ErrorWith`], [`PushError`], [`FetchIntoError`]: what failed, whose fault it is, and whether a retry helps.
//!
//! # Layout
//! A folder knows only folders below it in this table:
//!
//! | folder | contents |
//! |---|---|
//! | `client` | the clients: connecting, and every call that they offer |
//! | `sharded` | sharded states: ranks publish pieces, and readers take any layout |
//! | `batch`, `bundle`, `gpu` | record batches; many tensors as one version; copies between tensors and GPUs |
//! | `push`, `fetch`, `counters` | the kinds of requests |
//! | `gathered` | bodies of many buffers, for pushes and for fetches |
//! | `landing` | fetches into the caller's memory, for tensors, bundles and sharded states |
//! | `digest` | digests: made of what is pushed, compared with what was fetched |
//! | `request` | [`Request`]: how a call is made |
//! | `session` | the session with the sidecar, its connection and its arena; commands and their answers |
//! | `memory` | the worker's tensors |
//! | `error` | all errors |
#![forbid(unsafe_code)]

mod batch;
mod bundle;
mod client;
mod counters;
mod digest;
mod error;
mod fetch;
mod gathered;
pub mod gpu;
mod landing;
mod memory;
mod push;
mod request;
mod session;
mod sharded;
mod unique;

pub use batch::{
    BatchBuilder, BatchDecoder, BatchStream, BatchStreamReader, ColumnMut, EncodedBatch, FetchedBatch, FetchedTable,
    Finish, FixedShapeTensor, NextBatch,
};
pub use bundle::{BundleMut, BundleTensor, FetchBundleInto, FetchOnly, FetchedBundle, FetchedSlices};
pub use client::{Connect, Doorbell, Publisher, TwoBuffers};
pub use counters::{Barrier, Counted, Counter, Counting, Round, Swapped};
pub use error::{
    BatchError, BundleError, DigestError, Digested, Error, ErrorWith, LostRank, SessionEnd, ShardedError,
    TornDestination,
};
pub use fetch::{
    EpochBegan, Fetch, FetchExcerpt, FetchInto, FetchIntoError, FetchMany, FetchedExcerpt, FetchedInto, FetchedSlice,
    Subscriber, Take, Tensor,
};
pub use landing::{Landing, MemoryView};
pub use memory::{Frozen, TensorMut};
pub use push::{
    AllocateWait, LendBase, LentBase, NoDelta, Order, Push, PushError, PushMany, Pushed, PushedDelta, TakeBack,
};
pub use request::{AnyClient, Begun, BlockingClient, Client, DEFAULT_TIMEOUT, Request, RequestFuture, ToKey, flow};
#[cfg(feature = "opentelemetry")]
pub use request::{from_span, to_span};
#[cfg(feature = "embedded")]
pub use session::{NodeConfig, SidecarAddresses, embedded_addresses, embedded_socket};

pub use sharded::{
    FetchSharded, FetchShardedInto, GlobalLayout, HeldBox, PushShards, PushedShards, Rank, Shard, ShardedLayout,
};

pub use transfer_core::delta::MAX_CHAIN;
pub use transfer_core::fabric::FabricKind;
pub use transfer_core::op::{CounterPath, CounterReport, Failure, FailureCode, Fault, Report};
pub use transfer_core::tensor::{
    DType, Digest, InvalidSlice, Key, Life, Misfit, ParseSliceError, Retention, Slice, SliceDim, SliceRange, Spill,
    TensorMeta, Until,
};
pub use transfer_core::trace::{InvalidTraceContext, TraceContext};
pub use transfer_memory::segment::OwnedMemory;
pub use transfer_memory::socket::Socket;
pub use transfer_memory::view::{
    Bytes, Element, F4E2M1x2, F8E4M3, F8E5M2, F8E8M0, I4x2, NotPrivate, PrivateBytes, U4x2, ViewError,
};
