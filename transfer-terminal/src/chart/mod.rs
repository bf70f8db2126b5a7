//! Charts of measurements, for a page. They are SVG, so that they stay sharp, can be compared line by line in a
//! repository, and follow the reader's choice of light or dark.
//!
//! - this file: what a chart shows. - `draw`: the drawing.

mod draw;

/// A chart: panels, one below the other, and a line of text at the foot.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Its panels.
    pub panels: Vec<Panel>,
    /// The text at the foot: on what it was measured.
    pub foot: String,
}

/// A panel: lines over a horizontal axis. The vertical axis is logarithmic, in whole decades.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// The name of the horizontal axis.
    pub x_title: String,
    /// The name and unit of the vertical axis.
    pub y_title: String,
    /// The labelled values of the horizontal axis.
    pub ticks: Vec<Tick>,
    /// The lines.
    pub lines: Vec<Line>,
    /// The corner of the legend: one that no line passes.
    pub legend: Corner,
}

/// A labelled value of the horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// Its place on the axis. For a logarithmic axis, the binary logarithm of the value.
    pub at: f64,
    /// Its label.
    pub label: String,
}

/// A line of a panel.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Lines with the same number have the same colour.
    pub colour: usize,
    /// Whether it is a thin dashed line, as for a baseline.
    pub is_dashed: bool,
    /// Its points: the place on the horizontal axis, and the value, above 0.
    pub points: Vec<(f64, f64)>,
}

/// The corner of a legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Corner {
    UpperLeft,
    LowerRight,
}

/// A chart could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DrawError {
    /// The reason.
    pub why: String,
}

impl Chart {
    /// Draws it.
    ///
    /// # Errors
    /// [`DrawError`].
    pub fn to_svg(&self) -> Result<String, DrawError> {
        draw::draw(self).map_err(|error| DrawError { why: error.to_string() })
    }
}
