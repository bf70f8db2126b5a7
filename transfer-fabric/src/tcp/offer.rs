//! The offers that the two sides exchange before they connect: tokens, and the address of the acceptor.

use crate::token::{TOKEN_BYTES, Token};
use std::net::{IpAddr, SocketAddr};
use transfer_core::fabric::Offer;

const MAGIC: [u8; 4] = *b"TTCP";
const VERSION: u8 = super::frame::VERSION;

/// How a side's data links are protected. Both sides have to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encryption {
    None,
    Tls,
}

impl Encryption {
    /// Returns the letter of a role, which is in upper case if links are encrypted.
    fn letter(self, role: u8) -> u8 {
        match self {
            Encryption::None => role,
            Encryption::Tls => role.to_ascii_uppercase(),
        }
    }
}

/// Encodes the initiator's offer: the token that the acceptor has to show.
pub(super) fn encode_initiator(token: &Token, encryption: Encryption) -> Offer {
    let mut bytes = Vec::with_capacity(6 + TOKEN_BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, encryption.letter(b'i')]);
    bytes.extend(token.0);
    Offer(bytes)
}

/// Encodes the acceptor's offer: the token that the initiator has to show, and the address to connect to.
pub(super) fn encode_acceptor(token: &Token, address: SocketAddr, encryption: Encryption) -> Offer {
    let mut bytes = Vec::with_capacity(25 + TOKEN_BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, encryption.letter(b'a')]);
    bytes.extend(token.0);
    bytes.extend(address.port().to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    Offer(bytes)
}

pub(super) fn decode_initiator(offer: &Offer, encryption: Encryption) -> Result<Token, &'static str> {
    let (token, rest) = decode(offer, b'i', encryption)?;
    if rest.is_empty() { Ok(token) } else { Err("it is too long") }
}

pub(super) fn decode_acceptor(offer: &Offer, encryption: Encryption) -> Result<(Token, SocketAddr), &'static str> {
    let (token, rest) = decode(offer, b'a', encryption)?;
    let (port, ip) = rest.split_first_chunk::<2>().ok_or("it is too short")?;
    let ip: IpAddr = match ip.len() {
        4 => <[u8; 4]>::try_from(ip).map_err(|_| "its address is cut")?.into(),
        16 => <[u8; 16]>::try_from(ip).map_err(|_| "its address is cut")?.into(),
        _ => return Err("its address is neither IPv4 nor IPv6"),
    };
    Ok((token, SocketAddr::new(ip, u16::from_le_bytes(*port))))
}

fn decode(offer: &Offer, role: u8, encryption: Encryption) -> Result<(Token, &[u8]), &'static str> {
    let rest = offer.0.strip_prefix(&MAGIC).ok_or("it is none of this fabric")?;
    let (head, rest) = rest.split_first_chunk::<2>().ok_or("it is too short")?;
    if head[0] != VERSION {
        return Err("it is of another version");
    }
    let (own, other) = match encryption {
        Encryption::None => (Encryption::None, Encryption::Tls),
        Encryption::Tls => (Encryption::Tls, Encryption::None),
    };
    if head[1] == other.letter(role) {
        return Err(match encryption {
            Encryption::None => {
                "the peer encrypts its data links and this node does not: give both certificates (--tls-cert), and --data-plaintext to \
                 both or to none"
            }
            Encryption::Tls => {
                "this node encrypts its data links and the peer does not: give both certificates (--tls-cert), and --data-plaintext to \
                 both or to none"
            }
        });
    }
    if head[1] != own.letter(role) {
        return Err("it is of the wrong side");
    }
    let (token, rest) = rest.split_first_chunk::<TOKEN_BYTES>().ok_or("it is too short")?;
    Ok((Token(*token), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Encryption = Encryption::None;

    #[test]
    fn offers_round_trip() {
        let token = Token::random().unwrap();
        for encryption in [Encryption::None, Encryption::Tls] {
            assert_eq!(decode_initiator(&encode_initiator(&token, encryption), encryption), Ok(token));
        }
        use Encryption::{None, Tls};
        for (theirs, ours, words) in [(None, Tls, "this node encrypts"), (Tls, None, "the peer encrypts")] {
            assert!(decode_initiator(&encode_initiator(&token, theirs), ours).unwrap_err().starts_with(words));
            let address = "127.0.0.1:80".parse().unwrap();
            assert!(decode_acceptor(&encode_acceptor(&token, address, theirs), ours).unwrap_err().starts_with(words));
        }
        for address in ["127.0.0.1:80", "[2001:db8::1]:65535"] {
            let address = address.parse().unwrap();
            assert_eq!(decode_acceptor(&encode_acceptor(&token, address, Tls), Tls), Ok((token, address)));
        }
        assert!(decode_acceptor(&encode_initiator(&token, None), None).is_err());
        assert!(token.is(&token) && !token.is(&Token::random().unwrap()));
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_tcp_offer() {
        let token = Token([7; TOKEN_BYTES]);
        let at = |address: &str| encode_acceptor(&token, address.parse().unwrap(), PLAIN).0;
        let examples = [encode_initiator(&token, PLAIN).0, at("127.0.0.1:80"), at("[2001:db8::1]:65535")];
        transfer_fuzz::Target::new("tcp-offer", examples).run(|bytes| {
            let offer = Offer(bytes.to_vec());
            match (decode_initiator(&offer, PLAIN), decode_acceptor(&offer, PLAIN)) {
                (Ok(token), Err(_)) => {
                    assert_eq!(encode_initiator(&token, PLAIN), offer);
                    "an initiator's".into()
                }
                (Err(_), Ok((token, address))) => {
                    assert_eq!(encode_acceptor(&token, address, PLAIN), offer);
                    "an acceptor's".into()
                }
                (Err(a), Err(b)) => format!("{a}, {b}"),
                both => panic!("of both sides: {both:?}"),
            }
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_understood(mut bytes: Vec<u8>, ours: bool) {
            if ours {
                bytes.splice(0..0, *b"TTCP\x01a");
            }
            let offer = Offer(bytes);
            let _ = decode_initiator(&offer, PLAIN);
            if let Ok((token, address)) = decode_acceptor(&offer, PLAIN) {
                prop_assert_eq!(encode_acceptor(&token, address, PLAIN), offer);
            }
        }
    }
}
