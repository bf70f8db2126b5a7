//! Options of a fetch.

use crate::options;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;
use transfer_client::{Fetch, Take};

/// The arguments of a call that choose a version: at most one of them is given.
#[derive(Clone, Copy, Default)]
pub(crate) struct Versions {
    pub(crate) at_least: Option<u64>,
    pub(crate) exactly: Option<u64>,
    pub(crate) after: Option<u64>,
}

/// Those arguments as Python has them.
pub(crate) type GivenVersions<'a, 'py> = [Option<&'a Bound<'py, PyAny>>; 3];

impl Versions {
    /// Reads `at_least`, `exactly` and `after`.
    pub(crate) fn of([at_least, exactly, after]: GivenVersions<'_, '_>) -> PyResult<Versions> {
        let version = |value: Option<&Bound<'_, PyAny>>, name| match value {
            Some(value) => options::version(value, name),
            None => Ok(None),
        };
        Ok(Versions {
            at_least: version(at_least, "at_least")?,
            exactly: version(exactly, "exactly")?,
            after: version(after, "after")?,
        })
    }
}

/// Chooses the version of a fetch, of any kind.
macro_rules! choose {
    ($py:expr, $fetch:expr, $versions:expr) => {
        match $versions {
            Versions { at_least: None, exactly: None, after: None } => $fetch,
            Versions { at_least: Some(version), exactly: None, after: None } => $fetch.at_least(version),
            Versions { at_least: None, exactly: Some(version), after: None } => $fetch.exactly(version),
            Versions { at_least: None, exactly: None, after: Some(version) } => $fetch.after(version),
            _ => return Err($crate::errors::invalid($py, "a fetch has one of at_least, exactly and after")),
        }
    };
}
pub(crate) use choose;

/// Applies all options to a fetch, of any kind.
macro_rules! apply {
    ($py:expr, $fetch:expr, $which:expr) => {{
        let mut fetch = $fetch.timeout($which.timeout);
        if let Some(fabric) = options::fabric($py, $which.require)? {
            fetch = fetch.require(fabric);
        }
        if let Some(trace) = options::trace($py, $which.trace)? {
            fetch = fetch.trace(trace);
        }
        choose!($py, fetch, $which.versions)
    }};
}

/// Whether a fetch compares what comes with the digests of the push, and refuses a version without.
#[derive(Clone, Copy, Default)]
pub(crate) struct Proving {
    pub(crate) is_asked: bool,
    pub(crate) is_required: bool,
}

impl Proving {
    /// Refuses to compare `what`, if that is asked for.
    pub(crate) fn refuse(self, py: Python<'_>, what: &str) -> PyResult<()> {
        match self.is_asked || self.is_required {
            true => Err(crate::errors::invalid(
                py,
                &format!("{what} cannot be compared with digests: leave verify and require_digest out"),
            )),
            false => Ok(()),
        }
    }
}

/// The version, time-out and fabric of a fetch.
pub(crate) struct Which<'a> {
    pub(crate) versions: Versions,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<&'a str>,
    pub(crate) trace: Option<&'a str>,
    pub(crate) proving: Proving,
    /// The length of a bucket of a state that does not fit the landing pool, in bytes.
    pub(crate) bucket_bytes: Option<u64>,
}

impl<'a> Which<'a> {
    /// Reads the arguments of a call.
    pub(crate) fn of(
        versions: GivenVersions<'_, '_>,
        timeout: Duration,
        require: Option<&'a str>,
        trace: Option<&'a str>,
        proving: Proving,
    ) -> PyResult<Which<'a>> {
        Ok(Which { versions: Versions::of(versions)?, timeout, require, trace, proving, bucket_bytes: None })
    }

    pub(crate) fn apply<T>(
        &self,
        py: Python<'_>,
        fetch: Fetch<transfer_client::BlockingClient, T>,
    ) -> PyResult<Fetch<transfer_client::BlockingClient, T>> {
        let fetch = match self.proving {
            Proving { is_required: true, .. } => fetch.require_digest(),
            Proving { is_asked: true, .. } => fetch.verify(),
            _ => fetch,
        };
        let fetch = match self.bucket_bytes {
            Some(bytes) => fetch.bucket_bytes(bytes),
            None => fetch,
        };
        Ok(apply!(py, fetch, self))
    }

    /// As `apply`, for rows.
    pub(crate) fn apply_to_rows(
        &self,
        py: Python<'_>,
        take: Take<transfer_client::BlockingClient>,
    ) -> PyResult<Take<transfer_client::BlockingClient>> {
        self.proving.refuse(py, "rows of a tensor")?;
        if self.bucket_bytes.is_some() {
            return Err(crate::errors::invalid(py, "rows of a tensor have no bucket_bytes"));
        }
        Ok(apply!(py, take, self))
    }
}

impl Which<'_> {
    /// Applies version and time-out to the fetch of a sharded state, whose parts come by several fabrics.
    pub(crate) fn apply_to_shards(
        &self,
        py: Python<'_>,
        fetch: transfer_client::FetchSharded<transfer_client::BlockingClient>,
    ) -> PyResult<transfer_client::FetchSharded<transfer_client::BlockingClient>> {
        if self.require.is_some() {
            return Err(crate::errors::invalid(
                py,
                "the parts of a sharded state may come by several fabrics: it has no require",
            ));
        }
        let fetch = match self.proving {
            Proving { is_required: true, .. } => fetch.require_digest(),
            Proving { is_asked: true, .. } => fetch.verify(),
            _ => fetch,
        };
        let fetch = match self.bucket_bytes {
            Some(bytes) => fetch.bucket_bytes(bytes),
            None => fetch,
        };
        let fetch = fetch.timeout(self.timeout);
        Ok(choose!(py, fetch, self.versions))
    }
}

/// The version, time-out and fabric of a fetch, from the keyword arguments of a call.
pub(crate) struct FetchOptions {
    pub(crate) versions: Versions,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<String>,
    pub(crate) trace: Option<String>,
    pub(crate) proving: Proving,
    pub(crate) bucket_bytes: Option<u64>,
}

impl FetchOptions {
    pub(crate) fn read(options: &Bound<'_, PyDict>) -> PyResult<FetchOptions> {
        let timeout = options::DEFAULT_TIMEOUT;
        let (versions, proving) = (Versions::default(), Proving::default());
        let mut read = FetchOptions { versions, timeout, require: None, trace: None, proving, bucket_bytes: None };
        for (name, value) in options {
            match name.extract::<String>()?.as_str() {
                "at_least" => read.versions.at_least = options::version(&value, "at_least")?,
                "exactly" => read.versions.exactly = options::version(&value, "exactly")?,
                "after" => read.versions.after = options::version(&value, "after")?,
                "timeout" => read.timeout = options::timeout(&value)?,
                "require" => read.require = value.extract()?,
                "trace" => read.trace = value.extract()?,
                "verify" => read.proving.is_asked = value.extract()?,
                "require_digest" => read.proving.is_required = value.extract()?,
                "bucket_bytes" => read.bucket_bytes = options::bucket_bytes(&value)?,
                other => {
                    let text = format!("a fetch has no argument {other:?}");
                    return Err(pyo3::exceptions::PyTypeError::new_err(text));
                }
            }
        }
        Ok(read)
    }

    pub(crate) fn borrow(&self) -> Which<'_> {
        let FetchOptions { versions, timeout, require, trace, proving, bucket_bytes } = self;
        let (require, trace) = (require.as_deref(), trace.as_deref());
        let (versions, timeout, proving, bucket_bytes) = (*versions, *timeout, *proving, *bucket_bytes);
        Which { versions, timeout, require, trace, proving, bucket_bytes }
    }
}
