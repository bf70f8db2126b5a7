//! The curves: for each axis, the costs over the number of things.

use super::report::{Axis, Cell, Scale};
use crate::figure::Spread;
use transfer_terminal::chart::{self, Chart, Corner, Panel, Tick};
use transfer_terminal::units;

/// A panel for each axis.
pub(super) fn chart(scale: &Scale) -> Chart {
    Chart { panels: scale.axes.iter().map(panel).collect(), foot: String::new() }
}

fn panel(axis: &Axis) -> Panel {
    let place = |cell: &Cell| (cell.count.max(1) as f64).log2();
    let line = |name: &str, colour, of: fn(&Cell) -> &[f64]| {
        let point = |cell: &Cell| Some((place(cell), Spread::of(of(cell))?.median));
        let points = axis.cells.iter().filter_map(point).filter(|(_, ns)| *ns > 0.0).collect();
        chart::Line { name: name.to_owned(), colour, is_dashed: false, points }
    };
    Panel {
        title: axis.things.to_owned(),
        x_title: axis.name.to_owned(),
        y_title: "data plane, each (ns)".to_owned(),
        ticks: axis.cells.iter().map(|cell| Tick { at: place(cell), label: units::count(cell.count) }).collect(),
        lines: vec![
            line("a fetch that waits", 0, |cell| &cell.waits_ns),
            line("the push, and the release", 1, |cell| &cell.pushes_ns),
        ],
        legend: Corner::UpperLeft,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::scale;
    use super::*;

    #[test]
    fn chart_has_a_panel_for_each_axis_and_both_costs() {
        let svg = chart(&scale()).to_svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{e}: {svg}"));
        let texts: Vec<String> =
            document.descendants().filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect();
        for wanted in ["keys of a node", "links to others", "a fetch that waits", "100,000"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted}: {texts:?}");
        }
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("circle")).count(), 8);
    }
}
