//! The chart of a sweep.

use super::client::{Figures, Row};
use super::error::PerfError;
use super::sweep::{Axes, Axis, Parameter, Point};
use super::terms::Measure;
use std::path::{Path, PathBuf};
use transfer_terminal::chart::{Chart, Corner, Line, Panel, Tick};
use transfer_terminal::unfinished::OutputFile;
use transfer_terminal::units::bytes;

/// The output file of a chart.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    file: OutputFile,
}

impl File {
    /// Makes sure that the file can be written. An existing file stays until [`File::finish`].
    pub(super) fn begin(path: &Path) -> Result<File, PerfError> {
        let failed = |source| PerfError::File { path: path.to_owned(), source };
        Ok(File { path: path.to_owned(), file: OutputFile::begin(path).map_err(failed)? })
    }

    /// Draws the chart, and writes it.
    pub(super) fn finish(self, axes: &Axes, points: &[Point], rows: &[Row], foot: String) -> Result<(), PerfError> {
        let chart = Chart { panels: vec![panel(axes, points, rows)], foot };
        let text = chart.to_svg().map_err(|error| PerfError::Chart { why: error.why })?;
        self.file.finish_with(&text).map_err(|source| PerfError::File { path: self.path, source })
    }
}

fn panel(axes: &Axes, points: &[Point], rows: &[Row]) -> Panel {
    let Axes(x, lines) = axes;
    let measure = points.first().map_or(Measure::Bw, |point| point.setup.measure);
    // Bytes per second say more while the size varies, and messages per second while it does not.
    let sizes_vary = [x, lines].iter().any(|axis| axis.parameter == Parameter::Size);
    let value = |row: &Row| match row.figures {
        Figures::Bw(rate) if sizes_vary => rate.average,
        Figures::Bw(rate) => rate.mpps * 1e3,
        Figures::Lat(latency) => latency.typical,
    };
    let y_title = match (measure, sizes_vary) {
        (Measure::Bw, true) => "MiB per second",
        (Measure::Bw, false) => "thousand messages per second",
        (Measure::Lat, _) => "typical time (µs)",
    };
    let line = |(colour, of): (usize, &u64)| Line {
        name: lines.parameter.word(*of),
        colour,
        is_dashed: false,
        points: points
            .iter()
            .zip(rows)
            .filter(|(point, _)| point.line == *of)
            .map(|(point, row)| (place(x, point.x), value(row)))
            .collect(),
    };
    Panel {
        title: title(axes, points),
        x_title: x.parameter.title().to_owned(),
        y_title: y_title.to_owned(),
        ticks: x.values.iter().map(|value| Tick { at: place(x, *value), label: label(x.parameter, *value) }).collect(),
        lines: lines.values.iter().enumerate().map(line).collect(),
        legend: if measure == Measure::Bw { Corner::LowerRight } else { Corner::UpperLeft },
    }
}

/// What does not vary.
fn title(axes: &Axes, points: &[Point]) -> String {
    let Some(setup) = points.first().map(|point| &point.setup) else { return String::new() };
    let varies = |parameter| axes.0.parameter == parameter || axes.1.parameter == parameter;
    let mut title = match varies(Parameter::Verb) {
        true => format!("{} -c {}", setup.measure, setup.kind),
        false => setup.name(),
    };
    if !varies(Parameter::Size) {
        title += &format!(", {}", bytes(setup.max_size));
    }
    if setup.events && !varies(Parameter::Events) {
        title += ", by events";
    }
    title
}

/// The place of a value on the horizontal axis: numbers by their logarithm, names one beside the other.
fn place(axis: &Axis, value: u64) -> f64 {
    match axis.parameter {
        Parameter::Events | Parameter::Verb | Parameter::Inline => {
            axis.values.iter().position(|other| *other == value).unwrap_or_default() as f64
        }
        _ => (value.max(1) as f64).log2(),
    }
}

fn label(parameter: Parameter, value: u64) -> String {
    match parameter {
        Parameter::Size | Parameter::Events | Parameter::Verb => parameter.word(value),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Rate;
    use super::super::plan::tests::options;
    use super::super::sweep::points;
    use super::*;

    fn drawn(line: &str) -> Panel {
        let options = options(line);
        let axes = options.sweep.as_ref().unwrap();
        let points = points(&options, axes).unwrap();
        let row = |point: &Point| {
            let rate = Rate { messages: 1, peak: None, average: point.x as f64, mpps: 0.5 };
            Row { size: point.setup.max_size, figures: Figures::Bw(rate), lost: None, matches: true }
        };
        let rows: Vec<Row> = points.iter().map(row).collect();
        panel(axes, &points, &rows)
    }

    #[test]
    fn sizes_are_shown_with_their_rate_and_names_beside_each_other() {
        let panel = drawn("write bw --sweep size=64/4096,events");
        assert_eq!(panel.title, "write bw -c RC");
        assert_eq!(panel.y_title, "MiB per second");
        let names: Vec<_> = panel.lines.iter().map(|line| (line.name.as_str(), line.points.clone())).collect();
        let points = vec![(6.0, 64.0), (12.0, 4096.0)];
        assert_eq!(names, [("polling", points.clone()), ("events", points)]);
        assert_eq!(panel.ticks[1], Tick { at: 12.0, label: "4 KiB".to_owned() });

        let panel = drawn("write bw --sweep verb=write/send,qp=1/2");
        assert_eq!((panel.title.as_str(), panel.y_title.as_str()), ("bw -c RC, 4 KiB", "thousand messages per second"));
        assert_eq!(panel.ticks.iter().map(|tick| tick.at).collect::<Vec<_>>(), [0.0, 1.0]);
        assert_eq!(panel.lines[1].points, [(0.0, 500.0), (1.0, 500.0)]);
    }

    #[test]
    fn unwritable_chart_is_an_error_that_names_it() {
        let error = File::begin(Path::new("/nowhere/chart.svg")).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /nowhere/chart.svg");
    }
}
