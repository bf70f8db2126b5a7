//! Lists of one node, or over all nodes of a cluster: the directory names the nodes, and each is asked.

use super::Target;
use super::address::Address;
use super::pages::{First, Pages, first, rest};
use crate::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::task::JoinHandle;
use transfer_core::text::printable;
use transfer_proto::v1::{Node, NodesRequest, NodesResponse};
use transfer_terminal::units::age;

/// The number of nodes that are asked at a time.
const AT_ONCE: usize = 16;

/// A node that could not be asked, or not to the end of its list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Its name, or a description of unknown nodes.
    who: String,
    why: String,
}

/// The number of nodes, and those that could not be asked.
#[derive(Debug, Default)]
pub(crate) struct NodesAsked {
    nodes: usize,
    missing: Vec<Missing>,
}

impl NodesAsked {
    /// Names each missing node on the standard error.
    ///
    /// # Errors
    /// [`Error::NotAllNodes`] if one is missing.
    pub(crate) fn complete(self) -> Result<(), Error> {
        for Missing { who, why } in &self.missing {
            let line = printable(format!("transferctl: {who} is missing in the list: {why}"));
            transfer_terminal::errln!("{line}");
        }
        match self.missing.len() {
            0 => Ok(()),
            missing => Err(Error::NotAllNodes { missing, nodes: self.nodes }),
        }
    }
}

/// Asks the node of `target` for a list, or all nodes of its cluster. `each` gets every page with its node's name, in the
/// order of these names, until it breaks. A single node has no name.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`]: of the sidecar at `target`. Failures of other nodes are in [`NodesAsked`].
pub(crate) async fn list<R: Pages>(
    target: &Target,
    request: R,
    all_nodes: bool,
    mut each: impl FnMut(&str, Vec<R::Entry>) -> ControlFlow<()>,
) -> Result<NodesAsked, Error> {
    if !all_nodes {
        let first = first(target.clone(), request.clone()).await;
        return rest(target, &request, first, |page| each("", page)).await.map(|_| NodesAsked::default());
    }
    let (nodes, mut asked) = nodes(target).await?;
    for some in nodes.chunks(AT_ONCE) {
        let begin = |(_, target): &(String, Target)| tokio::spawn(first(target.clone(), request.clone()));
        let begun: Vec<JoinHandle<First<R::Entry>>> = some.iter().map(begin).collect();
        for ((node, target), begun) in some.iter().zip(begun) {
            // A task ends early only when the runtime does.
            let Ok(first) = begun.await else { return Ok(asked) };
            match rest(target, &request, first, |page| each(node, page)).await {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return Ok(asked),
                Err(error) => {
                    asked.missing.push(Missing { who: format!("node {node}"), why: error.in_one_line() });
                }
            }
        }
    }
    Ok(asked)
}

/// The pages of the cluster's nodes.
async fn pages(target: &Target) -> Result<Vec<NodesResponse>, Error> {
    let mut admin = target.connect().await?;
    let (mut pages, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = NodesRequest { page_size: 1000, page_token };
        let page = admin.nodes(request).await.map_err(|e| target.answered(e))?.into_inner();
        page_token = page.next_page_token.clone();
        pages.push(page);
        if page_token.is_empty() {
            return Ok(pages);
        }
    }
}

/// The nodes that can be asked, with their addresses; the others are in [`NodesAsked`].
async fn nodes(target: &Target) -> Result<(Vec<(String, Target)>, NodesAsked), Error> {
    let (mut nodes, mut asked) = (Vec::new(), NodesAsked::default());
    let pages = pages(target).await?;
    pages.iter().for_each(|page| sort(page, target, &mut nodes, &mut asked));
    // The directory may not know it yet.
    if let Some(page) = pages.last().filter(|page| nodes.iter().all(|(node, _)| *node != page.asked)) {
        nodes.push((page.asked.clone(), target.clone()));
        asked.nodes += 1;
    }
    Ok((nodes, asked))
}

/// A node that a command line names.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Its name.
    pub(crate) node: String,
    /// The node at the address of the command.
    pub(crate) asked: String,
    /// Where its services are.
    pub(crate) target: Target,
}

/// Finds the node that has this name, or this address with or without its port.
///
/// # Errors
/// [`Error::NoSuchNode`], [`Error::SeveralNodes`], [`Error::NodeAway`], and those of the sidecar at `target`.
pub(crate) async fn find(target: &Target, host: &str) -> Result<Host, Error> {
    let host = host.strip_prefix("http://").or_else(|| host.strip_prefix("https://")).unwrap_or(host);
    let pages = pages(target).await?;
    let nodes: Vec<&Node> = pages.iter().flat_map(|page| &page.nodes).collect();
    let node = choose(&nodes, host)?;
    let why_not_all = || pages.iter().map(|page| page.why_not_all.as_str()).find(|why| !why.is_empty());
    let Some(node) = node else {
        let nodes = nodes.iter().map(|node| node.node.as_str()).collect::<Vec<_>>().join(", ");
        let why = why_not_all().map(|why| format!("; and not all are known: {why}")).unwrap_or_default();
        return Err(Error::NoSuchNode { host: host.to_owned(), nodes, why });
    };
    let (mut found, mut away) = (Vec::new(), NodesAsked::default());
    let tls = pages.iter().any(|page| page.tls);
    let asked = pages.first().map(|page| page.asked.clone()).unwrap_or_default();
    let page = NodesResponse { nodes: vec![node.clone()], asked: asked.clone(), tls, ..NodesResponse::default() };
    sort(&page, target, &mut found, &mut away);
    match (found.pop(), away.missing.pop()) {
        (Some((node, target)), _) => Ok(Host { node, asked, target }),
        (None, away) => {
            Err(Error::NodeAway { node: node.node.clone(), why: away.map(|away| away.why).unwrap_or_default() })
        }
    }
}

/// The node that `host` names: by its name, else by its address.
fn choose<'a>(nodes: &[&'a Node], host: &str) -> Result<Option<&'a Node>, Error> {
    if let Some(node) = nodes.iter().find(|node| node.node == host) {
        return Ok(Some(node));
    }
    let is_at = |node: &&&Node| {
        let without_port = node.address.rsplit_once(':').map_or("", |(host, _)| host);
        node.address == host || without_port == host || without_port.trim_matches(['[', ']']) == host
    };
    let at: Vec<&'a Node> = nodes.iter().filter(is_at).copied().filter(|node| !node.address.is_empty()).collect();
    match at[..] {
        [] => Ok(None),
        [node] => Ok(Some(node)),
        _ => {
            let nodes = at.iter().map(|node| node.node.as_str()).collect::<Vec<_>>().join(", ");
            Err(Error::SeveralNodes { host: host.to_owned(), nodes })
        }
    }
}

fn sort(page: &NodesResponse, own: &Target, nodes: &mut Vec<(String, Target)>, asked: &mut NodesAsked) {
    for Node { node, address, lost_ns, .. } in &page.nodes {
        let mut missing = |why: String| asked.missing.push(Missing { who: format!("node {node}"), why });
        match lost_ns {
            _ if *node == page.asked => nodes.push((node.clone(), own.clone())),
            Some(ago) => {
                let ago = age(Duration::from_nanos(*ago));
                missing(format!("it was lost {ago} ago, and has not come back"));
            }
            None if address.is_empty() => missing("it listens at no address (--listen of transferd)".to_owned()),
            None => {
                let scheme = if page.tls { "https" } else { "http" };
                let mut target = Target { admin: Address::Tcp(format!("{scheme}://{address}")), tls: own.tls.clone() };
                // Its certificate has its name.
                target.tls.tls_name = Some(node.clone());
                nodes.push((node.clone(), target));
            }
        }
        asked.nodes += 1;
    }
    if !page.why_not_all.is_empty() {
        let who = "every other node".to_owned();
        asked.missing.push(Missing { who, why: page.why_not_all.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_a_name_or_an_address() {
        let node = |node: &str, address: &str| Node {
            node: node.to_owned(),
            address: address.to_owned(),
            incarnation: 1,
            lost_ns: None,
        };
        let nodes = [
            node("a", "10.0.0.1:7471"),
            node("b", "10.0.0.2:7471"),
            node("c", "10.0.0.2:7472"),
            node("d", ""),
            node("6", "[fe80::1]:1"),
        ];
        let nodes: Vec<&Node> = nodes.iter().collect();
        let found = |host: &str| choose(&nodes, host).unwrap().map(|node| node.node.as_str());
        assert_eq!((found("a"), found("10.0.0.1"), found("10.0.0.1:7471")), (Some("a"), Some("a"), Some("a")));
        assert_eq!((found("10.0.0.2:7472"), found("d"), found("fe80::1")), (Some("c"), Some("d"), Some("6")));
        assert_eq!((found(""), found("10.0.0"), found("e")), (None, None, None));
        let several = choose(&nodes, "10.0.0.2").unwrap_err();
        assert!(matches!(&several, Error::SeveralNodes { nodes, .. } if nodes == "b, c"), "{several:?}");
    }

    #[test]
    fn each_node_is_asked_at_its_address_or_named_with_a_reason() {
        let own = Target { admin: Address::Unix("/run/a.sock".into()), tls: Default::default() };
        let node = |node: &str, address: &str, lost_ns| Node {
            node: node.to_owned(),
            address: address.to_owned(),
            incarnation: 1,
            lost_ns,
        };
        let page = NodesResponse {
            nodes: vec![
                node("a", "10.0.0.1:7471", None),
                node("b", "10.0.0.2:7471", None),
                node("c", "10.0.0.3:7471", Some(40_000_000_000)),
                node("d", "", None),
            ],
            asked: "a".to_owned(),
            tls: true,
            ..NodesResponse::default()
        };
        let (mut nodes, mut asked) = (Vec::new(), NodesAsked::default());
        sort(&page, &own, &mut nodes, &mut asked);
        let at = nodes.iter().map(|(name, at)| (name.as_str(), at.admin.to_string(), at.tls.tls_name.clone()));
        assert_eq!(
            at.collect::<Vec<_>>(),
            [
                ("a", "unix:/run/a.sock".to_owned(), None),
                ("b", "https://10.0.0.2:7471".to_owned(), Some("b".to_owned()))
            ]
        );
        let why: Vec<_> = asked.missing.iter().map(|missing| format!("{}: {}", missing.who, missing.why)).collect();
        assert!(
            why[0].starts_with("node c: it was lost 40") && why[1].starts_with("node d: it listens at no"),
            "{why:?}"
        );
        assert!(matches!(asked.complete(), Err(Error::NotAllNodes { missing: 2, nodes: 4 })));
        assert!(NodesAsked::default().complete().is_ok());
    }
}
