//! Makes sockets.

use super::{TcpConfig, device};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use transfer_core::fabric::FabricError;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const BACKLOG: i32 = 256;

fn stream(address: &SocketAddr) -> Result<OwnedFd, FabricError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    net::socket_with(family, SocketType::STREAM, FLAGS, Some(net::ipproto::TCP)).map_err(device("socket"))
}

/// Makes a listening socket. Returns it with the address that it listens on.
pub(super) fn listen(config: &TcpConfig) -> Result<(OwnedFd, SocketAddr), FabricError> {
    let socket = stream(&config.listen)?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(device("SO_REUSEADDR"))?;
    // This comes before listening: accepted sockets inherit the buffers, and the window is settled during the
    // handshake.
    set_buffers(&socket, config);
    net::bind(&socket, &config.listen).map_err(device("bind"))?;
    net::listen(&socket, BACKLOG).map_err(device("listen"))?;
    let address = net::getsockname(&socket).map_err(device("getsockname"))?;
    let address = SocketAddr::try_from(address).map_err(device("getsockname"))?;
    Ok((socket, address))
}

/// Begins to connect.
pub(super) fn connect(address: &SocketAddr, config: &TcpConfig) -> Result<OwnedFd, FabricError> {
    let socket = stream(address)?;
    set_buffers(&socket, config);
    tune(&socket, config)?;
    match net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(device("connect")(error)),
    }
}

/// Accepts the next waiting socket.
pub(super) fn accept(listener: &OwnedFd, config: &TcpConfig) -> Result<OwnedFd, Errno> {
    let socket = net::accept_with(listener, FLAGS)?;
    // A socket that is dead already cannot be tuned. Reading from it reports that.
    let _ = tune(&socket, config);
    Ok(socket)
}

/// Returns the address that a socket is connected to.
pub(super) fn peer_ip(socket: &OwnedFd) -> Option<IpAddr> {
    let address: SocketAddr = net::getpeername(socket).ok().flatten()?.try_into().ok()?;
    Some(address.ip().to_canonical())
}

fn tune(socket: &OwnedFd, config: &TcpConfig) -> Result<(), FabricError> {
    sockopt::set_tcp_nodelay(socket, true).map_err(device("TCP_NODELAY"))?;
    // A peer whose machine has vanished sends no RST. If bytes stay unacknowledged for this time, or the peer is
    // silent, it is lost.
    let millis = u32::try_from(config.peer_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis).map_err(device("TCP_USER_TIMEOUT"))?;
    let third = (config.peer_timeout / 3).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(socket, third).map_err(device("TCP_KEEPIDLE"))?;
    sockopt::set_tcp_keepintvl(socket, third).map_err(device("TCP_KEEPINTVL"))?;
    sockopt::set_tcp_keepcnt(socket, 2).map_err(device("TCP_KEEPCNT"))?;
    sockopt::set_socket_keepalive(socket, true).map_err(device("SO_KEEPALIVE"))
}

/// Sets the socket's buffers if the configuration wants that. Sizes beyond `net.core.{w,r}mem_max` take CAP_NET_ADMIN;
/// without it the kernel gives what it allows.
fn set_buffers(socket: &OwnedFd, config: &TcpConfig) {
    let Some(bytes) = config.socket_buffer_bytes else { return };
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
}
