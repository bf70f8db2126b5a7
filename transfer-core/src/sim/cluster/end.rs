//! The checks after all workers have gone.

use super::Cluster;
use crate::time::Time;

impl Cluster {
    /// Checks that nothing is left after all workers have gone.
    pub(super) fn check_end(&self) -> Result<(), String> {
        for w in &self.workers {
            w.check_gone()?;
        }
        for n in &self.nodes {
            let s = n.driver.node.state().snapshot(Time(0));
            let left = (s.tensors, s.blobs, s.leases, s.operations, s.slots, s.sessions);
            if left != (0, 0, 0, 0, 0, 0) {
                return Err(format!("node {} is left with {s:?}", n.name));
            }
            if let Some(p) = s.pools.iter().find(|p| p.used > 0 || p.waiting > 0) {
                return Err(format!("node {} is left with {p:?}", n.name));
            }
            if s.on_links.sum() > 0 {
                return Err(format!("node {} is left with {:?}", n.name, s.on_links));
            }
            n.driver.node.check_idle().map_err(|e| format!("node {}: {e}", n.name))?;
            // The remaining segments are pools.
            let arenas = n.segments.len() - n.kept.len() - s.pools.len();
            if arenas > 0 {
                return Err(format!("node {} is left with {arenas} arenas", n.name));
            }
        }
        if !self.directory.is_empty() {
            return Err(format!("the directory is left with {:?}", self.directory));
        }
        let believed = self.world.lies_believed();
        if !believed.is_empty() {
            return Err(format!("over {believed:?} a header lied, and was believed"));
        }
        self.check_counting()?;
        self.check_commits()?;
        self.check_credits()
    }

    /// Checks that the credits of each side match the free receive slots of the other.
    fn check_credits(&self) -> Result<(), String> {
        for a in &self.nodes {
            for (link, peer) in &a.links {
                let b = &self.nodes[self.node_named(peer)];
                let back: Vec<_> = b.links.iter().filter(|(_, name)| **name == a.name).map(|(link, _)| *link).collect();
                let [back] = back[..] else { return Err(format!("{} has {link} to {peer}, it has {back:?}", a.name)) };
                let (credits, _, slots) = a.driver.node.credits(*link).unwrap();
                let (_, owed, _) = b.driver.node.credits(back).unwrap();
                if credits + owed != slots {
                    return Err(format!(
                        "{} has {credits} credits at {peer}, which owes {owed}; there are {slots}",
                        a.name
                    ));
                }
            }
        }
        Ok(())
    }
}
