//! A chart of a sweep: the time of one tensor, and the bytes per second, over the length.

use super::report::{Line, Point, Sweep};
use super::topology::Topology;
use transfer_terminal::chart::{self, Chart, Corner, Panel, Tick};
use transfer_terminal::units;

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

/// The time of one tensor, and the rate of batches, over the length.
pub(super) fn chart(sweep: &Sweep) -> Chart {
    let all: Vec<&Line> = sweep.lines.iter().collect();
    let moving: Vec<&Line> = all.iter().copied().filter(|line| line.place.moves_bytes()).collect();
    let panels = vec![
        panel(
            "One tensor at a time: from push to fetch, p50",
            "time (µs)",
            &all,
            [latency, bare_latency],
            Corner::UpperLeft,
        ),
        panel(
            "In batches (on one host nothing moves)",
            "throughput (GB/s)",
            &moving,
            [rate, bare_rate],
            Corner::LowerRight,
        ),
    ];
    Chart { panels, foot: String::new() }
}

/// An axis of lengths, an axis of values, and for each place a line of the system and one of its baseline.
fn panel(title: &str, unit: &str, lines: &[&Line], values: [Value; 2], legend: Corner) -> Panel {
    let place = |len: u64| (len as f64).log2();
    let ticks = lines.first().map_or(&[][..], |line| &line.points).iter().map(|point| point.len);
    let ticks = ticks.map(|len| Tick { at: place(len), label: units::bytes(len) }).collect();
    let mut drawn = Vec::new();
    for line in lines {
        let colour = Topology::all().iter().position(|place| *place == line.place).unwrap_or(0);
        let points = |of: Value| -> Vec<(f64, f64)> {
            line.points.iter().filter_map(|point| Some((place(point.len), of(point)?))).collect()
        };
        let [ours, bare] = values.map(points);
        let name = line.place.name();
        drawn.push(chart::Line { name: name.to_owned(), colour, is_dashed: false, points: ours });
        drawn.push(chart::Line { name: format!("{name}: baseline"), colour, is_dashed: true, points: bare });
    }
    let (title, x_title, y_title) = (title.to_owned(), "length of a tensor".to_owned(), unit.to_owned());
    Panel { title, x_title, y_title, ticks, lines: drawn, legend }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sweep;
    use super::*;

    #[test]
    fn chart_shows_each_place_its_baseline_and_the_units() {
        let drawn = Chart { foot: "a <machine> & its kernel".to_owned(), ..chart(&sweep()) };
        let svg = drawn.to_svg().unwrap();
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
        let svg = chart(&sweep).to_svg().unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
}
