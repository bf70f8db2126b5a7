//! The peers whose requests are answered, by token.

use super::endpoint::DatagramEndpoint;
use crate::token::Token;
use std::collections::VecDeque;

/// The most peers at a time. Another one takes the place of the one that was admitted longest ago.
pub(super) const MAX_PEERS: usize = 256;

/// The admitted peers; `R` is the way to one.
#[derive(Debug)]
pub(super) struct Peers<R>(VecDeque<Peer<R>>);

#[derive(Debug)]
struct Peer<R> {
    node: String,
    endpoint: DatagramEndpoint,
    token: Token,
    route: R,
}

impl<R> Default for Peers<R> {
    fn default() -> Peers<R> {
        Peers(VecDeque::new())
    }
}

impl<R> Peers<R> {
    /// Admits a peer, and returns its token: `token`, or the one that it has. A node that asks again from the same
    /// queue pair keeps its token, so that its requests in flight are answered.
    pub(super) fn admit(&mut self, node: &str, endpoint: &DatagramEndpoint, token: Token, route: R) -> Token {
        let known = self.0.iter().position(|peer| peer.node == node && peer.endpoint == *endpoint);
        let token = known.and_then(|place| self.0.remove(place)).map_or(token, |peer| peer.token);
        if self.0.len() == MAX_PEERS {
            self.0.pop_front();
        }
        self.0.push_back(Peer { node: node.to_owned(), endpoint: endpoint.clone(), token, route });
        token
    }

    /// Returns the way to the peer that has this token.
    pub(super) fn route(&self, token: &Token) -> Option<&R> {
        self.0.iter().find(|peer| peer.token.is(token)).map(|peer| &peer.route)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::tests::example;
    use super::*;

    fn token(number: u8) -> Token {
        Token([number; 16])
    }

    // Promise: datagram-ping, seen to fail
    #[test]
    fn an_answer_goes_where_the_token_was_given_and_nowhere_else() {
        let mut peers = Peers::default();
        let other = DatagramEndpoint { queue_pair: 18, ..example() };
        assert_eq!(peers.admit("a", &example(), token(1), "to a"), token(1));
        assert_eq!(peers.admit("a", &other, token(2), "to the other of a"), token(2));
        assert_eq!(peers.admit("b", &example(), token(3), "to b"), token(3));
        let routes = [1, 2, 3, 4].map(|number| peers.route(&token(number)).copied());
        assert_eq!(routes, [Some("to a"), Some("to the other of a"), Some("to b"), None]);
        peers.clear();
        assert_eq!(peers.route(&token(1)), None);
    }

    #[test]
    fn a_peer_that_asks_again_keeps_its_token_and_gets_a_new_route() {
        let mut peers = Peers::default();
        peers.admit("a", &example(), token(1), "old");
        assert_eq!(peers.admit("a", &example(), token(2), "new"), token(1));
        assert_eq!((peers.route(&token(1)), peers.route(&token(2))), (Some(&"new"), None));
    }

    #[test]
    fn peers_are_bounded_and_the_oldest_leaves() {
        let mut peers = Peers::default();
        let name = |number: usize| number.to_string();
        let of = |number: usize| Token([number as u8; 16].map(|byte| byte ^ (number >> 8) as u8 ^ 0x5a));
        for number in 0..MAX_PEERS {
            peers.admit(&name(number), &example(), of(number), number);
        }
        peers.admit(&name(0), &example(), token(0), 0);
        peers.admit("another", &example(), Token(*b"another token!!!"), 7);
        assert_eq!(peers.0.len(), MAX_PEERS);
        assert!(peers.route(&of(0)).is_some(), "it has asked again");
        assert_eq!(peers.route(&of(1)), None);
    }
}
