//! The nodes of `--node`.

use std::net::IpAddr;
use std::str::FromStr;

/// The longest name of a node, in bytes: that of a common name (RFC 5280, `ub-common-name`).
const MAX_NAME_BYTES: usize = 64;

/// The file names of the authority.
const RESERVED: &str = "ca";

/// A node that gets a certificate: `NAME` or `NAME=HOST,...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name, and that of its files.
    pub name: String,
    /// Its DNS names and IP addresses.
    pub hosts: Vec<String>,
}

/// The reason why a text is no valid node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotANode {
    /// The name is not valid in file names and in a URI.
    #[error(
        "the node's name {0:?} is not 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`, of which the first is a letter or a digit"
    )]
    Name(String),
    /// The name is that of the authority's files.
    #[error("the name {RESERVED:?} is the authority's; give the node another one")]
    Reserved,
    /// A host is neither an IP address nor a DNS name.
    #[error(
        "{0:?} is neither an IP address nor a DNS name; give NAME=HOST,HOST, like node-0=10.0.0.1,node-0.example.org"
    )]
    Host(String),
}

impl FromStr for Node {
    type Err = NotANode;

    fn from_str(text: &str) -> Result<Node, NotANode> {
        let (name, hosts) = text.split_once('=').map_or((text, None), |(name, hosts)| (name, Some(hosts)));
        let right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || name.len() > MAX_NAME_BYTES || !name.chars().all(right) {
            return Err(NotANode::Name(name.to_owned()));
        }
        if name == RESERVED {
            return Err(NotANode::Reserved);
        }
        let hosts = hosts.into_iter().flat_map(|hosts| hosts.split(',')).map(|host| match is_host(host) {
            true => Ok(host.to_owned()),
            false => Err(NotANode::Host(host.to_owned())),
        });
        Ok(Node { name: name.to_owned(), hosts: hosts.collect::<Result<_, _>>()? })
    }
}

fn is_host(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || is_dns_name(text)
}

/// Whether a text is a host name in DNS (RFC 1123). A text whose last label is a number is none, because it would be
/// taken for an IP address.
pub(super) fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let right = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len()) && label.chars().all(right) && !label.starts_with('-') && !label.ends_with('-')
    };
    let ends_in_letters = text.rsplit('.').next().is_some_and(|last| last.contains(|c: char| !c.is_ascii_digit()));
    text.len() <= 253 && text.split('.').all(is_label) && ends_in_letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_hosts_are_read() {
        let node = |name: &str, hosts: &[&str]| {
            Ok(Node { name: name.into(), hosts: hosts.iter().map(|&host| host.into()).collect() })
        };
        assert_eq!("node-0".parse(), node("node-0", &[]));
        assert_eq!("a.b_c=10.0.0.1,::1,Host-1.example".parse(), node("a.b_c", &["10.0.0.1", "::1", "Host-1.example"]));
        for name in ["", "=h", "-a", ".a", "a/b", "a b", "é", &"x".repeat(65)] {
            let found = name.parse::<Node>();
            assert!(matches!(found, Err(NotANode::Name(_))), "{name:?}: {found:?}");
        }
        assert_eq!("ca=h".parse::<Node>(), Err(NotANode::Reserved));
        for host in ["", "10.0.0.256", "a..b", "-a", "a-", "h:1", "http://h", "a b", &"x".repeat(64), &"x.".repeat(130)]
        {
            assert_eq!(format!("n=a,{host}").parse::<Node>(), Err(NotANode::Host(host.into())));
        }
    }
}
