//! Conversion of socket addresses.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};

/// Converts an address for the library.
pub(super) fn to_raw(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: plain numbers, for which zeros are valid.
    let mut raw: sockaddr_storage = unsafe { mem::zeroed() };
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage is as large and as aligned as every kind of address needs.
            let raw = unsafe { &mut *(&raw mut raw).cast::<sockaddr_in>() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = address.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let raw = unsafe { &mut *(&raw mut raw).cast::<sockaddr_in6>() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = address.port().to_be();
            raw.sin6_addr.s6_addr = address.ip().octets();
            raw.sin6_flowinfo = address.flowinfo();
            raw.sin6_scope_id = address.scope_id();
        }
    }
    raw
}

/// Converts an address from the library; `None` for another family, such as that of an unknown address.
pub(super) fn from_raw(raw: &sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what is in the storage.
            let raw = unsafe { &*std::ptr::from_ref(raw).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*std::ptr::from_ref(raw).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::net::SocketAddr;

    use super::{from_raw, to_raw};

    #[test]
    fn addresses_round_trip() {
        for words in ["10.77.0.1:18515", "[fe80::1%7]:4791", "[2001:db8::1]:0"] {
            let address: SocketAddr = words.parse().expect("an address");
            assert_eq!(from_raw(&to_raw(address)), Some(address));
        }
    }

    #[test]
    fn unknown_address_family_is_none() {
        // SAFETY: plain numbers, for which zeros are valid.
        assert_eq!(from_raw(&unsafe { mem::zeroed() }), None);
    }
}
