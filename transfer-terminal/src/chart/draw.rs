//! The drawing.

use super::{Chart, Corner, Line, Panel};
use crate::units;
use plotters::prelude::*;
use std::error::Error;
use std::fmt::Write;

const WIDTH: u32 = 880;
const PANEL: u32 = 478;
const FOOT: u32 = 24;
const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 35, 40);
const FAINT: RGBColor = RGBColor(216, 222, 228);
/// The colours of paper, ink and mesh, each with its replacement for dark mode.
const DARK: [(RGBColor, RGBColor); 3] =
    [(PAPER, RGBColor(13, 17, 23)), (INK, RGBColor(230, 237, 243)), (FAINT, RGBColor(48, 54, 61))];
/// Colours that differ for readers with red-green blindness, and that are visible on both papers.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(43, 130, 201),
    RGBColor(213, 94, 0),
    RGBColor(148, 124, 0),
    RGBColor(120, 120, 120),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

pub(super) fn draw(chart: &Chart) -> Result<String, Box<dyn Error>> {
    let rows = chart.panels.len().max(1);
    let height = PANEL * rows as u32 + FOOT;
    let mut text = String::new();
    draw_on(chart, rows, SVGBackend::with_string(&mut text, (WIDTH, height)), height).map_err(|why| why.to_string())?;
    Ok(for_both_papers(&text))
}

fn draw_on<'a>(chart: &Chart, rows: usize, backend: SVGBackend<'a>, height: u32) -> Result<(), Box<dyn Error + 'a>> {
    let root = backend.into_drawing_area();
    root.fill(&PAPER)?;
    let (body, foot) = root.split_vertically(height - FOOT);
    for (panel, area) in chart.panels.iter().zip(&body.split_evenly((rows, 1))) {
        draw_panel(panel, area)?;
    }
    let small = ("sans-serif", 14).into_font().color(&INK);
    foot.draw(&Text::new(chart.foot.clone(), (16, 4), small))?;
    root.present()?;
    Ok(())
}

fn draw_panel<'a>(panel: &Panel, area: &Area<'a>) -> Result<(), Box<dyn Error + 'a>> {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let above = points().map(|(_, value)| *value).filter(|value| *value > 0.0);
    let (Some((first, last)), Some((least, most))) = (ends(points().map(|(at, _)| *at)), ends(above)) else {
        return Ok(());
    };
    // The axis has whole decades, so that its ends have labels.
    let decades = 10f64.powf(least.log10().floor())..10f64.powf((most * 1.001).log10().ceil());
    // A single value gets room on both sides.
    let margin = ((last - first) / 20.0).max(0.3);
    // Only a logarithmic axis has labels at given places, so a place is the logarithm of what is drawn.
    let keys: Vec<f64> = panel.ticks.iter().map(|tick| tick.at.exp2()).collect();
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 22).into_font().color(&INK))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(
            ((first - margin).exp2()..(last + margin).exp2()).log_scale().with_key_points(keys),
            decades.log_scale(),
        )?;
    let label = ("sans-serif", 16).into_font().color(&INK);
    let name = |drawn: &f64| {
        let at = drawn.log2();
        let nearest = panel.ticks.iter().min_by(|a, b| (a.at - at).abs().total_cmp(&(b.at - at).abs()));
        nearest.map_or_else(String::new, |tick| tick.label.clone())
    };
    chart
        .configure_mesh()
        .x_desc(&panel.x_title)
        .y_desc(&panel.y_title)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| number(*value))
        .axis_style(INK)
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .label_style(label.clone())
        .axis_desc_style(label.clone())
        .draw()?;
    for Line { name, colour, is_dashed, points } in &panel.lines {
        let colour = COLOURS[colour % COLOURS.len()];
        let points = points.iter().map(|(at, value)| (at.exp2(), *value)).filter(|(_, value)| *value > 0.0);
        if points.clone().next().is_none() {
            continue;
        }
        if *is_dashed {
            chart.draw_series(DashedLineSeries::new(points, 5, 4, colour.stroke_width(1)))?.label(name).legend(
                move |at| {
                    let dash = |from, to| PathElement::new([(from, 0), (to, 0)], colour.stroke_width(1));
                    EmptyElement::at(at) + dash(0, 10) + dash(14, 24)
                },
            );
        } else {
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(2)));
        }
    }
    let corner = match panel.legend {
        Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
        Corner::LowerRight => SeriesLabelPosition::LowerRight,
    };
    chart
        .configure_series_labels()
        .position(corner)
        .background_style(PAPER)
        .border_style(FAINT)
        .label_font(label)
        .legend_area_size(30)
        .draw()?;
    Ok(())
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |ends, value| {
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
    use super::super::{Chart, Corner, Line, Panel, Tick};

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let ticks = [(6.0, "64 B"), (10.0, "1 KiB")].map(|(at, label)| Tick { at, label: label.to_owned() });
        let line = |name: &str, is_dashed| Line { name: name.to_owned(), colour: 9, is_dashed, points: points.clone() };
        let panel = Panel {
            title: "a <title>".to_owned(),
            x_title: "bytes".to_owned(),
            y_title: "time (µs)".to_owned(),
            ticks: ticks.to_vec(),
            lines: vec![line("polling", false), line("baseline", true)],
            legend: Corner::UpperLeft,
        };
        Chart { panels: vec![panel.clone(), panel], foot: "a machine & its kernel".to_owned() }
    }

    #[test]
    fn chart_has_its_words_and_a_mark_for_each_point() {
        let svg = chart(vec![(6.0, 1.5), (10.0, 20.0), (11.0, 0.0)]).to_svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{e}: {svg}"));
        let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for wanted in
            ["a <title>", "bytes", "time (µs)", "64 B", "1 KiB", "polling", "baseline", "a machine & its kernel"]
        {
            assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
        }
        // A value of 0 has no place on a logarithmic axis.
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("circle")).count(), 4);
        assert!(svg.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn single_and_missing_points_are_drawn() {
        for points in [vec![], vec![(6.0, 3.0)], vec![(6.0, f64::NAN)]] {
            let svg = chart(points).to_svg().unwrap();
            assert!(roxmltree::Document::parse(&svg).is_ok());
        }
    }
}
