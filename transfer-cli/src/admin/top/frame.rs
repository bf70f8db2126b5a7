//! One frame of `top`, drawn from two samples.

use super::sample::{Change, Sample};
use crate::admin::fabric_name;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use std::cmp::Reverse;
use std::time::Duration;
use transfer_proto::v1::State;
use transfer_terminal::units::{age, bytes, count, short};

/// The lines of the lists, if there is room for all.
const POOL_LINES: u16 = 4;
const SESSION_LINES: u16 = 6;

/// Draws a frame. If there is no room, the ends of the lists are left out. `lost`: why there is no newer sample than
/// `now`.
pub(super) fn draw(frame: &mut Frame<'_>, before: &Sample, now: &Sample, lost: Option<&str>) {
    let change = Change::between(before, now);
    let reasons = u16::try_from(now.status.reasons.len()).unwrap_or(2).min(2);
    let lines = |entries: usize, most: u16| 2 + u16::try_from(entries.max(1)).unwrap_or(most).min(most);
    let links_lines = lines(now.links.len(), frame.area().height.saturating_sub(20).max(3));
    let areas = Layout::vertical([
        Constraint::Length(4 + reasons),
        Constraint::Length(links_lines),
        Constraint::Length(lines(now.status.pools.len(), POOL_LINES)),
        Constraint::Length(lines(now.sessions.len(), SESSION_LINES)),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, links, pools, sessions, waits, foot] = areas.areas(frame.area());
    draw_head(frame, head, now, &change, usize::from(reasons));
    draw_links(frame, links, now, &change);
    draw_pools(frame, pools, now);
    draw_sessions(frame, sessions, now);
    draw_waits(frame, waits, now);
    let keys = match lost {
        None => Line::styled("q quits", Style::new().add_modifier(Modifier::DIM)),
        Some(why) => {
            let gone = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
            Line::styled(format!("NO ANSWER for {}: {why}; q quits", age(now.at.elapsed())), gone)
        }
    };
    frame.render_widget(Paragraph::new(keys), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, now: &Sample, change: &Change, reasons: usize) {
    let status = &now.status;
    let counters = status.counters.clone().unwrap_or_default();
    let (state, color) = match status.state() {
        State::Serving => ("serving", Color::Green),
        State::Degraded => ("DEGRADED", Color::Yellow),
        State::Draining => ("DRAINING", Color::Red),
        State::Unspecified => ("unknown", Color::Reset),
    };
    let up = age(Duration::from_nanos(status.uptime_ns));
    let mut lines = vec![Line::from(vec![
        Span::raw(format!("node {}  transferd {}  up {up}  ", status.node, status.version)),
        Span::styled(state, Style::new().fg(color).add_modifier(Modifier::BOLD)),
    ])];
    lines.extend(status.reasons.iter().take(reasons).map(|reason| Line::raw(format!("  {reason}"))));
    lines.push(Line::raw(format!(
        "transfers {}  {}  failed {} ({})",
        change.transfers.count(),
        change.bytes.bytes(),
        change.failed.count(),
        count(counters.failed)
    )));
    lines.push(Line::raw(format!(
        "tensors {}  in reach {}  leases {}  in flight {}  slots {}  pinned {} of {}",
        count(counters.tensors),
        count(counters.blobs),
        count(counters.leases),
        count(counters.operations),
        count(counters.slots),
        bytes(status.pinned_bytes),
        bytes(status.pinned_limit_bytes)
    )));
    frame.render_widget(Paragraph::new(lines), area);
}

/// Draws a list with its title, its headings and its widths; an empty list says so.
fn draw_list<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    headings: [&str; N],
    widths: [u16; N],
    rows: Vec<[String; N]>,
) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let [top, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    if rows.is_empty() {
        return frame.render_widget(Paragraph::new(Line::styled(format!("{title}: none"), bold)), top);
    }
    let shown = rows.len().min(usize::from(rest.height.saturating_sub(1)));
    let more = if shown < rows.len() { format!(" ({} of {})", shown, count(rows.len() as u64)) } else { String::new() };
    frame.render_widget(Paragraph::new(Line::styled(format!("{title}{more}"), bold)), top);
    // The last column takes what is left.
    let widths = widths.iter().enumerate().map(|(i, width)| match i + 1 == N {
        true => Constraint::Min(*width),
        false => Constraint::Length(*width),
    });
    let header = Row::new(headings.map(str::to_owned)).style(Style::new().add_modifier(Modifier::DIM));
    let table = Table::new(rows.into_iter().take(shown).map(Row::new), widths.collect::<Vec<_>>()).header(header);
    frame.render_widget(table.column_spacing(2), rest);
}

fn draw_links(frame: &mut Frame<'_>, area: Rect, now: &Sample, change: &Change) {
    let mut links: Vec<_> = now.links.iter().zip(&change.links).collect();
    links.sort_by(|(_, a), (_, b)| (b.0.0 + b.1.0).total_cmp(&(a.0.0 + a.1.0)));
    let rows = links.into_iter().map(|(l, (out, inward))| {
        let rails =
            if l.rails == l.rails_live { l.rails.to_string() } else { format!("{} of {}", l.rails_live, l.rails) };
        [
            l.peer.clone(),
            fabric_name(l.fabric),
            rails,
            out.bytes(),
            inward.bytes(),
            count(l.credits.into()),
            count(l.queued),
            count(l.pulls),
            count(l.serves),
        ]
    });
    let headings = ["peer", "fabric", "rails", "out", "in", "credits", "queued", "pulls", "serves"];
    draw_list(frame, area, "links", headings, [20, 6, 6, 12, 12, 7, 7, 6, 6], rows.collect());
}

fn draw_pools(frame: &mut Frame<'_>, area: Rect, now: &Sample) {
    let rows = now.status.pools.iter().map(|p| {
        let percent = (p.used_bytes * 100).checked_div(p.bytes).unwrap_or(0);
        // In steps of 5 %.
        let full = usize::try_from(percent / 5).unwrap_or(20).min(20);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(20 - full));
        let full_for = if p.waiting > 0 { short(Duration::from_nanos(p.full_ns)) } else { String::new() };
        [p.tenant.clone(), bytes(p.bytes), bytes(p.used_bytes), format!("{percent} %"), bar, count(p.waiting), full_for]
    });
    let headings = ["tenant", "size", "used", "", "", "waiting", "full for"];
    draw_list(frame, area, "landing pools", headings, [8, 9, 9, 5, 20, 7, 8], rows.collect());
}

fn draw_sessions(frame: &mut Frame<'_>, area: Rect, now: &Sample) {
    let mut sessions: Vec<_> = now.sessions.iter().collect();
    sessions.sort_by_key(|s| Reverse((s.operations, s.leases)));
    let rows = sessions
        .into_iter()
        .map(|s| [s.worker.clone(), s.tenant.clone(), bytes(s.arena_bytes), count(s.leases), count(s.operations)]);
    let headings = ["worker", "tenant", "arena", "leases", "in flight"];
    draw_list(frame, area, "workers", headings, [30, 8, 9, 8, 9], rows.collect());
}

fn draw_waits(frame: &mut Frame<'_>, area: Rect, now: &Sample) {
    let mut transfers: Vec<_> = now.transfers.iter().collect();
    transfers.sort_by_key(|t| Reverse(t.age_ns));
    let rows = transfers.into_iter().map(|t| {
        [
            short(Duration::from_nanos(t.age_ns)),
            short(Duration::from_nanos(t.left_ns)),
            t.operation.clone(),
            t.key.clone(),
            t.worker.clone(),
            t.waits_for.clone(),
        ]
    });
    let headings = ["since", "left", "what", "key", "worker", "waits for"];
    draw_list(frame, area, "slowest waits", headings, [10, 10, 9, 24, 16, 20], rows.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Instant;
    use transfer_proto::v1;

    fn sample(at: Instant, times: u64) -> Sample {
        let path = v1::Path { fabric: 2, transfers: 50 * times, bytes: times << 20, copied_bytes: 0 };
        let counters = v1::Counters { finished: vec![path], failed: 3, tensors: 1_000_000, ..Default::default() };
        let pool = v1::Pool {
            uid: 1000,
            tenant: "1000".into(),
            bytes: 64 << 20,
            used_bytes: 48 << 20,
            waiting: 2,
            full_ns: 7_500_000_000,
        };
        let status = v1::StatusResponse {
            node: "a".into(),
            state: State::Degraded.into(),
            reasons: vec!["the directory is out of reach".into()],
            counters: Some(counters),
            pools: vec![pool],
            ..Default::default()
        };
        let links = (0..30).map(|i| v1::Link {
            peer: format!("node-{i}"),
            link: i + 1,
            fabric: 2,
            rails: 1,
            rails_live: 1,
            bytes_out: (u64::from(i) * times) << 20,
            ..Default::default()
        });
        let wait = |age: u64, key: &str| v1::Transfer {
            operation: "fetch".into(),
            key: key.into(),
            age_ns: age * 1_000_000,
            waits_for: "room in the landing pool".into(),
            ..Default::default()
        };
        let session = v1::Session { worker: "trainer-0".into(), operations: 2, ..Default::default() };
        let transfers = vec![wait(5, "quick"), wait(2500, "slow")];
        Sample { at, status, links: links.collect(), sessions: vec![session], transfers }
    }

    fn drawn(width: u16, height: u16) -> String {
        drawn_with(width, height, None)
    }

    #[test]
    fn lost_sidecar_is_reported_and_the_last_figures_stay() {
        let text = drawn_with(120, 40, Some("cannot reach it"));
        assert!(text.contains("NO ANSWER for 0 s: cannot reach it; q quits") && text.contains("node-29"), "{text}");
    }

    fn drawn_with(width: u16, height: u16, lost: Option<&str>) -> String {
        let at = Instant::now();
        let (before, now) = (sample(at, 1), sample(at + Duration::from_secs(1), 2));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &before, &now, lost)).unwrap();
        super::super::text_of(terminal.backend().buffer())
    }

    #[test]
    fn a_frame_has_rates_and_the_slowest_first() {
        let text = drawn(120, 40);
        let words = [
            "DEGRADED",
            "out of reach",
            "transfers 50/s  1 MiB/s  failed 0/s (3)",
            "tensors 1,000,000",
            "75 %",
            "###",
            "7.50 s",
        ];
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        let line = |word: &str| text.lines().position(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(line("node-29") < line("node-28"), "the fastest link first: {text}");
        assert!(line("slow ") < line("quick"), "{text}");
        assert!(text.contains("links (") && text.contains("of 30)"), "{text}");
        assert!(text.contains("29 MiB/s"), "{text}");
    }

    #[test]
    fn frame_is_drawn_on_the_smallest_terminal() {
        for (width, height) in [(1, 1), (10, 3), (40, 10), (80, 24), (300, 5)] {
            let _ = drawn(width, height);
        }
    }
}
