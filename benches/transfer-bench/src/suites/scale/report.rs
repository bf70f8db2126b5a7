//! The costs along each axis: as a table, and as JSON.

use crate::figure::Spread;
use crate::resident::Resident;
use serde_json::{Value, json};
use std::fmt;
use transfer_terminal::table::Table;
use transfer_terminal::units;

/// The growth that is allowed: a tensor may cost this many times what it costs in the first cell, while all that it
/// concerns fits into a core's cache, and beyond.
const GOALS: (f64, f64) = (1.5, 3.0);

/// The costs along all axes.
#[derive(Debug)]
pub struct Scale {
    pub(super) axes: Vec<Axis>,
}

/// An axis: more and more of one thing.
#[derive(Debug)]
pub(super) struct Axis {
    pub(super) name: &'static str,
    /// What there is more and more of.
    pub(super) things: &'static str,
    /// The number of things beyond which they do not fit into a core's cache.
    cached: u64,
    pub(super) cells: Vec<Cell>,
}

/// The costs with a number of things.
#[derive(Debug)]
pub(super) struct Cell {
    axis: &'static str,
    goal: f64,
    pub(super) count: u64,
    /// The nanoseconds of a fetch that waits, in each run.
    pub(super) waits_ns: Vec<f64>,
    /// The nanoseconds of a push that answers one, and of the release, in each run.
    pub(super) pushes_ns: Vec<f64>,
    pub(super) each: Option<Each>,
    /// The share of a processor that the data plane takes while there is nothing to do.
    pub(super) idle: Option<f64>,
}

/// What a thing takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Each {
    /// Bytes of heap and stacks.
    heap: f64,
    /// Bytes of rings and headers.
    shared: f64,
    threads: f64,
    descriptors: f64,
}

impl Axis {
    pub(super) fn new(name: &'static str, things: &'static str, cached: u64) -> Axis {
        Axis { name, things, cached, cells: Vec::new() }
    }

    /// The growth of a cost beyond the first cell: the median over the runs.
    fn growth(&self, cell: &Cell, of: fn(&Cell) -> &[f64]) -> Option<f64> {
        let first = Spread::of(of(self.cells.first()?))?.median;
        Some(Spread::of(of(cell))?.median / first)
    }

    fn json(&self) -> Value {
        let cell = |cell: &Cell| {
            json!({
                "count": cell.count,
                "wait_ns": Spread::of(&cell.waits_ns),
                "wait_growth": self.growth(cell, waits),
                "push_ns": Spread::of(&cell.pushes_ns),
                "push_growth": self.growth(cell, pushes),
                "goal": cell.goal,
                "heap_bytes_each": cell.each.map(|each| each.heap),
                "shared_bytes_each": cell.each.map(|each| each.shared),
                "threads_each": cell.each.map(|each| each.threads),
                "descriptors_each": cell.each.map(|each| each.descriptors),
                "idle": cell.idle,
            })
        };
        json!({ "axis": self.name, "things": self.things, "cells": self.cells.iter().map(cell).collect::<Vec<_>>() })
    }
}

fn waits(cell: &Cell) -> &[f64] {
    &cell.waits_ns
}

fn pushes(cell: &Cell) -> &[f64] {
    &cell.pushes_ns
}

impl Cell {
    pub(super) fn new(axis: &Axis, count: u64) -> Cell {
        let goal = if count <= axis.cached { GOALS.0 } else { GOALS.1 };
        Cell { axis: axis.name, goal, count, waits_ns: Vec::new(), pushes_ns: Vec::new(), each: None, idle: None }
    }

    /// What each of `count` things takes that came between these two looks.
    pub(super) fn beside(before: Resident, after: Resident, count: u64) -> Option<Each> {
        let each = |of: fn(&Resident) -> u64| (of(&after) as f64 - of(&before) as f64) / count.max(1) as f64;
        Some(Each {
            heap: each(|r| r.anonymous),
            shared: each(|r| r.shared),
            threads: each(|r| r.threads),
            descriptors: each(|r| r.descriptors),
        })
    }

    pub(super) fn title(&self) -> String {
        format!("{} {}", units::count(self.count), self.axis)
    }
}

impl Scale {
    /// The axes as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        self.axes.iter().map(Axis::json).collect()
    }
}

const HEADINGS: [&str; 12] = [
    ">number",
    ">wait, ns",
    ">(min to max)",
    ">growth",
    ">push, ns",
    ">(min to max)",
    ">growth",
    ">goal",
    "",
    ">heap each",
    ">shared each",
    ">threads, descriptors each",
];

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for axis in &self.axes {
            let mut table = Table::new(&HEADINGS);
            for (at, cell) in axis.cells.iter().enumerate() {
                let growths = [axis.growth(cell, waits), axis.growth(cell, pushes)];
                let [wait, push] = [Spread::of(&cell.waits_ns), Spread::of(&cell.pushes_ns)];
                let middle = |s: Option<Spread>| s.map_or_else(String::new, |s| format!("{:.0}", s.median));
                let ends =
                    |s: Option<Spread>| s.map_or_else(String::new, |s| format!("({:.0} to {:.0})", s.min, s.max));
                let times = |x: Option<f64>| x.filter(|_| at > 0).map_or_else(String::new, |x| format!("{x:.2} ×"));
                let bytes = |x: Option<f64>| x.map_or_else(String::new, |x| format!("{x:.0} B"));
                let is_flat = growths.iter().flatten().all(|growth| *growth <= cell.goal);
                table.row([
                    units::count(cell.count),
                    middle(wait),
                    ends(wait),
                    times(growths[0]),
                    middle(push),
                    ends(push),
                    times(growths[1]),
                    if at > 0 { format!("≤ {:.1} ×", cell.goal) } else { String::new() },
                    if at == 0 {
                        ""
                    } else if is_flat {
                        "reached"
                    } else {
                        "MISSED"
                    }
                    .to_owned(),
                    bytes(cell.each.map(|each| each.heap)),
                    bytes(cell.each.map(|each| each.shared)),
                    cell.each.map_or_else(String::new, |each| format!("{:.1}, {:.1}", each.threads, each.descriptors)),
                ]);
            }
            writeln!(f, "{}\n{table}", axis.things)?;
            for cell in &axis.cells {
                if let Some(idle) = cell.idle {
                    writeln!(f, "  {}, nothing to do: {:.3} % of a processor", cell.title(), idle * 100.0)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two axes: one is flat, and the other grows.
    pub(in super::super) fn scale() -> Scale {
        let axis = |name, things, costs: &[(u64, f64)]| {
            let mut axis = Axis::new(name, things, 1000);
            for (count, ns) in costs {
                let mut cell = Cell::new(&axis, *count);
                (cell.waits_ns, cell.pushes_ns) = (vec![*ns, ns - 10.0, ns + 10.0], vec![2.0 * ns; 3]);
                axis.cells.push(cell);
            }
            axis
        };
        let mut axes = vec![
            axis("keys", "keys of a node", &[(1, 100.0), (100_000, 250.0)]),
            axis("links", "links to others", &[(1, 100.0), (10, 250.0)]),
        ];
        let before = Resident { anonymous: 1000, threads: 5, descriptors: 20, ..Resident::default() };
        let after = Resident { anonymous: 3000, threads: 5, descriptors: 40, ..Resident::default() };
        axes[1].cells[1].each = Cell::beside(before, after, 10);
        axes[1].cells[1].idle = Some(0.01);
        Scale { axes }
    }

    #[test]
    fn growth_is_held_against_the_goal_of_the_number() {
        let text = scale().to_string();
        let rows: Vec<&str> = text.lines().filter(|line| line.contains('≤')).collect();
        assert!(rows[0].contains("2.50 ×") && rows[0].contains("≤ 3.0 ×") && rows[0].contains("reached"), "{text}");
        assert!(rows[1].contains("≤ 1.5 ×") && rows[1].contains("MISSED") && rows[1].contains("200 B"), "{text}");
        assert!(rows[1].contains("0.0, 2.0") && text.contains("10 links, nothing to do: 1.000 %"), "{text}");
        let json = scale().json();
        assert_eq!(json[0]["cells"][1]["wait_ns"], json!({ "median": 250.0, "min": 240.0, "max": 260.0 }));
        assert_eq!((&json[1]["cells"][1]["push_growth"], &json[0]["axis"]), (&json!(2.5), &json!("keys")));
        assert_eq!(json[1]["cells"][1]["descriptors_each"], 2.0);
    }
}
