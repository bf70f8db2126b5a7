//! `transferctl ping`.

use super::{Target, cluster, fabric_name};
use crate::error::Error;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tonic::Code;
use transfer_proto::v1::{PingRequest, PingResponse};
use transfer_terminal::table::printable;
use transfer_terminal::units;

/// The longest time-out that a sidecar accepts.
const LONGEST: Duration = Duration::from_secs(9);

/// The options of `transferctl ping`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The other node: its name, or the address of its --listen, with or without the port
    #[arg(value_name = "HOST")]
    pub host: String,
    /// Stop after this many pings. Without it: at Ctrl-C
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The pause between two pings
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub interval: Duration,
    /// How long to wait for an answer, at most 9s
    #[arg(long, short = 'W', value_name = "TIME", default_value = "1s", value_parser = timeout)]
    pub timeout: Duration,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// As JSON, one object for each ping and one with the statistics: times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

fn timeout(text: &str) -> Result<Duration, String> {
    match units::duration(text).map_err(|e| e.to_string())? {
        timeout if timeout > LONGEST => Err(format!("{text} is too long: a sidecar waits for {LONGEST:?} at most")),
        timeout => Ok(timeout),
    }
}

/// The end of one ping.
enum Outcome {
    Answered(PingResponse),
    Lost(String),
}

/// Pings a node until the count is reached or the user interrupts, and prints the statistics.
///
/// # Errors
/// [`Error::PingsLost`] if not all were answered; [`Error::Unreachable`] and [`Error::Admin`] if the sidecar at
/// `--admin` cannot ping at all.
pub async fn run(options: &Options) -> Result<(), Error> {
    let node = match cluster::find(&options.target, &options.host).await {
        Ok(host) => host.node,
        // A node that is away, or that a directory out of reach does not name, may have a link all the same.
        Err(Error::NodeAway { node, .. }) => node,
        Err(Error::NoSuchNode { host, why, .. }) if !why.is_empty() => host,
        Err(error) => return Err(error),
    };
    let (began, mut totals, mut carrier) = (Instant::now(), Totals::default(), None);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut failed = None;
    loop {
        let sent_at = Instant::now();
        let outcome = tokio::select! {
            _ = &mut interrupt => break,
            outcome = once(options, &node) => outcome,
        };
        let sequence = totals.sent + 1;
        match outcome {
            Ok(outcome) => {
                if let Outcome::Answered(answer) = &outcome {
                    announce(options, &node, answer, &mut carrier);
                }
                totals.add(&outcome);
                show(options, &node, sequence, &outcome);
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        if options.count.is_some_and(|count| totals.sent >= count) {
            break;
        }
        tokio::select! {
            _ = &mut interrupt => break,
            () = tokio::time::sleep(options.interval.saturating_sub(sent_at.elapsed())) => {}
        }
    }
    if totals.sent > 0 {
        match options.json {
            true => transfer_terminal::outln!("{}", totals.as_json(&node)),
            false => transfer_terminal::outln!("{}", totals.as_text(&node, began.elapsed())),
        }
    }
    match failed {
        Some(error) => Err(error),
        None if totals.lost() > 0 => Err(Error::PingsLost { node, lost: totals.lost(), sent: totals.sent }),
        None => Ok(()),
    }
}

async fn once(options: &Options, node: &str) -> Result<Outcome, Error> {
    let mut admin = options.target.connect().await?;
    let timeout_ns = u64::try_from(options.timeout.as_nanos()).unwrap_or(u64::MAX);
    match admin.ping(PingRequest { node: node.to_owned(), timeout_ns }).await {
        Ok(answer) => Ok(Outcome::Answered(answer.into_inner())),
        // The sidecar has answered: the ping is lost. Without an answer of the sidecar, no ping was sent.
        Err(status)
            if std::error::Error::source(&status).is_none()
                && matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted) =>
        {
            Ok(Outcome::Lost(status.message().to_owned()))
        }
        Err(status) => Err(options.target.answered(status)),
    }
}

/// Says which fabric carries the link, and why no better one: at the first answer, and after each change.
fn announce(options: &Options, node: &str, answer: &PingResponse, carrier: &mut Option<(u32, i32)>) {
    let now = Some((answer.link, answer.fabric));
    if *carrier == now || options.json {
        return;
    }
    *carrier = now;
    let fabric = fabric_name(answer.fabric);
    let why = match answer.why.as_str() {
        "" => "the best that both nodes have".to_owned(),
        why => format!("no better one, because: {}", printable(why.to_owned())),
    };
    transfer_terminal::outln!("ping {node}: link {} over {fabric}; {why}", answer.link);
}

fn show(options: &Options, node: &str, sequence: u64, outcome: &Outcome) {
    match (options.json, outcome) {
        (true, Outcome::Answered(PingResponse { round_trip_ns, link, fabric, why })) => {
            let fabric = fabric_name(*fabric);
            let shown = json!({ "sequence": sequence, "round_trip_ns": round_trip_ns, "link": link, "fabric": fabric, "why": why });
            transfer_terminal::outln!("{shown}");
        }
        (true, Outcome::Lost(why)) => transfer_terminal::outln!("{}", json!({ "sequence": sequence, "lost": why })),
        (false, Outcome::Answered(answer)) => {
            let (fabric, ms) = (fabric_name(answer.fabric), ms(answer.round_trip_ns as f64));
            transfer_terminal::outln!("answer of {node}: seq={sequence} fabric={fabric} time={ms} ms");
        }
        (false, Outcome::Lost(why)) => {
            transfer_terminal::outln!("no answer of {node}: seq={sequence} {}", printable(why.clone()));
        }
    }
}

fn ms(ns: f64) -> String {
    format!("{:.3}", ns / 1e6)
}

/// The counts and times of all pings.
#[derive(Debug, Default)]
struct Totals {
    sent: u64,
    answered: u64,
    least_ns: u64,
    most_ns: u64,
    sum_ns: f64,
    sum_of_squares: f64,
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        self.sent += 1;
        if let Outcome::Answered(PingResponse { round_trip_ns, .. }) = outcome {
            let ns = *round_trip_ns;
            self.least_ns = if self.answered == 0 { ns } else { self.least_ns.min(ns) };
            self.most_ns = self.most_ns.max(ns);
            self.answered += 1;
            self.sum_ns += ns as f64;
            self.sum_of_squares += ns as f64 * ns as f64;
        }
    }

    fn lost(&self) -> u64 {
        self.sent - self.answered
    }

    /// The part that was lost, in percent.
    fn loss(&self) -> f64 {
        100.0 * self.lost() as f64 / self.sent.max(1) as f64
    }

    fn mean_ns(&self) -> f64 {
        self.sum_ns / self.answered.max(1) as f64
    }

    /// The standard deviation, as ping(8) has it: of all values, and not of a sample.
    fn deviation_ns(&self) -> f64 {
        let mean = self.mean_ns();
        (self.sum_of_squares / self.answered.max(1) as f64 - mean * mean).max(0.0).sqrt()
    }

    fn as_text(&self, node: &str, took: Duration) -> String {
        let Totals { sent, answered, .. } = self;
        let counts = format!(
            "--- {node} ping statistics ---\n{sent} sent, {answered} answered, {:.0}% loss, time {} ms",
            self.loss(),
            took.as_millis()
        );
        if self.answered == 0 {
            return counts;
        }
        let [least, mean, most, deviation] =
            [self.least_ns as f64, self.mean_ns(), self.most_ns as f64, self.deviation_ns()].map(ms);
        format!("{counts}\nrtt min/avg/max/mdev = {least}/{mean}/{most}/{deviation} ms")
    }

    fn as_json(&self, node: &str) -> Value {
        let Totals { sent, answered, .. } = self;
        let mut shown = json!({ "node": node, "sent": sent, "answered": answered, "loss_percent": self.loss() });
        if self.answered > 0 {
            shown["min_ns"] = self.least_ns.into();
            shown["avg_ns"] = (self.mean_ns() as u64).into();
            shown["max_ns"] = self.most_ns.into();
            shown["mdev_ns"] = (self.deviation_ns() as u64).into();
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_ping() {
        let mut totals = Totals::default();
        for ns in [2_000_000, 4_000_000, 4_000_000, 4_000_000, 5_000_000, 5_000_000, 7_000_000, 9_000_000] {
            totals.add(&Outcome::Answered(PingResponse { round_trip_ns: ns, ..PingResponse::default() }));
        }
        totals.add(&Outcome::Lost(String::new()));
        totals.add(&Outcome::Lost(String::new()));
        let text = totals.as_text("b", Duration::from_millis(1234));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "10 sent, 8 answered, 20% loss, time 1234 ms");
        assert_eq!(lines[2], "rtt min/avg/max/mdev = 2.000/5.000/9.000/2.000 ms");
        let json = totals.as_json("b");
        assert_eq!((&json["avg_ns"], &json["mdev_ns"]), (&5_000_000.into(), &2_000_000.into()), "{json}");
    }

    #[test]
    fn nothing_answered_has_no_times() {
        let mut totals = Totals::default();
        totals.add(&Outcome::Lost(String::new()));
        assert!(totals.as_text("b", Duration::ZERO).ends_with("1 sent, 0 answered, 100% loss, time 0 ms"));
        assert_eq!(totals.as_json("b")["loss_percent"], 100.0);
        assert!(totals.as_json("b").get("min_ns").is_none());
    }
}
