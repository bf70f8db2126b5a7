//! Options of a fetch.

use crate::{errors, options};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;
use transfer_client::Fetch;

/// The version, time-out and fabric of a fetch.
pub(crate) struct Which<'a> {
    pub(crate) at_least: Option<u64>,
    pub(crate) exactly: Option<u64>,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<&'a str>,
    pub(crate) trace: Option<&'a str>,
}

impl<'a> Which<'a> {
    /// Reads the arguments of a call.
    pub(crate) fn of(
        (at_least, exactly): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
        timeout: Duration,
        require: Option<&'a str>,
        trace: Option<&'a str>,
    ) -> PyResult<Which<'a>> {
        let version =
            |value: Option<&Bound<'_, PyAny>>, name| value.map(|value| options::version(value, name)).transpose();
        let (at_least, exactly) = (version(at_least, "at_least")?.flatten(), version(exactly, "exactly")?.flatten());
        Ok(Which { at_least, exactly, timeout, require, trace })
    }

    pub(crate) fn apply<T>(
        &self,
        py: Python<'_>,
        fetch: Fetch<transfer_client::Blocking, T>,
    ) -> PyResult<Fetch<transfer_client::Blocking, T>> {
        let mut fetch = fetch.timeout(self.timeout);
        if let Some(fabric) = options::fabric(py, self.require)? {
            fetch = fetch.require(fabric);
        }
        if let Some(trace) = options::trace(py, self.trace)? {
            fetch = fetch.trace(trace);
        }
        match (self.at_least, self.exactly) {
            (None, None) => Ok(fetch),
            (Some(version), None) => Ok(fetch.at_least(version)),
            (None, Some(version)) => Ok(fetch.exactly(version)),
            (Some(_), Some(_)) => Err(both(py)),
        }
    }
}

/// The version, time-out and fabric of a fetch, from the keyword arguments of a call.
pub(crate) struct FetchOptions {
    pub(crate) at_least: Option<u64>,
    pub(crate) exactly: Option<u64>,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<String>,
    pub(crate) trace: Option<String>,
}

impl FetchOptions {
    pub(crate) fn read(options: &Bound<'_, PyDict>) -> PyResult<FetchOptions> {
        let timeout = options::DEFAULT_TIMEOUT;
        let mut read = FetchOptions { at_least: None, exactly: None, timeout, require: None, trace: None };
        for (name, value) in options {
            match name.extract::<String>()?.as_str() {
                "at_least" => read.at_least = options::version(&value, "at_least")?,
                "exactly" => read.exactly = options::version(&value, "exactly")?,
                "timeout" => read.timeout = options::timeout(&value)?,
                "require" => read.require = value.extract()?,
                "trace" => read.trace = value.extract()?,
                other => {
                    let text = format!("a fetch has no argument {other:?}");
                    return Err(pyo3::exceptions::PyTypeError::new_err(text));
                }
            }
        }
        Ok(read)
    }

    pub(crate) fn borrow(&self) -> Which<'_> {
        let FetchOptions { at_least, exactly, timeout, require, trace } = self;
        Which {
            at_least: *at_least,
            exactly: *exactly,
            timeout: *timeout,
            require: require.as_deref(),
            trace: trace.as_deref(),
        }
    }
}

pub(crate) fn both(py: Python<'_>) -> PyErr {
    errors::invalid(py, "a fetch has at_least or exactly, not both")
}
