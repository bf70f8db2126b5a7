//! Lists over all nodes of a cluster: the directory names the nodes, and each is asked.

use super::Target;
use super::address::Address;
use crate::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use transfer_proto::v1::admin_client::AdminClient;
use transfer_proto::v1::{Node, NodesRequest, NodesResponse, Tensor, TensorsRequest};
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
            let line = transfer_terminal::table::printable(format!("transferctl: {who} is missing in the list: {why}"));
            eprintln!("{line}");
        }
        match self.missing.len() {
            0 => Ok(()),
            missing => Err(Error::NotAllNodes { missing, nodes: self.nodes }),
        }
    }
}

/// The first page of one node, with the client and the token for the others.
type First = Result<(AdminClient<Channel>, Vec<Tensor>, String), Error>;

/// Asks all nodes of the cluster of `target` for tensors. `each` gets every page with its node's name, in the order of
/// these names, until it breaks.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`]: of the sidecar at `target`. Failures of other nodes are in [`NodesAsked`].
pub(crate) async fn tensors(
    target: &Target,
    request: &TensorsRequest,
    mut each: impl FnMut(&str, Vec<Tensor>) -> ControlFlow<()>,
) -> Result<NodesAsked, Error> {
    let (nodes, mut asked) = nodes(target).await?;
    for some in nodes.chunks(AT_ONCE) {
        let begin = |(_, target): &(String, Target)| tokio::spawn(first(target.clone(), request.clone()));
        let begun: Vec<JoinHandle<First>> = some.iter().map(begin).collect();
        for ((node, target), begun) in some.iter().zip(begun) {
            // A task ends early only when the runtime does.
            let Ok(first) = begun.await else { return Ok(asked) };
            match rest(target, request, first, |page| each(node, page)).await {
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

async fn first(target: Target, mut request: TensorsRequest) -> First {
    let mut admin = target.connect().await?;
    request.page_token = String::new();
    let page = admin.tensors(request).await.map_err(|e| target.answered(e))?.into_inner();
    Ok((admin, page.tensors, page.next_page_token))
}

/// Passes the first page on, and asks for the others.
async fn rest(
    target: &Target,
    request: &TensorsRequest,
    first: First,
    mut each: impl FnMut(Vec<Tensor>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    let (mut admin, mut tensors, mut page_token) = first?;
    loop {
        if each(tensors).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if page_token.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let request = TensorsRequest { page_token, ..request.clone() };
        let page = admin.tensors(request).await.map_err(|e| target.answered(e))?.into_inner();
        (tensors, page_token) = (page.tensors, page.next_page_token);
    }
}

/// The nodes that can be asked, with their addresses; the others are in [`NodesAsked`].
async fn nodes(target: &Target) -> Result<(Vec<(String, Target)>, NodesAsked), Error> {
    let mut admin = target.connect().await?;
    let (mut nodes, mut asked, mut page_token) = (Vec::new(), NodesAsked::default(), String::new());
    loop {
        let request = NodesRequest { page_size: 1000, page_token };
        let page = admin.nodes(request).await.map_err(|e| target.answered(e))?.into_inner();
        sort(&page, target, &mut nodes, &mut asked);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            // The directory may not know it yet.
            if nodes.iter().all(|(node, _)| *node != page.asked) {
                nodes.push((page.asked, target.clone()));
                asked.nodes += 1;
            }
            return Ok((nodes, asked));
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
