//! The limits of gRPC connections of one address, or one user of this host.

use crate::shares::{Share, Shares};
use std::fmt;
use std::net::IpAddr;

/// The most connections of one listener. Each takes a descriptor.
const MAX_CONNECTIONS: u64 = 8192;

/// The most connections of one address or user.
const MAX_CONNECTIONS_OF_ONE: u64 = 1024;

/// The source of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A connection over TCP.
    Address(IpAddr),
    /// A connection at a Unix socket, with the effective user id.
    User(u32),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Address(address) => write!(f, "{address}"),
            Source::User(uid) => write!(f, "user id {uid}"),
        }
    }
}

/// The connections of one listener.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(Shares<Source>);

impl Places {
    /// Takes a place for one more connection. The error is the reason why there is none.
    pub(super) fn take(&self, source: Source) -> Result<Share<Source>, String> {
        self.0.take(source, |own, all| match own {
            MAX_CONNECTIONS_OF_ONE.. => {
                Err(format!("{source} has {own} connections, which is the most that one may have"))
            }
            _ if all >= MAX_CONNECTIONS => {
                Err(format!("there are {all} connections, which is the most that all may have"))
            }
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: silent-connections
    #[test]
    fn one_source_takes_its_share_and_gives_it_back() {
        let places = Places::default();
        let mut own: Vec<_> = (0..MAX_CONNECTIONS_OF_ONE).map(|_| places.take(Source::User(7)).unwrap()).collect();
        let why = places.take(Source::User(7)).unwrap_err();
        assert!(why.starts_with("user id 7 has 1024 connections"), "{why}");
        drop(places.take(Source::User(8)).unwrap());
        own.pop();
        own.push(places.take(Source::User(7)).unwrap());
        drop(own);
        assert_eq!(places.0.holders(), 0);
    }
}
