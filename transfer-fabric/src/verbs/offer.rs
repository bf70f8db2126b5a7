//! The offers that the two sides exchange before they connect. They come over the control plane, and are checked as if
//! a stranger had sent them.
//!
//! | bytes | queue-pair data | rdma_cm |
//! |---|---|---|
//! | 4 | `TVRB` | `TVRB` |
//! | 1 | version | version |
//! | 1 | `q` | `c` |
//! | 1 | `i`nitiator or `a`cceptor | the same |
//! | | [`Endpoint`] | 16: a token; in the acceptor's offer followed by the port and address of its listener |

use crate::token::Token;
use std::net::{IpAddr, SocketAddr};
use transfer_core::fabric::Offer;
use transfer_verbs::{Gid, GidKind, Mtu};

const MAGIC: [u8; 4] = *b"TVRB";
const VERSION: u8 = 1;

/// The side that an offer is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Initiator,
    Acceptor,
}

impl Role {
    const fn letter(self) -> u8 {
        match self {
            Role::Initiator => b'i',
            Role::Acceptor => b'a',
        }
    }
}

/// A queue pair, and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The kind of the address.
    pub(super) kind: GidKind,
    pub(super) gid: Gid,
    pub(super) lid: u16,
    pub(super) queue_pair: u32,
    /// The number of its first packet.
    pub(super) packet_number: u32,
    pub(super) mtu: Mtu,
    /// The number of READs and atomic operations that it answers at a time; 0: none.
    pub(super) read_depth: u8,
}

/// The reason why an offer is bad.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum OfferError {
    #[error("it is none of this fabric")]
    NotOurs,
    #[error("it is of version {0}, this side speaks version {VERSION}")]
    Version(u8),
    #[error("it is of the wrong side")]
    WrongSide,
    #[error("the peer connects by {theirs}, this side by {ours}: both need the same setting")]
    OtherWay { theirs: &'static str, ours: &'static str },
    #[error("it is {0} bytes long, which is too short")]
    TooShort(usize),
    #[error("{0} bytes follow its end")]
    TooLong(usize),
    #[error("its {field} is {value:#x}, which none can be")]
    BadField { field: &'static str, value: u32 },
    #[error("the peer's port is reached by {theirs}, this side's by {ours}")]
    Unreachable { theirs: GidKind, ours: GidKind },
}

const QUEUE_PAIR_DATA: u8 = b'q';
const RDMA_CM: u8 = b'c';

fn words(way: u8) -> &'static str {
    if way == QUEUE_PAIR_DATA { "queue-pair data" } else { "rdma_cm" }
}

fn begin(way: u8, role: Role) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, way, role.letter()]);
    bytes
}

/// Returns the bytes behind the head of an offer that came this way from that side.
fn open(offer: &Offer, way: u8, role: Role) -> Result<Reader<'_>, OfferError> {
    let short = OfferError::TooShort(offer.0.len());
    let rest = offer.0.strip_prefix(&MAGIC).ok_or(OfferError::NotOurs)?;
    let ([version, theirs, side], rest) = rest.split_first_chunk::<3>().ok_or(short)?;
    if *version != VERSION {
        return Err(OfferError::Version(*version));
    }
    if *theirs != way {
        let known = [QUEUE_PAIR_DATA, RDMA_CM].contains(theirs);
        let bad = OfferError::BadField { field: "way to connect", value: (*theirs).into() };
        return Err(if known { OfferError::OtherWay { theirs: words(*theirs), ours: words(way) } } else { bad });
    }
    if *side != role.letter() {
        return Err(OfferError::WrongSide);
    }
    Ok(Reader { len: offer.0.len(), rest })
}

/// Takes fields off the front of an offer.
struct Reader<'a> {
    len: usize,
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], OfferError> {
        let (field, rest) = self.rest.split_first_chunk().ok_or(OfferError::TooShort(self.len))?;
        self.rest = rest;
        Ok(*field)
    }

    fn end(self) -> Result<(), OfferError> {
        if self.rest.is_empty() { Ok(()) } else { Err(OfferError::TooLong(self.rest.len())) }
    }
}

const KINDS: [GidKind; 4] = [GidKind::InfiniBand, GidKind::RoceV1, GidKind::RoceV2Ipv4, GidKind::RoceV2Ipv6];

impl Endpoint {
    pub(super) fn encode(&self, role: Role) -> Offer {
        let mut bytes = begin(QUEUE_PAIR_DATA, role);
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(usize::MAX);
        bytes.push(kind as u8);
        bytes.extend(self.gid.0);
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.queue_pair.to_le_bytes());
        bytes.extend(self.packet_number.to_le_bytes());
        bytes.extend((self.mtu.len_bytes() as u16).to_le_bytes());
        bytes.push(self.read_depth);
        Offer(bytes)
    }

    /// Decodes the offer of the side in that role. `ours` is how this side's port is reached.
    pub(super) fn decode(offer: &Offer, role: Role, ours: GidKind) -> Result<Endpoint, OfferError> {
        let mut reader = open(offer, QUEUE_PAIR_DATA, role)?;
        let [kind] = reader.take()?;
        let gid = Gid(reader.take()?);
        let lid = u16::from_le_bytes(reader.take()?);
        let queue_pair = u32::from_le_bytes(reader.take()?);
        let packet_number = u32::from_le_bytes(reader.take()?);
        let mtu = u16::from_le_bytes(reader.take()?);
        let [read_depth] = reader.take()?;
        reader.end()?;
        let bad = |field, value| OfferError::BadField { field, value };
        let kind = *KINDS.get(usize::from(kind)).ok_or(bad("kind of address", kind.into()))?;
        if kind != ours {
            return Err(OfferError::Unreachable { theirs: kind, ours });
        }
        let multicast_lid = 0xC000;
        match kind {
            GidKind::InfiniBand if lid == 0 || lid >= multicast_lid => return Err(bad("LID", lid.into())),
            GidKind::RoceV1 | GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6 if gid.is_zero() || gid.0[0] == 0xff => {
                return Err(bad("first byte of the GID", gid.0[0].into()));
            }
            GidKind::RoceV2Ipv4 if !gid.is_ipv4() => return Err(bad("first byte of an IPv4 GID", gid.0[0].into())),
            _ => {}
        }
        // 0 and 1 are the management queue pairs, and the last number is the multicast one.
        if !(2..0xFF_FFFF).contains(&queue_pair) {
            return Err(bad("queue pair number", queue_pair));
        }
        if packet_number > 0xFF_FFFF {
            return Err(bad("packet number", packet_number));
        }
        let mtu = Mtu::from_len_bytes(mtu.into()).ok_or(bad("path MTU", mtu.into()))?;
        Ok(Endpoint { kind, gid, lid, queue_pair, packet_number, mtu, read_depth })
    }
}

/// Encodes the offer of an initiator that connects by rdma_cm: the token that the acceptor has to show.
pub(super) fn encode_cm_initiator(token: &Token) -> Offer {
    let mut bytes = begin(RDMA_CM, Role::Initiator);
    bytes.extend(token.0);
    Offer(bytes)
}

pub(super) fn decode_cm_initiator(offer: &Offer) -> Result<Token, OfferError> {
    let mut reader = open(offer, RDMA_CM, Role::Initiator)?;
    let token = Token(reader.take()?);
    reader.end()?;
    Ok(token)
}

/// Encodes the acceptor's offer: the token that the initiator has to show, and the address to connect to.
pub(super) fn encode_cm_acceptor(token: &Token, address: SocketAddr) -> Offer {
    let mut bytes = begin(RDMA_CM, Role::Acceptor);
    bytes.extend(token.0);
    bytes.extend(address.port().to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.to_ipv6_mapped().octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    Offer(bytes)
}

pub(super) fn decode_cm_acceptor(offer: &Offer) -> Result<(Token, SocketAddr), OfferError> {
    let mut reader = open(offer, RDMA_CM, Role::Acceptor)?;
    let token = Token(reader.take()?);
    let port = u16::from_le_bytes(reader.take()?);
    let ip = IpAddr::from(reader.take::<16>()?).to_canonical();
    reader.end()?;
    if port == 0 {
        return Err(OfferError::BadField { field: "port", value: 0 });
    }
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(OfferError::BadField {
            field: "address, a wildcard or multicast one with port",
            value: port.into(),
        });
    }
    Ok((token, SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            kind: GidKind::RoceV2Ipv4,
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]),
            lid: 0,
            queue_pair: 17,
            packet_number: 0xFF_FFFF,
            mtu: Mtu::B4096,
            read_depth: 16,
        }
    }

    #[test]
    fn offers_round_trip() {
        let ours = endpoint();
        for role in [Role::Initiator, Role::Acceptor] {
            assert_eq!(Endpoint::decode(&ours.encode(role), role, ours.kind), Ok(ours));
        }
        let infiniband = Endpoint { kind: GidKind::InfiniBand, gid: Gid([0; 16]), lid: 3, ..ours };
        let offer = infiniband.encode(Role::Acceptor);
        assert_eq!(Endpoint::decode(&offer, Role::Acceptor, GidKind::InfiniBand), Ok(infiniband));
        let token = Token::random().unwrap();
        assert_eq!(decode_cm_initiator(&encode_cm_initiator(&token)), Ok(token));
        for address in ["10.77.0.1:4791", "[fe80::1]:1"] {
            let address = address.parse().unwrap();
            assert_eq!(decode_cm_acceptor(&encode_cm_acceptor(&token, address)), Ok((token, address)));
        }
    }

    #[test]
    fn bad_offers_are_refused_with_the_reason() {
        let ours = endpoint();
        let decode = |offer: &Offer| Endpoint::decode(offer, Role::Initiator, ours.kind).map_err(|e| e.to_string());
        let changed = |change: fn(&mut Endpoint)| {
            let mut endpoint = ours;
            change(&mut endpoint);
            decode(&endpoint.encode(Role::Initiator)).unwrap_err()
        };
        assert_eq!(
            changed(|e| e.kind = GidKind::RoceV2Ipv6),
            "the peer's port is reached by RoCE v2 over IPv6, this side's by RoCE v2 over IPv4"
        );
        for queue_pair in [0, 1, 0xFF_FFFF, 1 << 24] {
            let offer = Endpoint { queue_pair, ..ours }.encode(Role::Initiator);
            assert!(decode(&offer).unwrap_err().contains("queue pair number"), "{queue_pair}");
        }
        assert!(changed(|e| e.packet_number = 1 << 24).contains("packet number"));
        assert!(changed(|e| e.gid = Gid([0; 16])).contains("GID"));
        assert!(changed(|e| e.gid = Gid([0xff; 16])).contains("GID"));
        assert!(changed(|e| e.gid = Gid([0xfe; 16])).contains("IPv4 GID"));
        let infiniband = |lid| {
            let offer = Endpoint { kind: GidKind::InfiniBand, lid, ..ours }.encode(Role::Initiator);
            Endpoint::decode(&offer, Role::Initiator, GidKind::InfiniBand)
        };
        assert!(infiniband(0).is_err() && infiniband(0xC000).is_err() && infiniband(1).is_ok());
        let good = ours.encode(Role::Initiator);
        let mut long = good.clone();
        long.0.push(0);
        assert_eq!(decode(&long).unwrap_err(), "1 bytes follow its end");
        for cut in 0..good.0.len() {
            assert!(decode(&Offer(good.0[..cut].to_vec())).is_err(), "cut to {cut}");
        }
        let token = Token::random().unwrap();
        assert_eq!(
            decode(&encode_cm_initiator(&token)).unwrap_err(),
            "the peer connects by rdma_cm, this side by queue-pair data: both need the same setting"
        );
        assert!(matches!(decode_cm_initiator(&good), Err(OfferError::OtherWay { ours: "rdma_cm", .. })));
        assert_eq!(decode(&ours.encode(Role::Acceptor)).unwrap_err(), OfferError::WrongSide.to_string());
        for nowhere in ["0.0.0.0:1", "10.0.0.1:0", "[::]:1", "224.0.0.1:5"] {
            assert!(decode_cm_acceptor(&encode_cm_acceptor(&token, nowhere.parse().unwrap())).is_err(), "{nowhere}");
        }
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_verbs_offer() {
        let token = Token([7; 16]);
        let infiniband = Endpoint { kind: GidKind::InfiniBand, gid: Gid([0; 16]), lid: 3, ..endpoint() };
        let ipv6 = Endpoint { kind: GidKind::RoceV2Ipv6, gid: Gid([0x20; 16]), ..endpoint() };
        let pairs = [endpoint(), infiniband, ipv6].map(|e| e.encode(Role::Acceptor).0);
        let at = |address: &str| encode_cm_acceptor(&token, address.parse().unwrap()).0;
        let cm = [encode_cm_initiator(&token).0, at("10.77.0.1:4791"), at("[fe80::1]:1")];
        transfer_fuzz::Target::new("verbs-offer", pairs.into_iter().chain(cm)).run(|bytes| {
            let offer = Offer(bytes.to_vec());
            let mut said = String::new();
            for (kind, role) in KINDS.into_iter().flat_map(|kind| [(kind, Role::Initiator), (kind, Role::Acceptor)]) {
                match Endpoint::decode(&offer, role, kind) {
                    Ok(endpoint) => {
                        assert_eq!(endpoint.encode(role), offer);
                        return format!("{kind}");
                    }
                    Err(e) => said = e.to_string(),
                }
            }
            if let Ok(token) = decode_cm_initiator(&offer) {
                assert_eq!(encode_cm_initiator(&token), offer);
                return "a token".into();
            }
            match decode_cm_acceptor(&offer) {
                Ok((token, address)) => {
                    assert_eq!(encode_cm_acceptor(&token, address), offer);
                    format!("a token and {}", if address.is_ipv4() { "IP" } else { "IP of sixteen bytes" })
                }
                Err(e) => format!("{said}; {e}"),
            }
        });
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused_or_decoded(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), head in 0_usize..8) {
            // With a valid beginning, so that the bytes behind it are checked.
            let good = endpoint().encode(Role::Initiator).0;
            for (to, from) in bytes.iter_mut().zip(&good[..head]) {
                *to = *from;
            }
            let offer = Offer(bytes);
            for kind in KINDS {
                if let Ok(endpoint) = Endpoint::decode(&offer, Role::Initiator, kind) {
                    prop_assert_eq!(endpoint.encode(Role::Initiator), offer.clone());
                    prop_assert!((2..1 << 24).contains(&endpoint.queue_pair) && endpoint.packet_number < 1 << 24);
                }
            }
            let _ = decode_cm_initiator(&offer);
            let _ = decode_cm_acceptor(&offer);
        }

        #[test]
        fn a_changed_byte_is_noticed_or_is_another_offer(at in 0_usize..38, value in any::<u8>()) {
            let mut offer = endpoint().encode(Role::Acceptor);
            prop_assert_eq!(offer.0.len(), 37);
            if let Some(byte) = offer.0.get_mut(at) {
                *byte = value;
            }
            if let Ok(endpoint) = Endpoint::decode(&offer, Role::Acceptor, GidKind::RoceV2Ipv4) {
                prop_assert_eq!(endpoint.encode(Role::Acceptor), offer);
            }
        }
    }
}
