//! Figures: the results of a suite over several runs, beside their baselines and goals.

use serde::Serialize;
use transfer_terminal::table::Table;

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// 10^9 bytes in a second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// Tensors in a second.
    #[serde(rename = "tensors/s")]
    TensorsPerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// 2^20 bytes.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// A number of things per other thing.
    #[serde(rename = "each")]
    Each,
    /// Hundredths of one core's time.
    #[serde(rename = "% of a core")]
    PercentOfCore,
}

impl Unit {
    fn show(self, x: f64) -> String {
        match self {
            Unit::Micros => format!("{x:.1} µs"),
            Unit::GigabytesPerSecond => format!("{x:.2} GB/s"),
            Unit::TensorsPerSecond => format!("{}/s", transfer_terminal::units::count(x.max(0.0) as u64)),
            Unit::Bytes => format!("{x:.0} B"),
            Unit::Mebibytes => format!("{x:.1} MiB"),
            Unit::Each => format!("{x:.3}"),
            Unit::PercentOfCore => format!("{x:.3} %"),
        }
    }
}

/// The comparison of a figure with its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Versus {
    /// No baseline.
    Nothing,
    /// The figure divided by its baseline.
    Ratio,
    /// The figure minus its baseline.
    Difference,
}

/// The goal for the comparison, or for the figure itself if it has no baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// No goal: the figure explains another one.
    Open,
    /// This value or less.
    AtMost(f64),
    /// This value or more.
    AtLeast(f64),
}

/// The median, the least and the greatest value of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// Computes the spread; `None` for no runs.
    #[must_use]
    pub fn of(runs: &[f64]) -> Option<Spread> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Spread { median: f64::midpoint(low, high), min, max })
    }
}

/// The p-th percentile of values in any order; 0 if there are none.
#[must_use]
pub fn percentile(values: &mut [f64], p: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * p / 100.0).ceil() as usize;
    values.get(at.saturating_sub(1)).or(values.last()).copied().unwrap_or(0.0)
}

/// A figure: a value for each run, and the baseline's value of the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    what: String,
    unit: Unit,
    versus: Versus,
    goal: Goal,
    ours: Vec<f64>,
    baseline: Vec<f64>,
}

/// A figure with its spreads.
#[derive(Debug, Clone, Serialize)]
pub struct Summary<'a> {
    /// All runs.
    #[serde(flatten)]
    figure: &'a Figure,
    median: Option<Spread>,
    baseline_median: Option<Spread>,
    compared: Option<Spread>,
    reached: Option<bool>,
}

impl Figure {
    /// A figure that stands alone.
    #[must_use]
    pub fn alone(what: impl Into<String>, unit: Unit, goal: Goal) -> Figure {
        Figure { what: what.into(), unit, versus: Versus::Nothing, goal, ours: Vec::new(), baseline: Vec::new() }
    }

    /// A figure beside its baseline.
    #[must_use]
    pub fn beside(what: impl Into<String>, unit: Unit, versus: Versus, goal: Goal) -> Figure {
        Figure { versus, ..Figure::alone(what, unit, goal) }
    }

    /// Adds a run.
    pub fn run(&mut self, ours: f64) {
        self.ours.push(ours);
    }

    /// Adds a run with its baseline.
    pub fn run_beside(&mut self, ours: f64, baseline: f64) {
        self.ours.push(ours);
        self.baseline.push(baseline);
    }

    /// Compares each run with its own baseline, because a disturbance usually affects both.
    fn compared(&self) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.baseline);
        match self.versus {
            Versus::Nothing => Vec::new(),
            Versus::Ratio => pairs.map(|(ours, baseline)| ours / baseline).collect(),
            Versus::Difference => pairs.map(|(ours, baseline)| ours - baseline).collect(),
        }
    }

    /// The figure with its spreads.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        let (median, compared) = (Spread::of(&self.ours), Spread::of(&self.compared()));
        let judged = if self.versus == Versus::Nothing { median } else { compared };
        let reached = judged.and_then(|found| match self.goal {
            Goal::Open => None,
            Goal::AtMost(limit) => Some(found.median <= limit),
            Goal::AtLeast(limit) => Some(found.median >= limit),
        });
        Summary { figure: self, median, baseline_median: Spread::of(&self.baseline), compared, reached }
    }
}

/// The figures of a suite as a table.
#[must_use]
pub fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new(&[
        "median of the runs",
        ">ours",
        ">(min to max)",
        ">baseline",
        ">(min to max)",
        ">compared",
        ">goal",
        "",
    ]);
    for figure in figures {
        let Summary { median, baseline_median, compared, reached, .. } = figure.summary();
        let show = |x| figure.unit.show(x);
        let middle = |spread: Option<Spread>| spread.map_or_else(String::new, |s| show(s.median));
        let ends = |spread: Option<Spread>| match (spread, figure.ours.len()) {
            (Some(s), 2..) => format!("({} to {})", show(s.min), show(s.max)),
            _ => String::new(),
        };
        let against = |x: f64| match figure.versus {
            Versus::Nothing => show(x),
            Versus::Ratio => format!("{x:.3} ×"),
            Versus::Difference => format!("{}{}", if x < 0.0 { "" } else { "+" }, show(x)),
        };
        let goal = match figure.goal {
            Goal::Open => String::new(),
            Goal::AtMost(limit) => format!("≤ {}", against(limit)),
            Goal::AtLeast(limit) => format!("≥ {}", against(limit)),
        };
        let verdict = match reached {
            None => "",
            Some(true) => "reached",
            Some(false) => "MISSED",
        };
        table.row([
            figure.what.clone(),
            middle(median),
            ends(median),
            middle(baseline_median),
            ends(baseline_median),
            compared.map_or_else(String::new, |s| against(s.median)),
            goal,
            verdict.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_percentiles_are_computed() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0]).unwrap().median, 2.5);
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((percentile(&mut values, 50.0), percentile(&mut values, 99.0)), (50.0, 99.0));
        assert_eq!(percentile(&mut [7.0], 50.0), 7.0);
        assert_eq!(percentile(&mut [], 50.0), 0.0);
    }

    #[test]
    fn goal_is_compared_with_the_difference() {
        let mut figure = Figure::beside("x", Unit::Micros, Versus::Difference, Goal::AtMost(5.0));
        assert_eq!(figure.summary().reached, None, "no runs");
        figure.run_beside(24.0, 20.0);
        figure.run_beside(30.0, 24.0);
        figure.run_beside(22.0, 18.0);
        assert_eq!(figure.summary().reached, Some(true), "4, 6 and 4");
        let table = table(&[figure]).to_string();
        assert!(table.contains("+4.0 µs") && table.contains("≤ +5.0 µs") && table.contains("reached"), "{table}");

        let mut alone = Figure::alone("y", Unit::TensorsPerSecond, Goal::AtLeast(300_000.0));
        alone.run(299_999.0);
        assert_eq!(alone.summary().reached, Some(false));
    }
}
