//! Metrics in Prometheus' text format, made from values that are counted elsewhere.

use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};
use transfer_core::protocol::Histogram;

/// The labels of one sample.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

/// Families of metrics, in the order in which they were added.
#[derive(Default)]
pub(super) struct Families(Vec<MetricFamily>);

/// The samples of one family.
pub(super) struct Family<'a> {
    all: &'a mut Vec<MetricFamily>,
    family: MetricFamily,
    kind: MetricType,
    metrics: Vec<Metric>,
}

fn pairs(labels: Labels<'_>) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

impl Families {
    fn family(&mut self, name: &str, help: &str, kind: MetricType) -> Family<'_> {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        Family { all: &mut self.0, family, kind, metrics: Vec::new() }
    }

    /// Adds a family of values that only grow until the sidecar ends.
    pub(super) fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::COUNTER)
    }

    /// Adds a family of current values.
    pub(super) fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::GAUGE)
    }

    /// Adds a counter without labels.
    pub(super) fn count(&mut self, name: &str, help: &str, value: u64) {
        self.counter(name, help).number(&[], value);
    }

    /// Adds a gauge without labels.
    pub(super) fn level(&mut self, name: &str, help: &str, value: u64) {
        self.gauge(name, help).number(&[], value);
    }

    /// Adds a family of durations in seconds.
    pub(super) fn histogram(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::HISTOGRAM)
    }

    /// Encodes all families as text.
    ///
    /// # Errors
    /// The text cannot be written, which is a defect.
    pub(super) fn encode(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.0, &mut text)?;
        Ok(text)
    }
}

impl Family<'_> {
    /// Adds one sample of a counter or gauge.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: f64) -> &mut Self {
        let mut metric = Metric::from_label(pairs(labels));
        if self.kind == MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.metrics.push(metric);
        self
    }

    /// Adds one sample of a whole number. Above 2^53 the text is rounded, as Prometheus' own numbers are.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn number(&mut self, labels: Labels<'_>, value: u64) -> &mut Self {
        self.sample(labels, value as f64)
    }

    /// Adds one sample for each of these values of one label.
    pub(super) fn each(&mut self, label: &'static str, samples: impl IntoIterator<Item = (impl AsRef<str>, u64)>) {
        for (value, number) in samples {
            self.number(&[(label, value.as_ref())], number);
        }
    }

    /// Adds one sample of a histogram.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn durations(&mut self, labels: Labels<'_>, durations: &Histogram) {
        let mut histogram = proto::Histogram::default();
        let mut below = 0;
        let buckets = durations.buckets.iter().take(Histogram::BOUND_COUNT).enumerate().map(|(bucket, count)| {
            below += count;
            let mut made = proto::Bucket::default();
            made.set_upper_bound(Histogram::bound_ns(bucket) as f64 / 1e9);
            made.set_cumulative_count(below);
            made
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(durations.count());
        histogram.set_sample_sum(durations.sum_ns as f64 / 1e9);
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_histogram(histogram);
        self.metrics.push(metric);
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        // A family without samples is left out.
        if !self.metrics.is_empty() {
            self.family.set_metric(std::mem::take(&mut self.metrics));
            self.all.push(std::mem::take(&mut self.family));
        }
    }
}
