//! Nodes whose attachment ended without a Leave. They are remembered for a while, so that lists over the cluster can
//! name them as missing.

use super::item::NodeAt;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// The time for which a lost node is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// The most lost nodes that are remembered. Beyond that the node that was lost first is forgotten.
const MAX_LOST_NODES: usize = 1024;

/// The lost nodes, in the order in which they were lost.
#[derive(Debug, Default)]
pub(crate) struct Lost(VecDeque<(NodeAt, Instant)>);

impl Lost {
    /// Records a node whose attachment ended without a Leave.
    pub(crate) fn lose(&mut self, at: NodeAt, now: Instant) {
        self.found(&at.node);
        self.forget(now);
        if self.0.len() == MAX_LOST_NODES {
            self.0.pop_front();
        }
        self.0.push_back((at, now));
    }

    /// Removes a node that is attached again.
    pub(crate) fn found(&mut self, node: &Name) {
        self.0.retain(|(at, _)| at.node != *node);
    }

    /// Returns the lost nodes, each with the time since it was lost.
    pub(crate) fn now(&mut self, now: Instant) -> impl Iterator<Item = (&NodeAt, Option<Duration>)> {
        self.forget(now);
        self.0.iter().map(move |(at, since)| (at, Some(now.saturating_duration_since(*since))))
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|(_, since)| now.saturating_duration_since(*since) > REMEMBERED_FOR) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(node: &str) -> NodeAt {
        NodeAt { node: Name::new(node).unwrap(), address: "h:1".into(), local: "".into(), incarnation: 1 }
    }

    fn names(lost: &mut Lost, now: Instant) -> Vec<String> {
        lost.now(now).map(|(at, _)| at.node.to_string()).collect()
    }

    #[test]
    fn lost_node_is_listed_until_it_returns_or_an_hour_passes() {
        let (mut lost, start) = (Lost::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        lost.lose(at("a"), start);
        lost.lose(at("b"), later(10));
        lost.lose(at("a"), later(20));
        assert_eq!(names(&mut lost, later(30)), ["b", "a"]);
        assert_eq!(lost.now(later(30)).map(|(_, since)| since.unwrap().as_secs()).collect::<Vec<_>>(), [20, 10]);
        assert_eq!(names(&mut lost, later(3615)), ["a"]);
        lost.found(&Name::new("a").unwrap());
        assert_eq!(names(&mut lost, later(3615)), [""; 0]);
    }

    #[test]
    fn lost_nodes_are_bounded() {
        let (mut lost, now) = (Lost::default(), Instant::now());
        (0..MAX_LOST_NODES + 3).for_each(|i| lost.lose(at(&format!("n{i}")), now));
        let names = names(&mut lost, now);
        assert_eq!((names.len(), names[0].as_str()), (MAX_LOST_NODES, "n3"));
    }
}
