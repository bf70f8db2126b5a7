//! A chart of a sweep, for a page: the time of one tensor, and the bytes per second, over the length. It is SVG, so
//! that it stays sharp, can be compared line by line in a repository, and follows the reader's choice of light or dark.

use super::place::Place;
use super::report::{Line, Point, Sweep};
use crate::BenchError;
use crate::machine::Machine;
use plotters::prelude::*;
use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use transfer_terminal::unfinished::Unfinished;
use transfer_terminal::units;

const SIZE: (u32, u32) = (880, 980);
const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 35, 40);
const FAINT: RGBColor = RGBColor(216, 222, 228);
/// The colours of paper, ink and mesh, each with its replacement for dark mode.
const DARK: [(RGBColor, RGBColor); 3] =
    [(PAPER, RGBColor(13, 17, 23)), (INK, RGBColor(230, 237, 243)), (FAINT, RGBColor(48, 54, 61))];
/// Colours that differ for readers with red-green blindness, and that are visible on both papers.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 158, 115), RGBColor(204, 121, 167), RGBColor(43, 130, 201), RGBColor(213, 94, 0)];

/// The output file of a chart.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A file that gets its name when it is complete.
    New(Unfinished),
    /// A pipe or a device, which cannot be replaced.
    Stream(fs::File),
}

impl File {
    /// Makes sure that the file can be written. An existing file stays until [`File::finish`].
    pub(super) fn begin(path: &Path) -> Result<File, BenchError> {
        let failed = |source| BenchError::File { what: "write", path: path.to_owned(), source };
        // Through a symbolic link: its target is replaced, not the link.
        let path = match path.canonicalize() {
            Ok(path) => path,
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(e) => return Err(failed(e)),
        };
        if path.exists() && !path.is_file() {
            let stream = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            return Ok(File { path, to: To::Stream(stream) });
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let name = path.file_name().unwrap_or_default();
        let file = fs::File::open(folder).and_then(|folder| Unfinished::begin(folder.into(), name)).map_err(failed)?;
        Ok(File { path, to: To::New(file) })
    }

    /// Draws the chart, and writes it.
    pub(super) fn finish(self, sweep: &Sweep, runs: u32) -> Result<(), BenchError> {
        let machine = Machine::look();
        let caption =
            format!("{}, {} cores, Linux {}; medians of {runs} runs", machine.cpu, machine.cores, machine.kernel);
        let text = draw(sweep, &caption)?;
        let written = match self.to {
            To::New(file) => file
                .file()
                .write_all(text.as_bytes())
                .and_then(|()| file.file().sync_all())
                .and_then(|()| file.finish(true)),
            To::Stream(mut stream) => stream.write_all(text.as_bytes()),
        };
        written.map_err(|source| BenchError::File { what: "write", path: self.path, source })
    }
}

type Value = fn(&Point) -> Option<f64>;

fn latency(point: &Point) -> Option<f64> {
    point.latency(50.0).map(|spread| spread.median)
}
fn bare_latency(point: &Point) -> Option<f64> {
    point.bare_latency(50.0).map(|spread| spread.median)
}
fn rate(point: &Point) -> Option<f64> {
    point.rate().map(|spread| spread.median)
}
fn bare_rate(point: &Point) -> Option<f64> {
    point.bare_rate().map(|spread| spread.median)
}

fn draw(sweep: &Sweep, caption: &str) -> Result<String, BenchError> {
    let failed = |e: &dyn std::error::Error| BenchError::Chart { why: e.to_string() };
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&PAPER).map_err(|e| failed(&e))?;
        let (body, foot) = root.split_vertically(SIZE.1 - 24);
        let panels = body.split_evenly((2, 1));
        let all: Vec<&Line> = sweep.lines.iter().collect();
        let moving: Vec<&Line> = all.iter().copied().filter(|line| line.place.moves_bytes()).collect();
        let latencies = Panel {
            title: "One tensor at a time: from push to fetch, p50",
            unit: "time (µs)",
            lines: &all,
            values: [latency, bare_latency],
            legend: SeriesLabelPosition::UpperLeft,
        };
        let rates = Panel {
            title: "In batches (on one host nothing moves)",
            unit: "throughput (GB/s)",
            lines: &moving,
            values: [rate, bare_rate],
            legend: SeriesLabelPosition::LowerRight,
        };
        for (panel, area) in [latencies, rates].iter().zip(&panels) {
            panel.draw(area).map_err(|e| failed(&*e))?;
        }
        let small = ("sans-serif", 14).into_font().color(&INK);
        foot.draw(&Text::new(caption.to_owned(), (16, 4), small)).map_err(|e| failed(&e))?;
        root.present().map_err(|e| failed(&e))?;
    }
    Ok(for_both_papers(&text))
}

/// A panel of the chart: an axis of lengths, an axis of values, and for each place a line of the system and one of its
/// baseline.
struct Panel<'a> {
    title: &'a str,
    unit: &'a str,
    lines: &'a [&'a Line],
    values: [Value; 2],
    /// A corner that no line passes.
    legend: SeriesLabelPosition,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

impl Panel<'_> {
    fn draw(&self, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error + '_>> {
        let lengths = self.lines.iter().flat_map(|line| &line.points).map(|point| point.len);
        let values =
            self.lines.iter().flat_map(|line| &line.points).flat_map(|p| self.values.map(|of| of(p))).flatten();
        let (Some((shortest, longest)), Some((least, most))) = (ends(lengths.map(|len| len as f64)), ends(values))
        else {
            return Ok(());
        };
        // The axis has whole decades, so that its ends have labels.
        let decades = 10f64.powf(least.log10().floor())..10f64.powf((most * 1.001).log10().ceil());
        let keys: Vec<f64> =
            self.lines.first().map_or_else(Vec::new, |line| line.points.iter().map(|p| p.len as f64).collect());
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 22).into_font().color(&INK))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            // A single length gets room on both sides.
            .build_cartesian_2d(
                (shortest / 1.5..longest * 1.5).log_scale().with_key_points(keys),
                decades.log_scale(),
            )?;
        let label = ("sans-serif", 16).into_font().color(&INK);
        chart
            .configure_mesh()
            .x_desc("length of a tensor")
            .y_desc(self.unit)
            .x_label_formatter(&|len| units::bytes(*len as u64))
            .y_label_formatter(&|value| number(*value))
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .label_style(label.clone())
            .axis_desc_style(label.clone())
            .draw()?;
        for line in self.lines {
            let colour = COLOURS[Place::all().iter().position(|place| *place == line.place).unwrap_or(0)];
            let points =
                |of: Value| line.points.iter().filter_map(move |p| Some((p.len as f64, of(p)?))).collect::<Vec<_>>();
            let [ours, bare] = self.values.map(points);
            chart
                .draw_series(LineSeries::new(ours, colour.stroke_width(2)).point_size(3))?
                .label(line.place.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(2)));
            if !bare.is_empty() {
                chart
                    .draw_series(DashedLineSeries::new(bare, 5, 4, colour.stroke_width(1)))?
                    .label(format!("{}: baseline", line.place.name()))
                    .legend(move |at| {
                        let dash = |from, to| PathElement::new([(from, 0), (to, 0)], colour.stroke_width(1));
                        EmptyElement::at(at) + dash(0, 10) + dash(14, 24)
                    });
            }
        }
        chart
            .configure_series_labels()
            .position(self.legend.clone())
            .background_style(PAPER)
            .border_style(FAINT)
            .label_font(label)
            .legend_area_size(30)
            .draw()?;
        Ok(())
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let above = values.filter(|value| *value > 0.0 && value.is_finite());
    above.fold(None, |ends, value| {
        let (least, most) = ends.unwrap_or((value, value));
        Some((value.min(least), value.max(most)))
    })
}

fn number(value: f64) -> String {
    match value {
        1000.0.. => units::count(value as u64),
        1.0.. => format!("{value:.0}"),
        _ => format!("{value}"),
    }
}

/// Adds a style sheet for dark mode, with other colours of paper, ink and mesh. Its rules override the attributes of
/// elements.
fn for_both_papers(svg: &str) -> String {
    let mut style = "<style>@media (prefers-color-scheme: dark) {".to_owned();
    for (light, dark) in DARK {
        let hex = |c: RGBColor| format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2);
        for what in ["fill", "stroke"] {
            // Writing to a String cannot fail.
            let _ = write!(style, " [{what}=\"{}\"] {{ {what}: {} }}", hex(light), hex(dark));
        }
    }
    style.push_str(" }</style>");
    let head = svg.find("<svg").and_then(|at| Some(at + svg[at..].find('>')? + 1));
    head.map_or_else(|| svg.to_owned(), |at| format!("{}\n{style}{}\n", &svg[..at], svg[at..].trim_end()))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sweep;
    use super::*;

    #[test]
    fn chart_shows_each_place_its_baseline_and_the_units() {
        let svg = draw(&sweep(), "a <machine> & its kernel").unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{e}: {svg}"));
        assert_eq!(document.root_element().tag_name().name(), "svg");
        let texts: Vec<String> =
            document.descendants().filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect();
        for wanted in [
            "one host",
            "one host: baseline",
            "two sidecars, tcp",
            "two sidecars, tcp: baseline",
            "time (µs)",
            "throughput (GB/s)",
            "length of a tensor",
            "4 KiB",
            "16 MiB",
            "a <machine> & its kernel",
        ] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted}: {texts:?}");
        }
        // The first panel has three points of each place, and the second one three of the place that moves bytes.
        let marks = document.descendants().filter(|node| node.has_tag_name("circle")).count();
        assert_eq!(marks, 9);
        assert!(svg.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn sweep_of_one_length_has_a_chart() {
        let mut sweep = sweep();
        sweep.lines.iter_mut().for_each(|line| line.points.truncate(1));
        let svg = draw(&sweep, "").unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }

    #[test]
    fn unwritable_chart_is_an_error_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere/chart.svg");
        let error = File::begin(&nowhere).unwrap_err();
        assert!(error.to_string().contains("nowhere/chart.svg"), "{error}");
        assert!(File::begin(folder.path()).is_err(), "a folder");
        let path = folder.path().join("chart.svg");
        std::fs::write(&path, "old").unwrap();
        let file = File::begin(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        file.finish(&sweep(), 2).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("<svg"));
    }
}
