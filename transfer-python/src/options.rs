//! Options of calls.

use crate::errors;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::time::Duration;
use transfer_client::{BlockingClient, Digest, FabricKind, MAX_CHAIN, Push, PushShards, TraceContext, Until};

/// An unlimited time-out.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(366 * 24 * 3600);

/// The time-out of a call that gives none.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the version that an argument of this name has; `None` for None.
pub(crate) fn version(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<u64>> {
    // A whole number of numpy is one, and a float is none.
    value.extract::<Option<u64>>().or_else(|_| {
        let text = format!("{name} is a whole number from 0 to {}, or None; this is {}", u64::MAX, value.repr()?);
        Err(errors::invalid(value.py(), &text))
    })
}

/// Reads the length of a bucket; `None` for None.
pub(crate) fn bucket_bytes(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { whole(value, "bucket_bytes", 64 << 10, 1 << 40).map(Some) }
}

/// Reads the whole number that an argument of this name has.
fn whole<T: TryFrom<u64> + PartialOrd + Display>(
    value: &Bound<'_, PyAny>,
    name: &str,
    least: T,
    most: T,
) -> PyResult<T> {
    let number = value.extract::<u64>().ok().and_then(|number| T::try_from(number).ok());
    match number {
        Some(number) if least <= number && number <= most => Ok(number),
        _ => {
            let text = format!("{name} is a whole number from {least} to {most}; this is {}", value.repr()?);
            Err(errors::invalid(value.py(), &text))
        }
    }
}

/// Makes a reader for each argument that is a whole number, of its name, its type and its least value.
macro_rules! whole_numbers {
    ($($argument:ident: $type:ident from $least:literal;)*) => {$(
        pub(crate) fn $argument(value: &Bound<'_, PyAny>) -> PyResult<$type> {
            whole(value, stringify!($argument), $least, $type::MAX)
        }
    )*};
}

whole_numbers! {
    partitions: u32 from 1;
    tasks: u32 from 1;
    partition: u32 from 0;
    task: u32 from 0;
    attempt: u32 from 0;
    order: u64 from 0;
    position: u64 from 0;
    rows_per_batch: usize from 1;
    readers: u32 from 1;
    members: u32 from 1;
    n: u64 from 0;
    expected: u64 from 0;
    new: u64 from 0;
}

/// Reads the version of a push that needs one.
pub(crate) fn whole_version(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(value, "version", 0, u64::MAX)
}

/// Reads a shape: its dimensions, or the one of a vector.
pub(crate) fn shape(value: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let dims = value.extract::<u64>().map(|dim| vec![dim]).or_else(|_| {
        let dims = value.try_iter()?.map(|dim| dim?.extract::<u64>());
        dims.collect::<PyResult<Vec<_>>>()
    });
    dims.or_else(|_| {
        let text = format!("shape is whole numbers from 0 to {}, or one of them; this is {}", u64::MAX, value.repr()?);
        Err(errors::invalid(value.py(), &text))
    })
}

/// Reads the seconds that an argument of this name has. Infinity is a year.
fn seconds(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Duration>> {
    match value.extract::<Option<f64>>() {
        Ok(None) => Ok(None),
        Ok(Some(seconds)) if seconds >= 0.0 => {
            Ok(Some(Duration::try_from_secs_f64(seconds).map_or(FOR_EVER, |time| time.min(FOR_EVER))))
        }
        _ => {
            let text = format!("{name} is seconds, a number from 0 on, or None; this is {}", value.repr()?);
            Err(errors::invalid(value.py(), &text))
        }
    }
}

/// Reads a time-out; None is for ever.
pub(crate) fn timeout(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    Ok(seconds(value, "timeout")?.unwrap_or(FOR_EVER))
}

/// Reads a time-out whose default depends on other arguments.
pub(crate) fn connect_timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    seconds(value, "timeout")
}

pub(crate) fn deadline(value: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    seconds(value, "deadline")
}

pub(crate) fn spin(value: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    seconds(value, "spin")
}

/// Reads a whole number of this range, for the package's Python half.
#[pyfunction]
#[pyo3(name = "_whole", signature = (name, value, least = 0, most = u64::MAX),
    text_signature = "(name, value, least=0, most=18446744073709551615)")]
pub(crate) fn whole_of(name: &str, value: &Bound<'_, PyAny>, least: u64, most: u64) -> PyResult<u64> {
    whole(value, name, least, most)
}

/// Reads seconds, for the package's Python half. None is [`FOR_EVER`].
#[pyfunction]
#[pyo3(name = "_seconds")]
pub(crate) fn seconds_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    Ok(seconds(value, name)?.unwrap_or(FOR_EVER).as_secs_f64())
}

/// Raises `Invalid` if an argument is no seconds, for the package's Python half.
#[pyfunction]
#[pyo3(name = "_check_seconds")]
pub(crate) fn check_seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    seconds(value, name).map(drop)
}

/// Parses a fabric's name.
pub(crate) fn fabric(py: Python<'_>, name: Option<&str>) -> PyResult<Option<FabricKind>> {
    let find = |name: &str| {
        let known = FabricKind::ALL.map(FabricKind::name).join(", ");
        FabricKind::from_name(name)
            .ok_or_else(|| errors::invalid(py, &format!("{name:?} is no fabric; there are {known}")))
    };
    name.map(find).transpose()
}

/// Parses a `traceparent`.
pub(crate) fn trace(py: Python<'_>, text: Option<&str>) -> PyResult<Option<TraceContext>> {
    text.map(|text| text.parse::<TraceContext>().map_err(|e| errors::invalid(py, &e.to_string()))).transpose()
}

/// Checks that there are no options that a push of shards does not have. Its version is an argument of its own.
pub(crate) fn check_for_shards(options: &PushOptions, py: Python<'_>) -> PyResult<()> {
    let PushOptions { to, require, keep, outlive, takeover, .. } = options;
    let others = [
        ("to", to.is_some()),
        ("require", require.is_some()),
        ("keep", keep.is_some()),
        ("outlive", *outlive),
        ("takeover", *takeover),
    ];
    match others.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(errors::invalid(py, &format!("a push of a rank's shards has no argument {name:?}"))),
        None => Ok(()),
    }
}

/// Applies the options that a push of shards has.
pub(crate) fn of_shards<'a>(
    push: PushShards<'a, BlockingClient>,
    options: &PushOptions,
) -> PushShards<'a, BlockingClient> {
    let push = push.timeout(options.timeout);
    let push = match options.digest {
        Some(digest) => push.digest(digest),
        None => push,
    };
    let push = match options.delta_of {
        Some(base) => push.delta_of(base),
        None => push,
    };
    let push = match options.keep_chain {
        Some(deltas) => push.keep_chain(deltas),
        None => push,
    };
    options.readable_by.iter().fold(push, |push, tenant| push.readable_by(tenant))
}

/// The options of a push.
#[derive(Debug)]
pub(crate) struct PushOptions {
    version: Option<u64>,
    to: Option<String>,
    timeout: Duration,
    require: Option<FabricKind>,
    keep: Option<Until>,
    outlive: bool,
    takeover: bool,
    readable_by: Vec<String>,
    trace: Option<TraceContext>,
    digest: Option<Digest>,
    delta_of: Option<u64>,
    keep_chain: Option<u32>,
}

impl PushOptions {
    /// Reads the keyword arguments of a call.
    pub(crate) fn read(options: &Bound<'_, PyDict>) -> PyResult<PushOptions> {
        let py = options.py();
        let mut read = PushOptions {
            version: None,
            to: None,
            timeout: DEFAULT_TIMEOUT,
            require: None,
            keep: None,
            outlive: false,
            takeover: false,
            readable_by: Vec::new(),
            trace: None,
            digest: None,
            delta_of: None,
            keep_chain: None,
        };
        for (name, value) in options {
            match name.extract::<String>()?.as_str() {
                "version" => read.version = version(&value, "version")?,
                "to" => read.to = value.extract()?,
                "timeout" => read.timeout = timeout(&value)?,
                "require" => read.require = fabric(py, value.extract::<Option<String>>()?.as_deref())?,
                "keep" => read.keep = keep(&value)?,
                "outlive" => read.outlive = value.extract()?,
                "takeover" => read.takeover = value.extract()?,
                "readable_by" => read.readable_by = value.extract()?,
                "trace" => read.trace = trace(py, value.extract::<Option<String>>()?.as_deref())?,
                "digest" => read.digest = digest(&value)?,
                "delta_of" => read.delta_of = version(&value, "delta_of")?,
                "keep_chain" => read.keep_chain = chain(&value)?,
                other => return Err(PyTypeError::new_err(format!("a push has no argument {other:?}"))),
            }
        }
        Ok(read)
    }

    /// Whether the push reads all of its memory before it is sent.
    pub(crate) fn reads_all(&self) -> bool {
        self.digest.is_some() || self.delta_of.is_some()
    }

    pub(crate) fn apply(self, push: Push<'static, BlockingClient>) -> Push<'static, BlockingClient> {
        let mut push = push.timeout(self.timeout);
        if let Some(version) = self.version {
            push = push.version(version);
        }
        if let Some(to) = self.to {
            push = push.to(to);
        }
        if let Some(fabric) = self.require {
            push = push.require(fabric);
        }
        if let Some(until) = self.keep {
            push = push.keep(until);
        }
        if self.outlive {
            push = push.outlive();
        }
        if self.takeover {
            push = push.takeover();
        }
        if let Some(trace) = self.trace {
            push = push.trace(trace);
        }
        if let Some(digest) = self.digest {
            push = push.digest(digest);
        }
        if let Some(base) = self.delta_of {
            push = push.delta_of(base);
        }
        if let Some(deltas) = self.keep_chain {
            push = push.keep_chain(deltas);
        }
        self.readable_by.iter().fold(push, |push, tenant| push.readable_by(tenant))
    }
}

/// Parses the number of deltas that are kept.
fn chain(value: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    match value.extract::<Option<u32>>() {
        Ok(None) => Ok(None),
        Ok(Some(deltas)) if deltas as usize <= MAX_CHAIN => Ok(Some(deltas)),
        _ => {
            let text = format!("keep_chain is a number from 0 to {MAX_CHAIN}; this is {}", value.repr()?);
            Err(errors::invalid(value.py(), &text))
        }
    }
}

/// Parses a bool, or the name of a hash function. True is the default one.
fn digest(value: &Bound<'_, PyAny>) -> PyResult<Option<Digest>> {
    if let Ok(is_wanted) = value.extract::<Option<bool>>() {
        return Ok(is_wanted.unwrap_or(false).then_some(Digest::Xxh3));
    }
    let digest = value.extract::<String>().ok().and_then(|name| Digest::from_name(&name));
    digest.map(Some).map_or_else(
        || {
            let text = format!("digest is a bool, \"xxh3\" or \"blake3\"; this is {}", value.repr()?);
            Err(errors::invalid(value.py(), &text))
        },
        Ok,
    )
}

/// Parses "replaced", "deleted", or the number of fetches.
fn keep(value: &Bound<'_, PyAny>) -> PyResult<Option<Until>> {
    if let Ok(Some(times)) = value.extract::<u32>().map(NonZeroU32::new) {
        return Ok(Some(Until::Fetched(times)));
    }
    match value.extract::<Option<String>>().as_ref().map(Option::as_deref) {
        Ok(None | Some("replaced")) => Ok(None),
        Ok(Some("deleted")) => Ok(Some(Until::Deleted)),
        _ => {
            let most = u32::MAX;
            let text = format!(
                "keep is \"replaced\", \"deleted\", or the number of fetches, from 1 to {most}; this is {}",
                value.repr()?
            );
            Err(errors::invalid(value.py(), &text))
        }
    }
}
