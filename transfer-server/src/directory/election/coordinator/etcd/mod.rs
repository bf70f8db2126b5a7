//! etcd says which host leads: the one whose record stands under a key, as long as its lease lasts.
//!
//! | key | value | ends with |
//! |---|---|---|
//! | `PREFIX/leader` | the [`Record`](super::Record) of the host that leads, or that comes next | its lease |
//! | `PREFIX/hosts/NODE` | the record of a host | its lease |
//! | `PREFIX/nodes/NODE` | empty: a node for which the next host waits | when its host deletes it |
//! | `PREFIX/newest` | the number of an entry: the host that leads is at most 2^31 ahead | never |
//!
//! What the host that leads writes, it writes on the condition that the first key is as it left it. The term is the revision of that key.
//!
//! | file | idea |
//! |---|---|
//! | `keys` | the names of the keys |
//! | `client` | the calls to etcd's members |

mod client;
#[cfg(test)]
mod fake;
mod keys;
#[cfg(test)]
mod tests;

pub(crate) use client::Etcd;
