//! Reports of calls.

use pyo3::prelude::*;

/// The report of a transfer: its fabric, the copied bytes, and the time of each part. Times are in seconds.
#[pyclass(frozen, module = "transferd")]
#[derive(Debug)]
pub(crate) struct Report(transfer_client::Report);

impl Report {
    pub(crate) fn new(report: transfer_client::Report) -> Report {
        Report(report)
    }
}

#[pymethods]
impl Report {
    /// What never changes is its own copy.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    /// The fabric: "local" (by reference), or that of a link between nodes, such as "tcp".
    #[getter]
    fn fabric(&self) -> &'static str {
        self.0.fabric.name()
    }

    /// The length of the tensor, in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The bytes that CPUs copied, on both sides together. The kernel's copies in a socket count.
    #[getter]
    fn copied(&self) -> u64 {
        self.0.copied
    }

    /// Of a fetch with `verify`: the bytes that were compared with the digests of the push. 0 for a version without digests, and for one that
    /// is read where its pusher has it, on this host: nothing was moved.
    #[getter]
    fn verified(&self) -> u64 {
        self.0.verified
    }

    /// Of a fetch: the bytes that came in place of the version, as a delta of one that this node had. 0: it came as a whole.
    #[getter]
    fn delta(&self) -> u64 {
        self.0.delta
    }

    /// Of a fetch: the bytes that came from another node than the one that owns the key, because the version spreads. They were compared
    /// with the owner's digest.
    #[getter]
    fn relayed(&self) -> u64 {
        self.0.relayed
    }

    /// Seconds from the request until the transfer was on its way.
    #[getter]
    fn queued(&self) -> f64 {
        self.0.queued.as_secs_f64()
    }

    /// Seconds in which the version was not published yet.
    #[getter]
    fn waited(&self) -> f64 {
        self.0.waited.as_secs_f64()
    }

    /// Seconds from the departure of the transfer to its arrival.
    #[getter]
    fn in_flight(&self) -> f64 {
        self.0.in_flight.as_secs_f64()
    }

    /// For a fetch: the trace context of the push, as a `traceparent`, if the push had one.
    #[getter]
    fn origin(&self) -> Option<String> {
        self.0.origin.map(|origin| origin.to_string())
    }

    /// The same report, with `bytes` more that a CPU has copied.
    fn _with_copied(&self, bytes: u64) -> Report {
        Report(transfer_client::Report { copied: self.0.copied.saturating_add(bytes), ..self.0 })
    }

    /// The report of this fetch and another one, which were made for one call.
    fn _with(&self, other: &Report) -> Report {
        let (this, other) = (self.0, other.0);
        let moved = |report: &transfer_client::Report| report.fabric != transfer_client::FabricKind::Local;
        Report(transfer_client::Report {
            fabric: if moved(&this) { this.fabric } else { other.fabric },
            bytes: this.bytes.saturating_add(other.bytes),
            copied: this.copied.saturating_add(other.copied),
            relayed: this.relayed.saturating_add(other.relayed),
            in_flight: this.in_flight.saturating_add(other.in_flight),
            ..this
        })
    }

    fn __repr__(&self) -> String {
        format!("<Report {}>", self.0)
    }
}

/// A pushed tensor.
#[pyclass(frozen, module = "transferd")]
#[derive(Debug)]
pub(crate) struct Pushed {
    /// The version of the push.
    #[pyo3(get)]
    version: u64,
    /// The report of the push.
    #[pyo3(get)]
    report: Py<Report>,
    /// Of the push that has made a version of a sharded state whole: how many shards were compared with no other one, of those whose box
    /// several ranks have.
    #[pyo3(get)]
    unproved: Option<u64>,
    /// What has become of its delta, if it was to have one.
    #[pyo3(get)]
    delta: Option<Py<PushedDelta>>,
}

/// The delta of a push.
#[pyclass(frozen, module = "transferd")]
#[derive(Debug)]
pub(crate) struct PushedDelta(transfer_client::PushedDelta);

#[pymethods]
impl PushedDelta {
    /// Its length in bytes. 0: there is none, and all readers get the whole version.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The bytes that have changed, of those that were compared.
    #[getter]
    fn changed(&self) -> u64 {
        self.0.changed
    }

    /// The bytes that were compared with the base: all, or a sample of a version that has changed too much.
    #[getter]
    fn compared(&self) -> u64 {
        self.0.compared
    }

    /// Seconds that it took.
    #[getter]
    fn took(&self) -> f64 {
        self.0.took.as_secs_f64()
    }

    /// The bytes per second at which the versions before left this node for the node that got them slowest. 0: it is not known.
    #[getter]
    fn link_rate(&self) -> u64 {
        self.0.link_rate
    }

    /// How many deltas before it are published with it.
    #[getter]
    fn kept(&self) -> u32 {
        self.0.kept
    }

    /// Why there is none.
    #[getter]
    fn whole(&self) -> Option<String> {
        self.0.whole.map(|why| why.to_string())
    }

    fn __repr__(&self) -> String {
        let transfer_client::PushedDelta { bytes, changed, compared, .. } = self.0;
        match self.0.whole {
            Some(why) => format!("<PushedDelta none: {why}>"),
            None => format!("<PushedDelta bytes={bytes} changed={changed} of {compared}>"),
        }
    }
}

impl Pushed {
    /// Makes the result of a push. `copied` bytes were copied into the arena before.
    pub(crate) fn new(py: Python<'_>, pushed: transfer_client::Pushed, copied: u64) -> PyResult<Pushed> {
        let mut report = pushed.report;
        report.copied += copied;
        let delta = pushed.delta.map(|delta| Py::new(py, PushedDelta(delta))).transpose()?;
        Ok(Pushed { version: pushed.version, report: Py::new(py, Report(report))?, unproved: None, delta })
    }

    /// As the push of a rank's shards returns it.
    pub(crate) fn of_shards(self, unproved: Option<u64>) -> Pushed {
        Pushed { unproved, ..self }
    }
}

#[pymethods]
impl Pushed {
    fn __repr__(&self) -> String {
        format!("<Pushed version {}: {}>", self.version, self.report.get().0)
    }
}
