//! The figures of a sweep: as a table, and as JSON.

use super::baseline::Bare;
use super::topology::{Measured, Topology};
use crate::figure::{Spread, percentile};
use crate::fit::Fit;
use serde_json::{Value, json};
use std::fmt;
use transfer_terminal::table::Table;
use transfer_terminal::units;

/// The result of a sweep.
#[derive(Debug)]
pub struct Sweep {
    pub(super) lines: Vec<Line>,
}

/// The results at one place, over all lengths.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) place: Topology,
    pub(super) points: Vec<Point>,
    fit: Option<Fit>,
    bare_fit: Option<Fit>,
}

/// The results of one length at one place: the system and its baseline, run by run.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) len: u64,
    pub(super) under_way: u64,
    pub(super) runs: Vec<(Measured, Bare)>,
}

impl Line {
    pub(super) fn new(place: Topology, points: Vec<Point>) -> Line {
        let fit_of = |of: fn(&Point) -> Option<Spread>| {
            let times = points.iter().filter_map(|point| Some((point.len, of(point)?.median)));
            Fit::of(&times.collect::<Vec<_>>())
        };
        // By reference, the time of a batch depends on its number of tensors, which depends on their length. The time
        // of a single tensor does not.
        let (fit, bare_fit) = match place.moves_bytes() {
            true => (fit_of(Point::ns), fit_of(Point::bare_ns)),
            false => (fit_of(Point::latency_ns), fit_of(Point::bare_latency_ns)),
        };
        Line { place, points, fit, bare_fit }
    }
}

impl Point {
    fn over_runs(&self, of: impl Fn(&Measured, &Bare) -> Option<f64>) -> Option<Spread> {
        Spread::of(&self.runs.iter().filter_map(|(ours, bare)| of(ours, bare)).collect::<Vec<_>>())
    }

    /// The p-th percentile of the times of single tensors, in microseconds.
    pub(super) fn latency(&self, p: f64) -> Option<Spread> {
        self.over_runs(|ours, _| Some(percentile(&mut ours.latencies_us.clone(), p)))
    }

    pub(super) fn bare_latency(&self, p: f64) -> Option<Spread> {
        self.over_runs(|_, bare| Some(percentile(&mut bare.latencies_us.clone(), p)))
    }

    fn latency_ns(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(1e3 * percentile(&mut ours.latencies_us.clone(), 50.0)))
    }

    fn bare_latency_ns(&self) -> Option<Spread> {
        self.over_runs(|_, bare| Some(1e3 * percentile(&mut bare.latencies_us.clone(), 50.0)))
    }

    /// The nanoseconds of each tensor in batches.
    fn ns(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(ours.ns))
    }

    fn bare_ns(&self) -> Option<Spread> {
        self.over_runs(|_, bare| bare.ns)
    }

    /// The rate, in 10^9 bytes per second.
    pub(super) fn rate(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(self.len as f64 / ours.ns))
    }

    pub(super) fn bare_rate(&self) -> Option<Spread> {
        self.over_runs(|_, bare| Some(self.len as f64 / bare.ns?))
    }

    /// Compares each run with its own baseline.
    fn compared(&self) -> Option<Spread> {
        self.over_runs(|ours, bare| Some(bare.ns? / ours.ns))
    }

    fn per_second(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(1e9 / ours.ns))
    }

    fn cpu_s_per_gb(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(ours.cpu.as_secs_f64() * 1e9 / self.len as f64))
    }

    fn cpu_us(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(ours.cpu.as_secs_f64() * 1e6))
    }

    fn copied(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(ours.copied))
    }

    fn sleeps(&self) -> Option<Spread> {
        self.over_runs(|ours, _| Some(ours.sleeps))
    }

    fn json(&self, moves_bytes: bool) -> Value {
        let where_bytes_move = |spread: Option<Spread>| spread.filter(|_| moves_bytes);
        json!({
            "bytes": self.len,
            "p50_us": self.latency(50.0),
            "p99_us": self.latency(99.0),
            "messages": self.runs.first().map_or(0, |(ours, _)| ours.latencies_us.len()),
            "under_way": self.under_way,
            "gb_per_s": where_bytes_move(self.rate()),
            "tensors_per_s": self.per_second(),
            "cpu_s_per_gb": self.cpu_s_per_gb(),
            "cpu_us_each": self.cpu_us(),
            "copied_per_byte": self.copied(),
            "sleeps_each": self.sleeps(),
            "baseline": {
                "p50_us": self.bare_latency(50.0),
                "p99_us": self.bare_latency(99.0),
                "gb_per_s": self.bare_rate(),
            },
            "gb_per_s_compared": self.compared(),
        })
    }
}

impl Sweep {
    /// The whole sweep; each figure with its median, least and greatest value over the runs.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            json!({
                "place": line.place.name(),
                "points": line.points.iter().map(|point| point.json(line.place.moves_bytes())).collect::<Vec<_>>(),
                "fit": line.fit,
                "baseline_fit": line.bare_fit,
            })
        };
        Value::Array(self.lines.iter().map(line).collect())
    }
}

const HEADINGS: [&str; 12] = [
    ">length",
    ">p50",
    ">p99",
    ">bare p50",
    ">bare p99",
    ">GB/s",
    ">bare",
    ">compared",
    ">tensors/s",
    ">CPU s/GB",
    ">copied/B",
    ">sleeps each",
];

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            let mut table = Table::new(&HEADINGS);
            for point in &line.points {
                let show = |spread: Option<Spread>, show: fn(f64) -> String| {
                    spread.map_or_else(String::new, |s| show(s.median))
                };
                let moved =
                    |spread: Option<Spread>| show(spread.filter(|_| line.place.moves_bytes()), |x| format!("{x:.2}"));
                table.row([
                    units::bytes(point.len),
                    show(point.latency(50.0), micros),
                    show(point.latency(99.0), micros),
                    show(point.bare_latency(50.0), micros),
                    show(point.bare_latency(99.0), micros),
                    moved(point.rate()),
                    moved(point.bare_rate()),
                    show(point.compared(), |x| format!("{x:.2} ×")),
                    show(point.per_second(), |x| if x < 100.0 { format!("{x:.1}") } else { units::count(x as u64) }),
                    show(point.cpu_s_per_gb(), figures),
                    show(point.copied(), |x| format!("{x:.2}")),
                    show(point.sleeps(), |x| format!("{x:.2}")),
                ]);
            }
            writeln!(f, "{}\n{table}", line.place.name())?;
            if let Some(fit) = line.fit {
                writeln!(f, "  time = {}", model(fit))?;
            }
            if let Some(fit) = line.bare_fit {
                writeln!(f, "  bare = {}", model(fit))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn model(fit: Fit) -> String {
    let bytes = fit.gb_per_s.map_or_else(|| "0 · bytes".to_owned(), |rate| format!("bytes / {rate:.2} GB/s"));
    let (usual, worst) = (fit.usual_error * 100.0, fit.worst_error * 100.0);
    format!("n · {} + {bytes}; usually {usual:.0} % off, at worst {worst:.0} %", micros(fit.per_op_us))
}

fn micros(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.1} µs"),
        ..10_000.0 => format!("{us:.0} µs"),
        _ => format!("{:.1} ms", us / 1e3),
    }
}

/// Rounds to about two significant digits.
fn figures(x: f64) -> String {
    match x {
        ..0.001 => format!("{x:.1e}"),
        ..1.0 => format!("{x:.3}"),
        _ => format!("{x:.1}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    /// Two runs of two lengths, on one host and over TCP, which copies each byte twice.
    pub(in super::super) fn sweep() -> Sweep {
        let point = |place: Topology, len: u64| {
            let run = |more: f64| {
                let moved = if place.moves_bytes() { len as f64 / 4.0 } else { 0.0 };
                let ours = Measured {
                    latencies_us: vec![20.0 + more, 30.0 + more, 40.0 + more],
                    copied: if place.moves_bytes() { 2.0 } else { 0.0 },
                    ns: 10_000.0 + moved,
                    cpu: Duration::from_micros(5),
                    sleeps: 0.5,
                };
                let bare =
                    Bare { latencies_us: vec![15.0, 16.0, 17.0], ns: place.moves_bytes().then_some(5000.0 + moved) };
                (ours, bare)
            };
            Point { len, under_way: 128, runs: vec![run(0.0), run(2.0)] }
        };
        let line = |place| Line::new(place, vec![point(place, 4096), point(place, 1 << 20), point(place, 1 << 24)]);
        Sweep { lines: vec![line(Topology::OneHost), line(Topology::Tcp)] }
    }

    #[test]
    fn json_has_the_points_and_fits_of_each_place() {
        let json = sweep().json();
        assert_eq!(json[0]["place"], "one host");
        let (local, tcp) = (&json[0]["points"][0], &json[1]["points"][1]);
        assert_eq!(local["bytes"], 4096);
        assert_eq!(local["p50_us"], json!({ "median": 31.0, "min": 30.0, "max": 32.0 }));
        assert_eq!(local["p99_us"]["median"], 41.0);
        assert_eq!(local["messages"], 3);
        assert!(local["gb_per_s"].is_null() && local["baseline"]["gb_per_s"].is_null(), "nothing moves: {local}");
        assert_eq!(local["baseline"]["p50_us"]["median"], 16.0);
        assert_eq!(local["copied_per_byte"]["median"], 0.0);
        assert_eq!(tcp["copied_per_byte"]["median"], 2.0);
        assert_eq!(tcp["under_way"], 128);
        assert_eq!(tcp["sleeps_each"]["median"], 0.5);
        let near = |value: &Value, wanted: f64| {
            assert!((value.as_f64().unwrap() / wanted - 1.0).abs() < 1e-6, "{value} {wanted}")
        };
        near(&tcp["gb_per_s"]["median"], f64::from(1 << 20) / (10_000.0 + f64::from(1 << 18)));
        near(&tcp["tensors_per_s"]["median"], 1e9 / (10_000.0 + f64::from(1 << 18)));
        near(&tcp["cpu_s_per_gb"]["median"], 5e-6 / (f64::from(1 << 20) / 1e9));
        near(&tcp["gb_per_s_compared"]["median"], (5000.0 + f64::from(1 << 18)) / (10_000.0 + f64::from(1 << 18)));
        near(&json[1]["fit"]["per_op_us"], 10.0);
        near(&json[1]["fit"]["gb_per_s"], 4.0);
        near(&json[1]["baseline_fit"]["per_op_us"], 5.0);
        assert!(json[1]["fit"]["worst_error"].as_f64().unwrap() < 1e-6);
        near(&json[0]["fit"]["per_op_us"], 31.0);
        near(&json[0]["baseline_fit"]["per_op_us"], 16.0);
        assert!(json[0]["fit"]["gb_per_s"].is_null() && json[0]["baseline_fit"]["gb_per_s"].is_null());
    }

    #[test]
    fn text_has_a_table_for_each_place_and_the_model_below_it() {
        let text = sweep().to_string();
        for words in [
            "one host",
            "two sidecars, tcp",
            "p99",
            "CPU s/GB",
            "16 MiB",
            "n · 10.0 µs + bytes / 4.00 GB/s",
            "0 · bytes",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
