//! `transferctl ping`.

use super::{Target, cluster, fabric_name};
use crate::error::Error;
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};
use tonic::Code;
use transfer_core::text::printable;
use transfer_proto::v1::{DatagramEndpoint, PingRequest, PingResponse};
use transfer_terminal::units;

/// The longest time-out that a sidecar accepts.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(9);

/// The options of `transferctl ping`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The other node: its name, or the address of its --listen, with or without the port
    #[arg(value_name = "HOST")]
    pub host: String,
    /// Send datagrams over RDMA (UD), without a link, like ibping
    #[arg(long)]
    pub ud: bool,
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
        timeout if timeout > MAX_PING_TIMEOUT => {
            Err(format!("{text} is too long: a sidecar waits for {MAX_PING_TIMEOUT:?} at most"))
        }
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
/// [`Error::PingsLost`] if not all were answered; [`Error::NoDatagrams`] if a node has no queue pair for them;
/// [`Error::Unreachable`] and [`Error::Admin`] if the sidecar at `--admin` cannot ping at all.
pub async fn run(options: &Options) -> Result<(), Error> {
    let node = match cluster::find(&options.target, &options.host).await {
        Ok(host) => host.node,
        // A node that is away, or that a directory out of reach does not name, may have a link all the same.
        Err(Error::NodeAway { node, .. }) => node,
        Err(Error::NoSuchNode { host, why, .. }) if !why.is_empty() => host,
        Err(error) => return Err(error),
    };
    let (began, mut totals, mut announced) = (Instant::now(), Totals::default(), String::new());
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
                    announce(options, &node, answer, &mut announced);
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
    let timeout_ns = units::nanos(options.timeout);
    let datagrams = options.ud;
    match admin.ping(PingRequest { node: node.to_owned(), timeout_ns, datagrams }).await {
        Ok(answer) => Ok(Outcome::Answered(answer.into_inner())),
        Err(status) if datagrams && status.code() == Code::FailedPrecondition => {
            Err(Error::NoDatagrams { why: printable(status.message().to_owned()) })
        }
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

/// Says what carries the pings, at the first answer and after each change: the link's fabric, and the fallback reason; of
/// datagrams the queue pairs.
fn announce(options: &Options, node: &str, answer: &PingResponse, announced: &mut String) {
    let line = match (&answer.from, &answer.to) {
        (Some(from), Some(to)) => format!("datagrams from {} to {}", endpoint(from), endpoint(to)),
        _ => {
            let why = match answer.why.as_str() {
                "" => "the best that both nodes have".to_owned(),
                why => format!("fallback reason: {}", printable(why.to_owned())),
            };
            format!("link {} over {}; {why}", answer.link, fabric_name(answer.fabric))
        }
    };
    if *announced != line && !options.json {
        transfer_terminal::outln!("ping {}: {line}", printable(node.to_owned()));
    }
    *announced = line;
}

/// `rxe0 port 1, GID ::ffff:10.77.0.1, queue pair 17`
fn endpoint(of: &DatagramEndpoint) -> String {
    let DatagramEndpoint { port, queue_pair, .. } = of;
    let device = printable(of.device.clone());
    let address = match (of.lid, gid(of)) {
        (0, gid) => format!("GID {}", gid.unwrap_or_default()),
        (lid, None) => format!("LID {lid}"),
        (lid, Some(gid)) => format!("LID {lid}, GID {gid}"),
    };
    format!("{device} port {port}, {address}, queue pair {queue_pair}")
}

fn gid(of: &DatagramEndpoint) -> Option<String> {
    let bytes = <[u8; 16]>::try_from(&of.gid[..]).ok()?;
    Some(Ipv6Addr::from(bytes).to_string())
}

fn endpoint_as_json(of: &DatagramEndpoint) -> Value {
    let DatagramEndpoint { device, port, lid, queue_pair, .. } = of;
    json!({ "device": device, "port": port, "gid": gid(of), "lid": lid, "queue_pair": queue_pair })
}

fn show(options: &Options, node: &str, sequence: u64, outcome: &Outcome) {
    match (options.json, outcome) {
        (true, Outcome::Answered(PingResponse { round_trip_ns, from: Some(from), to: Some(to), .. })) => {
            let (from, to) = (endpoint_as_json(from), endpoint_as_json(to));
            let shown = json!({ "sequence": sequence, "round_trip_ns": round_trip_ns, "from": from, "to": to });
            transfer_terminal::outln!("{shown}");
        }
        (true, Outcome::Answered(PingResponse { round_trip_ns, link, fabric, why, .. })) => {
            let fabric = fabric_name(*fabric);
            let shown = json!({ "sequence": sequence, "round_trip_ns": round_trip_ns, "link": link, "fabric": fabric, "why": why });
            transfer_terminal::outln!("{shown}");
        }
        (true, Outcome::Lost(why)) => transfer_terminal::outln!("{}", json!({ "sequence": sequence, "lost": why })),
        (false, Outcome::Answered(answer)) => {
            let (fabric, ms) = (fabric_name(answer.fabric), ms(answer.round_trip_ns as f64));
            let over = if options.ud { "UD".to_owned() } else { format!("fabric={fabric}") };
            let node = printable(node.to_owned());
            transfer_terminal::outln!("answer of {node}: seq={sequence} {over} time={ms} ms");
        }
        (false, Outcome::Lost(why)) => {
            let (node, why) = (printable(node.to_owned()), printable(why.clone()));
            transfer_terminal::outln!("no answer of {node}: seq={sequence} {why}");
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
        let node = printable(node.to_owned());
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
    fn queue_pairs_are_named_by_their_addresses() {
        let gid = [&[0; 10][..], &[0xff, 0xff, 10, 77, 0, 1]].concat();
        let roce =
            DatagramEndpoint { device: "rxe0".to_owned(), port: 1, gid, queue_pair: 17, ..DatagramEndpoint::default() };
        assert_eq!(endpoint(&roce), "rxe0 port 1, GID ::ffff:10.77.0.1, queue pair 17");
        let json = endpoint_as_json(&roce);
        assert_eq!((&json["gid"], &json["queue_pair"]), (&"::ffff:10.77.0.1".into(), &17.into()), "{json}");
        let infiniband = DatagramEndpoint { lid: 3, gid: Vec::new(), device: "mlx5\n0".to_owned(), ..roce };
        assert_eq!(endpoint(&infiniband), "mlx5\\n0 port 1, LID 3, queue pair 17");
        assert_eq!(endpoint_as_json(&infiniband)["gid"], Value::Null);
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
