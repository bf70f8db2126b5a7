//! Options of calls.

use crate::errors;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::num::NonZeroU32;
use std::time::Duration;
use transfer_client::{Blocking, FabricKind, Push, TraceContext, Until};

/// An unlimited time-out.
const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

/// The default time-out of a call, in seconds.
pub(crate) const DEFAULT_SECONDS: f64 = 30.0;

/// Seconds as a duration; None and infinity are a year.
pub(crate) fn duration(py: Python<'_>, seconds: Option<f64>) -> PyResult<Duration> {
    match seconds {
        None => Ok(YEAR),
        Some(seconds) if seconds >= YEAR.as_secs_f64() => Ok(YEAR),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
            errors::invalid(py, &format!("a timeout is seconds from 0 on, or None; this one is {seconds}"))
        }),
    }
}

/// Reads the version that an argument of this name has; `None` for None.
pub(crate) fn version(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<u64>> {
    // A whole number of numpy is one, and a float is none.
    value.extract::<Option<u64>>().or_else(|_| {
        let text = format!("{name} is a whole number from 0 to {}, or None; this is {}", u64::MAX, value.repr()?);
        Err(errors::invalid(value.py(), &text))
    })
}

/// Reads the seconds that an argument of this name has.
pub(crate) fn seconds(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<f64>> {
    match value.extract::<Option<f64>>() {
        Ok(seconds) if seconds.is_none_or(|seconds| seconds >= 0.0) => Ok(seconds),
        _ => {
            let text = format!("{name} is seconds, a number from 0 on, or None; this is {}", value.repr()?);
            Err(errors::invalid(value.py(), &text))
        }
    }
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
}

impl PushOptions {
    /// Reads the keyword arguments of a call.
    pub(crate) fn read(options: &Bound<'_, PyDict>) -> PyResult<PushOptions> {
        let py = options.py();
        let mut read = PushOptions {
            version: None,
            to: None,
            timeout: duration(py, Some(DEFAULT_SECONDS))?,
            require: None,
            keep: None,
            outlive: false,
            takeover: false,
            readable_by: Vec::new(),
            trace: None,
        };
        for (name, value) in options {
            match name.extract::<String>()?.as_str() {
                "version" => read.version = version(&value, "version")?,
                "to" => read.to = value.extract()?,
                "timeout" => read.timeout = duration(py, seconds(&value, "timeout")?)?,
                "require" => read.require = fabric(py, value.extract::<Option<String>>()?.as_deref())?,
                "keep" => read.keep = keep(&value)?,
                "outlive" => read.outlive = value.extract()?,
                "takeover" => read.takeover = value.extract()?,
                "readable_by" => read.readable_by = value.extract()?,
                "trace" => read.trace = trace(py, value.extract::<Option<String>>()?.as_deref())?,
                other => return Err(PyTypeError::new_err(format!("a push has no argument {other:?}"))),
            }
        }
        Ok(read)
    }

    pub(crate) fn apply(self, push: Push<'static, Blocking>) -> Push<'static, Blocking> {
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
        self.readable_by.iter().fold(push, |push, tenant| push.readable_by(tenant))
    }
}

/// Parses "replaced", "deleted", or the number of fetches.
fn keep(value: &Bound<'_, PyAny>) -> PyResult<Option<Until>> {
    if let Ok(times) = value.extract::<u32>() {
        let times = NonZeroU32::new(times);
        return times.map(|times| Some(Until::Fetched(times))).ok_or_else(|| wrong_keep(value));
    }
    match value.extract::<Option<String>>()?.as_deref() {
        None | Some("replaced") => Ok(None),
        Some("deleted") => Ok(Some(Until::Deleted)),
        Some(_) => Err(wrong_keep(value)),
    }
}

fn wrong_keep(value: &Bound<'_, PyAny>) -> PyErr {
    let text = format!("keep is \"replaced\", \"deleted\", or the number of fetches, from 1 on; this is {value}");
    errors::invalid(value.py(), &text)
}
