//! `transferctl directory`.

use super::Target;
use crate::error::Error;
use serde_json::json;
use transfer_core::text::printable;
use transfer_proto::v1::{DirectoryState, MoveDirectoryRequest};
use transfer_terminal::table::Table;
use transfer_terminal::units::counted;

/// The options of `transferctl directory`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// What to change; nothing: show the hosts
    #[command(subcommand)]
    pub change: Option<Change>,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// As JSON: sizes in bytes, times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

/// A change of the directory.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Change {
    /// Let another of its hosts lead. Ask the one that leads
    Move(Move),
}

/// The options of `transferctl directory move`.
#[derive(Debug, Clone, clap::Args)]
pub struct Move {
    /// The node that is to lead. Default: a host that has just voted
    pub node: Option<String>,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Requests what a sidecar knows of the directory, and prints it; or lets another host lead.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`].
pub async fn run(options: &Options) -> Result<(), Error> {
    if let Some(Change::Move(options)) = &options.change {
        return lead(options).await;
    }
    let directory = options.target.status().await?.directory.unwrap_or_default();
    match options.json {
        true => transfer_terminal::outln!("{:#}", json!(directory)),
        false => transfer_terminal::out!("{}", as_table(&directory)),
    }
    Ok(())
}

async fn lead(options: &Move) -> Result<(), Error> {
    // Another host may lead only after the time of a takeover.
    let mut admin = options.target.connect_for_long().await?;
    let request = MoveDirectoryRequest { node: options.node.clone().unwrap_or_default() };
    let moved = admin.move_directory(request).await.map_err(|e| options.target.answered(e))?.into_inner();
    match options.json {
        true => transfer_terminal::outln!("{:#}", json!({ "leader": moved.node })),
        false => transfer_terminal::outln!("node {} leads the directory now", printable(moved.node)),
    }
    Ok(())
}

/// The directory in one line: where it is, what it has if it is hosted here, and whether this node is attached.
pub(super) fn as_line(directory: &DirectoryState) -> String {
    let mut text = directory.location.clone();
    if directory.hosted_here {
        text.push_str(&format!(": {}", counts(directory)));
    }
    match directory.attached {
        true => text.push_str(", attached"),
        false => text.push_str(&format!(", NOT attached: {}", directory.why_not)),
    }
    text
}

fn counts(directory: &DirectoryState) -> String {
    let counts = [
        counted(directory.keys, "key", "keys"),
        counted(directory.workers, "worker", "workers"),
        counted(directory.nodes, "node", "nodes"),
        counted(directory.watches, "watch", "watches"),
    ];
    counts.join(", ")
}

fn as_table(directory: &DirectoryState) -> String {
    let mut text = String::new();
    if directory.hosts.is_empty() && directory.coordinator.is_empty() {
        text.push_str(&format!("{}\n", printable(as_line(directory))));
        return text;
    }
    let mut table = Table::new(&["host", "state", "address"]);
    for host in &directory.hosts {
        let state = if host.node == directory.leader { "leads" } else { "" };
        table.row([host.node.clone(), state.to_owned(), host.location.clone()]);
    }
    if !directory.hosts.is_empty() {
        text.push_str(&table.to_string());
    }
    let mut line = |words: String| text.push_str(&format!("{}\n", printable(words)));
    match (directory.coordinator.as_str(), directory.coordinator_why_not.as_str()) {
        ("", _) => {}
        (coordinator, "") => line(format!("as {coordinator} says")),
        (coordinator, why_not) => line(format!("{coordinator} does NOT answer: {why_not}")),
    }
    if directory.leader.is_empty() {
        line("no host leads, as far as this node knows".to_owned());
    }
    if directory.term > 0 {
        line(format!("term {}", directory.term));
    }
    if directory.hosted_here {
        line(counts(directory));
    }
    if !directory.awaited.is_empty() {
        line(format!("not yet recited: {}", directory.awaited.join(", ")));
    }
    match directory.attached {
        true => line("this node is attached".to_owned()),
        false => line(format!("this node is NOT attached: {}", directory.why_not)),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_proto::v1::DirectoryHost;

    #[test]
    fn hosts_are_shown_with_the_one_that_leads_and_who_has_not_recited() {
        let host = |node: &str, location: &str| DirectoryHost { node: node.into(), location: location.into() };
        let mut directory = DirectoryState {
            hosts: vec![host("a", "http://10.0.0.1:7471"), host("b", "embedded"), host("c", "http://10.0.0.3:7471")],
            leader: "b".into(),
            term: 4,
            awaited: vec!["d".into()],
            hosted_here: true,
            attached: true,
            keys: 1,
            nodes: 3,
            ..DirectoryState::default()
        };
        let text = as_table(&directory);
        let leads: Vec<_> = text.lines().filter(|line| line.contains("leads")).collect();
        assert!(leads.len() == 1 && leads[0].trim_start().starts_with('b'), "{text}");
        for words in ["term 4", "1 key, 0 workers, 3 nodes", "not yet recited: d", "this node is attached"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        directory.leader.clear();
        assert!(as_table(&directory).contains("no host leads"));
        directory.hosts.clear();
        assert_eq!(as_table(&directory), format!("{}\n", as_line(&directory)));
    }
}
