//! Options of all fetches.

use crate::digest::Proving;
use crate::request::{DEFAULT_TIMEOUT, current_trace};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Command, OpId};
use transfer_core::tensor::{Excerpt, Key, Select};
use transfer_core::trace::TraceContext;

/// The default length of a bucket, in bytes: an eighth of the default pool, so that two on their way and one that is copied
/// leave room for other fetches. At 25 GB/s a bucket takes 1.3 ms, ten times as long as a request.
const BUCKET_BYTES: u64 = 32 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchOptions {
    pub(crate) select: Select,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<FabricKind>,
    pub(crate) trace: Option<TraceContext>,
    /// Whether the caller can wait on a notice for the next versions.
    pub(crate) watches: bool,
    /// The length of a bucket of a version that does not fit the landing pool, in bytes.
    pub(crate) bucket_bytes: u64,
    /// Whether it is compared with the digests of the push.
    pub(crate) proving: Proving,
    /// Whether all of the version is asked for where parts of it are wanted, so that it may come as a delta.
    pub(crate) is_whole: bool,
    /// The push by which this client lends a base.
    pub(crate) base: Option<OpId>,
}

impl FetchOptions {
    pub(crate) fn new() -> FetchOptions {
        let trace = current_trace();
        let (select, timeout) = (Select::Latest, DEFAULT_TIMEOUT);
        let (bucket_bytes, proving) = (BUCKET_BYTES, Proving::Not);
        let (require, watches, is_whole, base) = (None, false, false, None);
        FetchOptions { select, timeout, require, trace, watches, bucket_bytes, proving, is_whole, base }
    }

    /// The command that fetches a version, or this part of it.
    pub(crate) fn command(&self, key: Key, excerpt: Option<Box<Excerpt>>) -> Command {
        Command::Fetch(self.fetch(key, excerpt))
    }

    /// The fetch of a version, or of this part of it.
    pub(crate) fn fetch(&self, key: Key, excerpt: Option<Box<Excerpt>>) -> transfer_core::op::Fetch {
        let FetchOptions { select, timeout, require, trace, watches, bucket_bytes: _, proving: _, is_whole: _, base } =
            *self;
        transfer_core::op::Fetch { key, select, timeout, require, trace, watches, excerpt, base }
    }
}

/// The methods that set version and fabric, for one fetch and for a batch.
macro_rules! fetch_options {
    ($($options:ident).+) => {
        /// Fetches the newest version, and waits for the first one if there is none. This is the default.
        pub fn latest(mut self) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::Latest;
            self
        }

        /// Fetches exactly this version. Fails at once if it was replaced already.
        pub fn exactly(mut self, version: u64) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::Exactly(::transfer_core::tensor::Version(version));
            self
        }

        /// Fetches the newest version once it is this one or later.
        pub fn at_least(mut self, version: u64) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::AtLeast(::transfer_core::tensor::Version(version));
            self
        }

        /// Fetches the newest version once it is another than this one, which was fetched before: a later one, or a lower one if
        /// the owner has begun again since, as a trainer does that goes on from a checkpoint.
        pub fn after(mut self, seen: u64) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::After(::transfer_core::tensor::Version(seen));
            self
        }

        /// The fabric that must carry the tensor. If that is not possible, the call fails and says why.
        pub fn require(mut self, fabric: ::transfer_core::fabric::FabricKind) -> Self {
            self.$($options).+.require = Some(fabric);
            self
        }

        /// The span of the caller. The sidecars' spans of this fetch belong to its trace.
        pub fn trace(mut self, context: ::transfer_core::trace::TraceContext) -> Self {
            self.$($options).+.trace = Some(context);
            self
        }
    };
}
pub(crate) use fetch_options;
