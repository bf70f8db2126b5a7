//! Facts about another node.

use super::moved::{self, Moved};
use super::socket::Socket;
use crate::admin::Target;
use crate::admin::address::Address;
use crate::error::Error;
use std::fs::read_to_string;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use transfer_proto::v1::{Fabric, SessionsRequest, StatusResponse, TensorsRequest};

/// The time-out of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest published tensor that is fetched as a test, in bytes.
const MAX_TEST_BYTES: u64 = 256 << 20;

/// The facts about another node.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The address at which it was asked.
    pub(crate) address: Address,
    pub(crate) status: Result<StatusResponse, Error>,
    /// The difference of its clock from the first sidecar's.
    pub(crate) clock: Option<Ahead>,
    /// Its data port of the tcp fabric, and whether it can be reached from this host.
    pub(crate) data_port: Option<(String, Result<(), String>)>,
    /// The network interface to it, and the largest packet there, in bytes.
    pub(crate) interface: Option<(String, u64)>,
    /// The transfers in both directions, with their results.
    pub(crate) moved: Vec<(Direction, Result<Moved, Error>)>,
    /// The first sidecar's reason for its link's fabric, after the transfers.
    pub(crate) why_not_better: Option<String>,
}

/// The direction of a transfer, and its tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From this node to that one.
    To,
    /// From that node to this one.
    From,
    /// From that node to this one, with a tensor of another worker.
    FromKey(String),
    /// From this node to that one, to this worker there.
    ToWorker(String),
}

/// A clock against another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// The difference in nanoseconds; below 0 it is behind.
    pub(crate) by_ns: i128,
    /// The uncertainty, in nanoseconds.
    pub(crate) give_or_take_ns: i128,
}

/// A status, and this host's clock before the request and after the answer, in nanoseconds since 1970.
#[derive(Debug)]
pub(crate) struct TimedStatus {
    pub(crate) status: Result<StatusResponse, Error>,
    pub(crate) before_ns: i128,
    pub(crate) after_ns: i128,
}

impl TimedStatus {
    pub(crate) async fn of(target: &Target) -> TimedStatus {
        let before_ns = now_ns();
        let status = target.status().await;
        TimedStatus { status, before_ns, after_ns: now_ns() }
    }

    /// The difference of that sidecar's clock from this host's. `None` if it does not report the time.
    fn ahead(&self) -> Option<Ahead> {
        let theirs = i128::from(self.status.as_ref().ok()?.time_unix_ns);
        let middle = (self.before_ns + self.after_ns) / 2;
        let ahead = Ahead { by_ns: theirs - middle, give_or_take_ns: (self.after_ns - self.before_ns) / 2 + 1 };
        (theirs != 0).then_some(ahead)
    }
}

fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0))
}

impl Peer {
    /// Gathers the facts about the node of `target`. Bytes are moved over this node's worker socket, and over the
    /// other's if that is reachable too.
    pub(crate) async fn look(
        target: &Target,
        first: &TimedStatus,
        sockets: (Option<&Socket>, Option<&Path>),
        bytes: u64,
    ) -> Peer {
        let asked = TimedStatus::of(target).await;
        let clock = first.ahead().zip(asked.ahead()).map(|(first, second)| Ahead {
            by_ns: second.by_ns - first.by_ns,
            give_or_take_ns: second.give_or_take_ns + first.give_or_take_ns,
        });
        let address = asked.status.as_ref().ok().and_then(data_address);
        let data_port = address.clone().map(|address| {
            let reached = reach(&address);
            (address, reached)
        });
        let interface =
            address.and_then(|address| address.parse::<SocketAddr>().ok()).and_then(|at| interface(at.ip()));
        let stranger = match (sockets.1, &asked.status) {
            (Some(there), Ok(status)) => moved::another(there, status).await,
            _ => None,
        };
        let moved = match (sockets, asked.status.is_ok(), stranger) {
            (_, false, _) => vec![],
            ((_, Some(there)), true, Some(node)) => {
                let (socket, address) = (there.to_owned(), target.admin.clone());
                vec![(Direction::To, Err(Error::AnotherSidecar { socket, node, address }))]
            }
            _ if bytes == 0 => vec![],
            ((Some(here), Some(there)), true, None) => vec![
                (Direction::From, moved::between(there, &here.path, bytes).await),
                (Direction::To, moved::between(&here.path, there, bytes).await),
            ],
            ((Some(here), None), true, _) => one_sided(target, &here.path, bytes).await,
            ((None, _), true, _) => vec![],
        };
        Peer {
            address: target.admin.clone(),
            status: asked.status,
            clock,
            data_port,
            interface,
            moved,
            why_not_better: None,
        }
    }
}

/// The address of a sidecar's tcp fabric.
pub(crate) fn data_address(status: &StatusResponse) -> Option<String> {
    let tcp = status.fabric_states.iter().find(|state| state.fabric() == Fabric::Tcp && state.available)?;
    Some(tcp.settings.iter().find(|setting| setting.name == "address")?.value.clone())
}

/// Whether a connection can be made.
pub(crate) fn reach(address: &str) -> Result<(), String> {
    let address: SocketAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(drop).map_err(|e| e.to_string())
}

/// Transfers to and from the node of `target`, over this node's socket alone: with a tensor of its own if there is a
/// worker at which it can land, else with a tensor that another worker has published there.
async fn one_sided(target: &Target, here: &Path, bytes: u64) -> Vec<(Direction, Result<Moved, Error>)> {
    let mut failed = None;
    if let Some(worker) = receiver(target).await {
        match moved::there_and_back(here, &worker, bytes).await {
            Ok([there, back]) => return vec![(Direction::ToWorker(worker), Ok(there)), (Direction::From, Ok(back))],
            // It may have left by now.
            Err(error) => failed = Some((Direction::ToWorker(worker), Err(error))),
        }
    }
    match published(target).await {
        Some(key) => vec![(Direction::FromKey(key.clone()), moved::fetch(here, &key).await)],
        None => failed.into_iter().collect(),
    }
}

/// The name of a worker of this user on that node. A tensor that is pushed to it takes room in its node's pool, and
/// does not disturb it otherwise.
async fn receiver(target: &Target) -> Option<String> {
    let request = SessionsRequest { page_size: 1000, ..SessionsRequest::default() };
    let page = target.connect().await.ok()?.sessions(request).await.ok()?.into_inner();
    let uid = rustix::process::getuid().as_raw();
    let mine = |s: &&transfer_proto::v1::Session| s.uid == uid && !s.worker.starts_with(moved::WORKERS);
    page.sessions.iter().find(mine).map(|s| s.worker.clone())
}

/// The largest tensor there that a fetch does not consume: it stays until it is replaced, even if it is fetched.
async fn published(target: &Target) -> Option<String> {
    let request = TensorsRequest { page_size: 1000, ..TensorsRequest::default() };
    let page = target.connect().await.ok()?.tensors(request).await.ok()?.into_inner();
    let stays =
        |t: &&transfer_proto::v1::Tensor| t.retention.starts_with("until replaced") && t.len_bytes <= MAX_TEST_BYTES;
    page.tensors.iter().filter(stays).max_by_key(|t| t.len_bytes).map(|t| t.key.clone())
}

/// The interface for packets to an address, and the largest packet there.
fn interface(to: IpAddr) -> Option<(String, u64)> {
    let IpAddr::V4(to) = to else { return None };
    let name = match to.is_loopback() {
        true => "lo".to_owned(),
        false => route(&read_to_string("/proc/net/route").ok()?, to)?,
    };
    let mtu = read_to_string(Path::new("/sys/class/net").join(&name).join("mtu")).ok()?;
    Some((name, mtu.trim().parse().ok()?))
}

/// The interface of the longest matching prefix in the kernel's table: name, destination, gateway, ..., mask as the
/// 8th; numbers are hexadecimal in memory order.
fn route(table: &str, to: Ipv4Addr) -> Option<String> {
    let to = u32::from_ne_bytes(to.octets());
    let entries = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let (destination, mask) = (number(1)?, number(7)?);
        (to & mask == destination).then(|| (mask.count_ones(), fields[0].to_owned()))
    });
    entries.max_by_key(|(ones, _)| *ones).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_has_the_longest_prefix() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n\
                     eth1 0000000A 00000000 0001 0 0 0 000000FF 0 0 0\n\
                     ib0  0001000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        // The table is as a little-endian kernel writes it.
        if cfg!(target_endian = "little") {
            for (to, name) in [([10, 0, 1, 7], "ib0"), ([10, 9, 9, 9], "eth1"), ([192, 0, 2, 1], "eth0")] {
                assert_eq!(route(table, Ipv4Addr::from(to)).as_deref(), Some(name));
            }
        }
        assert_eq!(route("Iface\n", Ipv4Addr::new(10, 0, 0, 1)), None);
        assert_eq!(interface("127.0.0.1".parse().unwrap()).map(|(name, _)| name).as_deref(), Some("lo"));
    }

    #[test]
    fn clocks_are_compared_at_the_middle_of_the_request() {
        let status = StatusResponse { time_unix_ns: 5_000, ..StatusResponse::default() };
        let asked = TimedStatus { status: Ok(status), before_ns: 1_000, after_ns: 3_000 };
        assert_eq!(asked.ahead(), Some(Ahead { by_ns: 3_000, give_or_take_ns: 1_001 }));
        let silent = TimedStatus { status: Ok(StatusResponse::default()), before_ns: 1, after_ns: 3 };
        assert_eq!(silent.ahead(), None);
    }

    #[test]
    fn reachability_of_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(reach(&address), Ok(()));
        drop(listener);
        assert!(reach(&address).is_err() && reach("nonsense").is_err());
    }
}
