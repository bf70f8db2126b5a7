//! The results: perftest's columns, or JSON.

use super::client::{Figures, Row};
use super::figures::{Latency, Rate};
use super::terms::{Measure, Setup};
use serde_json::{Value, json};
use std::fmt::Write;
use transfer_verbs::choose::Chosen;

/// The lines above the table: what is measured, and with what.
pub(super) fn head(setup: &Setup, chosen: &Chosen) -> String {
    let Setup { queue_pairs, depth, post_list, signal_every, inline_bytes, .. } = setup;
    let gid = chosen
        .gid
        .as_ref()
        .map_or_else(|| format!("LID {}", chosen.port.lid), |g| format!("GID {} {}", g.index, g.gid));
    let (device, port) = (chosen.context.device_name(), chosen.port.number);
    let mtu = setup.mtu.unwrap_or(chosen.port.mtu_active.len_bytes());
    let mut text = format!(" {}: {device} port {port}, {gid}, MTU {mtu}\n", setup.name());
    let waits = if setup.events { "by events" } else { "by polling" };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        " queue pairs {queue_pairs}, TX depth {depth}, post list {post_list}, CQ moderation {signal_every}, \
         inline {inline_bytes} B, waits {waits}{}{}",
        if setup.shared_receives { ", shared receive queue" } else { "" },
        if setup.by_rdma_cm { ", rdma_cm" } else { "" },
    );
    text + columns(setup.measure)
}

fn columns(measure: Measure) -> &'static str {
    match measure {
        Measure::Bw => " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n",
        Measure::Lat => {
            " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec]\n"
        }
    }
}

/// A line of the table.
pub(super) fn line(row: &Row) -> String {
    let size = row.size;
    let mut text = match row.figures {
        // perftest shows an unknown peak as 0.00, too.
        Figures::Bw(Rate { messages, peak, average, mpps }) => {
            format!(" {size:<10} {messages:<14} {:<18.2} {average:<20.2} {mpps:<.6}", peak.unwrap_or(0.0))
        }
        Figures::Lat(Latency { messages, least, most, typical, average, deviation, p99, p999 }) => format!(
            " {size:<10} {messages:<14} {least:<14.2} {most:<12.2} {typical:<18.2} {average:<14.2} {deviation:<15.2} \
             {p99:<22.2} {p999:<.2}"
        ),
    };
    if let Some(lost) = row.lost.filter(|lost| *lost > 0) {
        let _ = write!(text, "   {lost} lost");
    } else if !row.matches {
        text.push_str("   the last bytes were lost");
    }
    text.push('\n');
    text
}

/// A row as JSON.
pub(super) fn value(setup: &Setup, row: &Row) -> Value {
    let mut value = match row.figures {
        Figures::Bw(Rate { messages, peak, average, mpps }) => json!({
            "iterations": messages, "bw_peak_mib_s": peak, "bw_average_mib_s": average, "msg_rate_mpps": mpps,
        }),
        Figures::Lat(Latency { messages, least, most, typical, average, deviation, p99, p999 }) => json!({
            "iterations": messages, "t_min_us": least, "t_max_us": most, "t_typical_us": typical, "t_avg_us": average,
            "t_stdev_us": deviation, "p99_us": p99, "p999_us": p999,
        }),
    };
    value["bytes"] = json!(row.size);
    value["lost"] = json!(row.lost);
    value["matches"] = json!(row.matches);
    value["setup"] = json!(setup);
    value
}

#[cfg(test)]
mod tests {
    use super::super::terms::tests::setup;
    use super::super::terms::{Kind, Verb};
    use super::*;

    const RATE: Rate = Rate { messages: 5000, peak: Some(120.5), average: 100.25, mpps: 0.001604 };
    const LATENCY: Latency = Latency {
        messages: 1000,
        least: 1.5,
        most: 90.0,
        typical: 2.25,
        average: 3.0,
        deviation: 4.0,
        p99: 5.0,
        p999: 6.0,
    };

    fn row(figures: Figures) -> Row {
        Row { size: 65_536, figures, lost: None, matches: true }
    }

    #[test]
    fn numbers_are_in_the_columns_of_perftest() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&line(&row(Figures::Bw(RATE)))), ["65536", "5000", "120.50", "100.25", "0.001604"]);
        let lat = words(&line(&row(Figures::Lat(LATENCY))));
        assert_eq!(lat, ["65536", "1000", "1.50", "90.00", "2.25", "3.00", "4.00", "5.00", "6.00"]);
        // A number begins where its heading does.
        for (figures, measure) in [(Figures::Bw(RATE), Measure::Bw), (Figures::Lat(LATENCY), Measure::Lat)] {
            let starts = |text: &str| -> Vec<usize> {
                let chars: Vec<char> = text.trim_end().chars().collect();
                (1..chars.len()).filter(|at| chars[at - 1] == ' ' && chars[*at] != ' ').collect()
            };
            assert_eq!(starts(&line(&row(figures)))[..2], starts(columns(measure))[..2]);
        }
    }

    #[test]
    fn losses_are_shown() {
        let lost = Row { lost: Some(3), ..row(Figures::Bw(RATE)) };
        assert!(line(&lost).ends_with(" 3 lost\n"));
        assert!(line(&Row { lost: Some(0), ..lost }).ends_with("0.001604\n"));
        assert!(line(&Row { lost: None, matches: false, ..lost }).contains("were lost"));
    }

    #[test]
    fn json_has_the_figures_and_the_setup() {
        let setup = setup(Verb::Write, Measure::Bw, Kind::RC);
        let value = value(&setup, &row(Figures::Bw(RATE)));
        assert_eq!((&value["bytes"], &value["bw_average_mib_s"]), (&json!(65_536), &json!(100.25)));
        assert_eq!((&value["setup"]["verb"], &value["setup"]["kind"]), (&json!("write"), &json!("RC")));
        let value = super::value(&setup, &row(Figures::Lat(LATENCY)));
        assert_eq!((&value["t_typical_us"], &value["matches"]), (&json!(2.25), &json!(true)));
    }
}
