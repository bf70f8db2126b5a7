//! The report at the end of the demo, as tables.

mod units;

use crate::bulk::Load;
use crate::event::{Direction, Read, Trained, Transfers};
use crate::tally::Tally;
use crate::training::{ACCURACY_GOAL, BATCH, Job, WORKERS};
use std::collections::BTreeMap;
use std::fmt;
use units::{bytes, mebibytes, rate, time};

/// A kind of exchange, and the runs of the job with it.
#[derive(Debug)]
pub struct Exchange {
    /// Its name.
    pub name: &'static str,
    /// The result of each run; at least one.
    pub runs: Vec<Trained>,
}

/// The results of the demo.
#[derive(Debug)]
pub struct Report {
    /// The job that every run did.
    pub job: Job,
    /// The runs in one process, without any exchange.
    pub reference: Exchange,
    /// The distributed runs.
    pub exchanges: Vec<Exchange>,
    /// The node of the parameter server, and of the producer.
    pub server: &'static str,
    /// The transfers of the processes of all runs over transfer.
    pub transfers: Vec<Transfers>,
    /// The bulk load.
    pub load: Load,
    /// The results of its readers.
    pub reads: Vec<Read>,
}

impl Exchange {
    /// Whether every run ended with the weights of every run of `reference`, in every bit.
    #[must_use]
    pub fn equals(&self, reference: &Exchange) -> bool {
        let equals = |run: &Trained| reference.runs.iter().all(|alone| run.weight_bits == alone.weight_bits);
        self.runs.iter().all(equals)
    }

    /// The run of median wall time, because a single run depends too much on other work of the machine.
    fn median(&self) -> &Trained {
        let mut by_time: Vec<&Trained> = self.runs.iter().collect();
        by_time.sort_by_key(|run| run.wall);
        by_time[by_time.len() / 2]
    }
}

impl Report {
    /// Whether all runs reached the accuracy goal, and the distributed ones have the reference's weights.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let accurate = |run: &Trained| run.score.accuracy >= ACCURACY_GOAL;
        let good = |exchange: &Exchange| exchange.runs.iter().all(accurate) && exchange.equals(&self.reference);
        good(&self.reference) && self.exchanges.iter().all(good)
    }

    /// The workers' transfers, summed by path.
    fn paths(&self) -> BTreeMap<String, Tally> {
        let mut paths: BTreeMap<String, Tally> = BTreeMap::new();
        for Transfers { node, direction, tally } in &self.transfers {
            let path = match direction {
                Direction::Fetched => path(self.server, node),
                Direction::Pushed => path(node, self.server),
                // A published tensor has no path yet.
                Direction::Published => continue,
            };
            paths.entry(path).or_default().merge(tally.clone());
        }
        paths
    }

    /// The sum of the parameter server's publications.
    fn published(&self) -> Tally {
        let mut sum = Tally::default();
        let published = self.transfers.iter().filter(|told| told.direction == Direction::Published);
        published.for_each(|told| sum.merge(told.tally.clone()));
        sum
    }

    fn write_training(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Training: {} steps, {WORKERS} workers with {BATCH} digits each per step\n", self.job.steps)?;
        writeln!(
            f,
            "  {:<22}{:>15}{:>12}{:>12}   weights equal",
            "exchange", "test accuracy", "wall time", "per step"
        )?;
        write_run(f, self.reference.name, self.reference.median(), "(the reference)")?;
        for exchange in &self.exchanges {
            let equal = if exchange.equals(&self.reference) { "yes, bit for bit" } else { "NO" };
            write_run(f, exchange.name, exchange.median(), equal)?;
        }
        let rounds = self.exchanges.iter().map(|exchange| exchange.runs.len()).max().unwrap_or_default();
        if rounds > 1 {
            writeln!(f, "\n  Times are medians of {rounds} runs that took turns.")?;
        }
        Ok(())
    }

    fn write_paths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Transfers: weights that workers fetched and gradients that they pushed, in all runs\n")?;
        writeln!(f, "  {TRANSFERS_HEAD}")?;
        for (path, tally) in self.paths() {
            write_transfers(f, &path, &tally)?;
            writeln!(f)?;
        }
        let published = self.published();
        writeln!(
            f,
            "\n  The parameter server had published {} snapshots of its weights: {} copied, once for all workers.",
            published.count(),
            bytes(published.copied)
        )
    }

    fn write_bulk(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensors, size) = (self.load.tensors, mebibytes(self.load.mib));
        writeln!(f, "Bulk: {tensors} tensors of {size}, one at a time; every byte was read, and was right\n")?;
        writeln!(f, "  {TRANSFERS_HEAD}     moved at  then read at")?;
        for Read { node, tally, reading } in &self.reads {
            write_transfers(f, &path(self.server, node), tally)?;
            // A hand-over by reference moves no bytes, so a rate in bytes would be misleading.
            let flying = tally.latencies.iter().sum();
            let moved = if tally.is_by_reference() { "not moved".to_owned() } else { rate(tally.bytes, flying) };
            writeln!(f, "{moved:>13}{:>14}", rate(tally.bytes, *reading))?;
        }
        writeln!(
            f,
            "\n  A reader's first fetch takes longer than the others: it also maps the memory that they all lie in."
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_training(f)?;
        writeln!(f)?;
        self.write_paths(f)?;
        writeln!(f)?;
        self.write_bulk(f)
    }
}

fn path(from: &str, to: &str) -> String {
    format!("{from} to {to}")
}

fn write_run(f: &mut fmt::Formatter<'_>, name: &str, run: &Trained, equal: &str) -> fmt::Result {
    let accuracy = run.score.accuracy * 100.0;
    let seconds = run.wall.as_secs_f64();
    let step_us = seconds * 1e6 / run.timed_steps.max(1) as f64;
    writeln!(f, "  {name:<22}{accuracy:>13.2} %{seconds:>10.3} s{step_us:>9.0} µs   {equal}")
}

const TRANSFERS_HEAD: &str = "path       transfers       bytes   fabric    copied by a CPU        p50        p99";

/// Writes the columns of [`TRANSFERS_HEAD`].
fn write_transfers(f: &mut fmt::Formatter<'_>, path: &str, tally: &Tally) -> fmt::Result {
    let (count, size, fabric, copied) =
        (tally.count(), bytes(tally.bytes), tally.fabrics.join("+"), bytes(tally.copied));
    let [p50, p99] = [50, 99].map(|percent| time(tally.percentile(percent)));
    write!(f, "  {path:<10}{count:>10}{size:>12}   {fabric:<8}{copied:>17}{p50:>11}{p99:>11}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Score;
    use std::time::Duration;

    fn run(accuracy: f32, wall_ms: u64, weight_bits: Vec<u32>) -> Trained {
        let score = Score { loss: 0.1, accuracy };
        Trained { wall: Duration::from_millis(wall_ms), timed_steps: 100, score, weight_bits }
    }

    fn tally(fabric: &str, bytes: u64, copied: u64, latency_us: u64) -> Tally {
        Tally { fabrics: vec![fabric.to_owned()], bytes, copied, latencies: vec![Duration::from_micros(latency_us)] }
    }

    fn report(runs: Vec<Trained>) -> Report {
        let told = |node: &str, direction, tally| Transfers { node: node.to_owned(), direction, tally };
        Report {
            job: Job { steps: 101, seed: 1 },
            reference: Exchange { name: "none", runs: vec![run(0.98, 7, vec![1, 2])] },
            exchanges: vec![Exchange { name: "x", runs }],
            server: "A",
            transfers: vec![
                told("A", Direction::Fetched, tally("local", 1000, 0, 5)),
                told("A", Direction::Pushed, tally("local", 1000, 0, 7)),
                told("B", Direction::Fetched, tally("tcp", 1000, 2000, 60)),
                told("B", Direction::Pushed, tally("tcp", 3000, 6000, 80)),
                told("A", Direction::Published, tally("local", 9000, 9000, 9)),
            ],
            load: Load { tensors: 1, mib: 64 },
            reads: vec![
                Read {
                    node: "A".to_owned(),
                    tally: tally("local", 64 << 20, 0, 10),
                    reading: Duration::from_millis(8),
                },
                Read { node: "B".to_owned(), tally: tally("tcp", 64 << 20, 128 << 20, 32000), reading: Duration::ZERO },
                // No CPU has copied a byte; a device has moved all of them.
                Read { node: "C".to_owned(), tally: tally("verbs", 64 << 20, 0, 32000), reading: Duration::ZERO },
            ],
        }
    }

    #[track_caller]
    fn assert_rows(report: &Report, rows: &[&str]) {
        let text = report.to_string();
        // The test ignores the widths of the columns.
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        for row in rows {
            assert!(text.lines().any(|line| words(line) == *row), "{row}\n{text}");
        }
    }

    #[test]
    fn one_wrong_bit_in_one_run_is_not_good() {
        assert!(report(vec![run(0.98, 1, vec![1, 2])]).is_good());
        let wrong = report(vec![run(0.98, 1, vec![1, 2]), run(0.98, 1, vec![1, 3])]);
        assert!(!wrong.is_good());
        assert!(wrong.to_string().contains("NO"));
    }

    #[test]
    fn inaccurate_network_is_not_good() {
        assert!(!report(vec![run(0.9, 1, vec![1, 2])]).is_good());
    }

    #[test]
    fn the_table_tells_the_time_of_the_median_step() {
        let runs = [900, 100, 200].map(|wall_ms| run(0.98, wall_ms, vec![1, 2]));
        let report = report(runs.to_vec());
        assert_rows(&report, &["x 98.00 % 0.200 s 2000 µs yes, bit for bit"]);
        assert!(report.to_string().contains("medians of 3"));
    }

    #[test]
    fn each_path_has_a_row_and_a_snapshot_has_none() {
        let report = report(vec![run(0.98, 1, vec![1, 2])]);
        assert_rows(
            &report,
            &[
                "A to A 2 2.0 kB local 0 B 5.0µs 7.0µs",
                "A to B 1 1.0 kB tcp 2.0 kB 60.0µs 60.0µs",
                "B to A 1 3.0 kB tcp 6.0 kB 80.0µs 80.0µs",
            ],
        );
        assert!(report.to_string().contains("1 snapshots of its weights: 9.0 kB copied"));
    }

    #[test]
    fn unmoved_tensors_have_no_rate() {
        assert_rows(
            &report(vec![run(0.98, 1, vec![1, 2])]),
            &[
                "A to A 1 67.1 MB local 0 B 10.0µs 10.0µs not moved 8.4 GB/s",
                "A to B 1 67.1 MB tcp 134.2 MB 32.0ms 32.0ms 2.1 GB/s -",
                "A to C 1 67.1 MB verbs 0 B 32.0ms 32.0ms 2.1 GB/s -",
            ],
        );
    }
}
