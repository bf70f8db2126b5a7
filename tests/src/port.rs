//! A port of this host that no other process is given.

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt::set_socket_reuseaddr,
};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// A port of 127.0.0.1 that stays reserved until this is dropped.
///
/// A sidecar that a test restarts has to listen where it listened before. While it is down, the kernel may give its
/// port to a connection of another test. A socket that is bound and does not listen prevents that, and admits a
/// listener that sets `SO_REUSEADDR`.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl ReservedPort {
    /// Reserves a free port.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn any() -> ReservedPort {
        let socket = tcp_socket();
        set_socket_reuseaddr(&socket, true).expect("an option of a socket");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address =
            getsockname(&socket).ok().and_then(|address| address.try_into().ok()).expect("the address of a socket");
        ReservedPort { address, _socket: socket }
    }

    /// Returns the port's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn tcp_socket() -> OwnedFd {
    socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    fn a_reserved_port_is_given_to_listeners_and_to_no_connection() {
        let port = ReservedPort::any();
        for _ in 0..2 {
            let listener = listen(port.address());
            let connected = TcpStream::connect(port.address()).expect("it listens");
            drop((listener, connected));
        }
        let stranger = tcp_socket();
        assert!(bind(&stranger, &port.address()).is_err(), "the port was given to another");
    }
    /// Listens at the port, also a second time. A child that another test has forked holds the previous listener until
    /// it runs its program.
    fn listen(address: SocketAddr) -> TcpListener {
        let started = Instant::now();
        loop {
            match TcpListener::bind(address) {
                Err(e) if e.kind() == ErrorKind::AddrInUse && started.elapsed() < Duration::from_secs(60) => {
                    std::thread::yield_now();
                }
                listener => return listener.expect("a listener may come, and come back"),
            }
        }
    }
}
