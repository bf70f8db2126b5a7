//! Options of all pushes.

use crate::digest::Digesting;
use crate::error::{DigestError, Error};
use crate::request::{DEFAULT_TIMEOUT, current_trace};
use std::time::Duration;
use transfer_core::delta::MAX_CHAIN;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Deltas, Failure, FailureCode, MAX_READERS, Push};
use transfer_core::tensor::{Key, Name, Retention, TensorMeta, Version};
use transfer_core::trace::TraceContext;
use transfer_core::wire::digests::is_chunk_length;

/// How many deltas before that of a push stay published with it.
const DEFAULT_CHAIN: u32 = 2;

#[derive(Debug, Clone)]
pub(crate) struct PushOptions {
    pub(crate) version: Option<Version>,
    pub(crate) to: Option<Name>,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<FabricKind>,
    pub(crate) retention: Retention,
    pub(crate) takeover: bool,
    pub(crate) readable_by: Vec<Name>,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) digesting: Digesting,
    /// The version of which the push has a delta, and its key, if that is another one.
    pub(crate) delta_of: Option<(u64, Option<Key>)>,
    /// The most deltas before it that it keeps.
    pub(crate) keep_chain: u32,
    /// Whether it lends a base, and publishes nothing.
    pub(crate) lends_base: bool,
    /// The first invalid option.
    pub(crate) error: Option<Error>,
}

impl PushOptions {
    pub(crate) fn new() -> PushOptions {
        PushOptions {
            version: None,
            to: None,
            timeout: DEFAULT_TIMEOUT,
            require: None,
            retention: Retention::default(),
            takeover: false,
            readable_by: Vec::new(),
            trace: current_trace(),
            digesting: Digesting::default(),
            delta_of: None,
            keep_chain: DEFAULT_CHAIN,
            lends_base: false,
            error: None,
        }
    }

    pub(crate) fn set_to(&mut self, worker: &str) {
        match Name::new(worker) {
            Ok(name) => self.to = Some(name),
            Err(e) => self.error = Some(e.into()),
        }
    }

    pub(crate) fn add_reader(&mut self, tenant: &str) {
        match Name::new(tenant) {
            Ok(_) if self.readable_by.len() == MAX_READERS => {
                let text =
                    format!("a push can name {MAX_READERS} tenants that may read it, and {tenant:?} is one more");
                self.error = Some(Failure::new(FailureCode::Invalid, text).into());
            }
            Ok(name) => self.readable_by.push(name),
            Err(e) => self.error = Some(e.into()),
        }
    }

    pub(crate) fn set_chunk_bytes(&mut self, found: u32) {
        match is_chunk_length(found) {
            true => self.digesting.chunk_bytes = found,
            false => self.error = Some(DigestError::ChunkLength { found }.into()),
        }
    }

    pub(crate) fn set_chain(&mut self, deltas: u32) {
        match deltas as usize <= MAX_CHAIN {
            true => self.keep_chain = deltas,
            false => {
                let text = format!("a push keeps a chain of at most {MAX_CHAIN} deltas, and not of {deltas}");
                self.error = Some(Failure::new(FailureCode::Invalid, text).into());
            }
        }
    }

    pub(crate) fn push(&self, key: Key, meta: TensorMeta, offset: u64, timeout: Duration) -> Push {
        Push {
            version: self.version,
            to: self.to.clone(),
            timeout,
            require: self.require,
            retention: self.retention,
            takeover: self.takeover,
            readable_by: self.readable_by.clone(),
            trace: self.trace,
            deltas: if self.lends_base { Deltas::Base } else { Deltas::None },
            ..Push::new(key, meta, offset)
        }
    }
}

/// The methods that set target, fabric and lifetime: for one push, for a batch, and for all pushes of a key.
macro_rules! lasting_push_options {
    ($($options:ident).+) => {
        /// The target worker: the tensor lands at that worker's sidecar before the push is done. Without it, the tensor
        /// stays where it is until it is fetched.
        pub fn to(mut self, worker: impl AsRef<str>) -> Self {
            self.$($options).+.set_to(worker.as_ref());
            self
        }

        /// The fabric that must carry the tensor. If that is not possible, the call fails and says why.
        pub fn require(mut self, fabric: ::transfer_core::fabric::FabricKind) -> Self {
            self.$($options).+.require = Some(fabric);
            self
        }

        /// The lifetime of the version; the default is until a newer one is published. A version that stays longer is
        /// found beside newer ones by [`Fetch::exactly`](crate::Fetch::exactly), and its memory is not free until then.
        pub fn keep(mut self, until: ::transfer_core::tensor::Until) -> Self {
            self.$($options).+.retention.until = until;
            self
        }

        /// The version outlives this worker: it stays in place, as long as [`keep`](Self::keep) says, until its sidecar
        /// ends. A worker of the same name and user continues or deletes the key; any other one has to [take it
        /// over](crate::Push::takeover). The whole arena of a worker that is gone stays in memory for it.
        pub fn outlive(mut self) -> Self {
            self.$($options).+.retention.life = ::transfer_core::tensor::Life::Sidecar;
            self
        }

        /// Lets workers of this tenant fetch the version, too: a user id in digits, or a name of the sidecar's
        /// `--tenants`. They get a copy in their own memory. Up to 8 tenants, one call for each. The option applies at
        /// the sidecar where the version is published, so it is not possible together with [`to`](Self::to) another
        /// node.
        pub fn readable_by(mut self, tenant: impl AsRef<str>) -> Self {
            self.$($options).+.add_reader(tenant.as_ref());
            self
        }
    };
}
pub(crate) use lasting_push_options;

/// The methods that set the options of one push, or of a batch.
macro_rules! push_options {
    ($($options:ident).+) => {
        $crate::push::lasting_push_options!($($options).+);

        /// The version of the push, above the key's last one: for instance the training step. The default is the last
        /// version plus one. In a batch, the version of each push.
        pub fn version(mut self, version: u64) -> Self {
            self.$($options).+.version = Some(::transfer_core::tensor::Version(version));
            self
        }

        /// Takes the key from its owner, on whichever node that worker is. The owner's versions end, except for their
        /// readers, and its next push fails with [`KeyOwned`](crate::FailureCode::KeyOwned). Versions begin anew. Not
        /// possible together with `to` another node.
        pub fn takeover(mut self) -> Self {
            self.$($options).+.takeover = true;
            self
        }

        /// The span of the caller. The sidecars' spans of this push belong to its trace, and each fetch of the version
        /// gets it, in [`Report::origin`](crate::Report::origin).
        pub fn trace(mut self, context: ::transfer_core::trace::TraceContext) -> Self {
            self.$($options).+.trace = Some(context);
            self
        }
    };
}
pub(crate) use push_options;
