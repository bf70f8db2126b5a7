//! A sweep: two of the parameters take several values each.

use super::error::PlanError;
use super::options::Options;
use super::plan;
use super::terms::{Measure, Setup, Verb};
use std::str::FromStr;
use transfer_terminal::units::{self, bytes};

/// The most values of an axis.
const MAX_VALUES: usize = 32;

/// A parameter that varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// Bytes of a message.
    Size,
    /// The longest message inside its work request.
    Inline,
    /// Work requests that are posted with one call.
    PostList,
    /// One completion for that many messages.
    CqMod,
    /// Polling against events.
    Events,
    /// The number of queue pairs.
    Qp,
    /// The operation.
    Verb,
}

impl Parameter {
    const ALL: [Parameter; 7] = [
        Parameter::Size,
        Parameter::Inline,
        Parameter::PostList,
        Parameter::CqMod,
        Parameter::Events,
        Parameter::Qp,
        Parameter::Verb,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Parameter::Size => "size",
            Parameter::Inline => "inline",
            Parameter::PostList => "post-list",
            Parameter::CqMod => "cq-mod",
            Parameter::Events => "events",
            Parameter::Qp => "qp",
            Parameter::Verb => "verb",
        }
    }

    /// Its name below a chart.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Parameter::Size => "bytes of a message",
            Parameter::Inline => "longest inline message (bytes)",
            Parameter::PostList => "work requests posted with one call",
            Parameter::CqMod => "messages for each completion",
            Parameter::Events => "waiting",
            Parameter::Qp => "queue pairs",
            Parameter::Verb => "operation",
        }
    }

    fn usual(self) -> &'static str {
        match self {
            Parameter::Size => "64/512/4096/32768/262144/1048576",
            Parameter::Inline => "0/64/256",
            Parameter::PostList | Parameter::CqMod => "1/4/16/64",
            Parameter::Events => "polling/events",
            Parameter::Qp => "1/2/4/8",
            Parameter::Verb => "write/read/send",
        }
    }

    fn value(self, text: &str) -> Result<u64, AxisError> {
        let wrong = || AxisError::Value { parameter: self.name(), text: text.to_owned(), right: self.usual() };
        match self {
            Parameter::Events => ["polling", "events"].iter().position(|name| *name == text).map(|at| at as u64),
            Parameter::Verb => Verb::ALL.iter().position(|verb| verb.name() == text).map(|at| at as u64),
            Parameter::Size | Parameter::Inline => units::size(text).ok(),
            Parameter::PostList | Parameter::CqMod | Parameter::Qp => text.parse().ok(),
        }
        .ok_or_else(wrong)
    }

    /// A value in words.
    #[must_use]
    pub fn word(self, value: u64) -> String {
        match self {
            Parameter::Events => if value == 0 { "polling" } else { "events" }.to_owned(),
            Parameter::Verb => Verb::ALL.get(value as usize).map_or("", |verb| verb.name()).to_owned(),
            Parameter::Size => bytes(value),
            Parameter::Inline => format!("inline {value} B"),
            Parameter::PostList => format!("lists of {value}"),
            Parameter::CqMod => format!("1 completion for {value}"),
            Parameter::Qp => units::counted(value, "queue pair", "queue pairs"),
        }
    }

    fn set(self, setup: &mut Setup, value: u64) {
        let number = u32::try_from(value).unwrap_or(u32::MAX);
        match self {
            Parameter::Size => setup.max_size = value,
            Parameter::Inline => setup.inline_bytes = number,
            Parameter::PostList => setup.post_list = number,
            Parameter::CqMod => setup.signal_every = number,
            Parameter::Events => setup.events = value != 0,
            Parameter::Qp => setup.queue_pairs = number,
            Parameter::Verb => setup.verb = Verb::ALL.get(value as usize).copied().unwrap_or(setup.verb),
        }
    }
}

/// A parameter and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The parameter.
    pub parameter: Parameter,
    /// Its values, in order.
    pub values: Vec<u64>,
}

/// Two different ones: the first is the horizontal axis of a chart, the second has a line for each value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axes(pub Axis, pub Axis);

/// The text names no two axes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AxisError {
    /// There are not two, or they are the same.
    #[error("two different ones of size, inline, post-list, cq-mod, events, qp and verb would be right: size,events")]
    Two,
    /// No parameter has the name.
    #[error("{name:?} does not vary; size, inline, post-list, cq-mod, events, qp and verb do")]
    Name {
        /// The name.
        name: String,
    },
    /// A value is wrong.
    #[error("{parameter} has no value {text:?}; {right} would be right")]
    Value {
        /// The parameter.
        parameter: &'static str,
        /// The value.
        text: String,
        /// Right ones.
        right: &'static str,
    },
    /// There are too many values.
    #[error("{parameter} has {count} values, and {MAX_VALUES} is the most")]
    TooMany {
        /// The parameter.
        parameter: &'static str,
        /// Their number.
        count: usize,
    },
}

impl FromStr for Axis {
    type Err = AxisError;

    fn from_str(text: &str) -> Result<Axis, AxisError> {
        let (name, values) = text.split_once('=').map_or((text, None), |(name, values)| (name, Some(values)));
        let parameter = Parameter::ALL.into_iter().find(|parameter| parameter.name() == name);
        let parameter = parameter.ok_or_else(|| AxisError::Name { name: name.to_owned() })?;
        let values = values.unwrap_or(parameter.usual()).split('/').map(|text| parameter.value(text));
        let mut values = values.collect::<Result<Vec<_>, _>>()?;
        values.sort_unstable();
        values.dedup();
        if values.len() > MAX_VALUES {
            return Err(AxisError::TooMany { parameter: parameter.name(), count: values.len() });
        }
        Ok(Axis { parameter, values })
    }
}

impl FromStr for Axes {
    type Err = AxisError;

    fn from_str(text: &str) -> Result<Axes, AxisError> {
        let (first, second) = text.split_once(',').ok_or(AxisError::Two)?;
        let axes = Axes(first.parse()?, second.parse()?);
        if axes.0.parameter == axes.1.parameter { Err(AxisError::Two) } else { Ok(axes) }
    }
}

/// A point of the sweep: its two values, and its set-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The value of the first axis.
    pub x: u64,
    /// The value of the second axis.
    pub line: u64,
    /// What is measured.
    pub setup: Setup,
}

/// All points, line by line.
///
/// # Errors
/// [`PlanError`] of the first point that cannot be.
pub fn points(options: &Options, axes: &Axes) -> Result<Vec<Point>, PlanError> {
    let usual = match options.setup.measure {
        _ if options.setup.verb == Verb::Atomic => super::terms::WORD,
        Measure::Bw => 4096,
        Measure::Lat => 64,
    };
    let mut points = Vec::new();
    for line in &axes.1.values {
        for x in &axes.0.values {
            let both = [(axes.0.parameter, *x), (axes.1.parameter, *line)];
            let size = both.iter().find(|(parameter, _)| *parameter == Parameter::Size);
            let mut setup = plan::setup(options, size.map_or(usual, |(_, size)| *size));
            both.iter().for_each(|(parameter, value)| parameter.set(&mut setup, *value));
            setup.check()?;
            points.push(Point { x: *x, line: *line, setup });
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::options;
    use super::*;

    #[test]
    fn axes_are_read_with_their_values_or_the_usual_ones() {
        let axes: Axes = "size=1MiB/64/64,events".parse().unwrap();
        assert_eq!(axes.0, Axis { parameter: Parameter::Size, values: vec![64, 1 << 20] });
        assert_eq!(axes.1, Axis { parameter: Parameter::Events, values: vec![0, 1] });
        for parameter in Parameter::ALL {
            assert!(parameter.name().parse::<Axis>().unwrap().values.len() > 1, "{}", parameter.name());
        }
        for (text, part) in [
            ("size", "two different"),
            ("size,size=3", "two different"),
            ("size,colour", "\"colour\" does not vary"),
            ("size=64/x,qp", "size has no value \"x\""),
            ("verb=write/tell,qp", "verb has no value \"tell\"; write/read/send would be right"),
            ("events=maybe,qp", "events has no value"),
        ] {
            let error = text.parse::<Axes>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many = (1..=33).map(|n| n.to_string()).collect::<Vec<_>>().join("/");
        assert!(format!("qp={many},size").parse::<Axes>().unwrap_err().to_string().contains("33 values"));
    }

    #[test]
    fn a_point_has_both_values_and_the_other_flags() {
        let options = options("write bw -n 3 -I 32 --sweep size=64/65536,qp=1/4");
        let points = points(&options, options.sweep.as_ref().unwrap()).unwrap();
        let seen: Vec<_> = points.iter().map(|p| (p.setup.max_size, p.setup.queue_pairs)).collect();
        assert_eq!(seen, [(64, 1), (65_536, 1), (64, 4), (65_536, 4)]);
        // The usual signaling is that of the size.
        assert_eq!((points[0].setup.signal_every, points[1].setup.signal_every), (100, 1));
        assert!(points.iter().all(|point| point.setup.inline_bytes == 32));
        let verbs = super::super::plan::tests::options("write lat --sweep verb,events");
        let error = super::points(&verbs, verbs.sweep.as_ref().unwrap()).unwrap_err().to_string();
        assert!(error.contains("--events does not go with write lat"), "{error}");
    }
}
