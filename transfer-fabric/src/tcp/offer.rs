//! What the two sides tell each other before they connect: tokens, and where the acceptor listens.

use crate::token::{TOKEN_BYTES, Token};
use std::net::{IpAddr, SocketAddr};
use transfer_core::fabric::Offer;

const MAGIC: [u8; 4] = *b"TTCP";
const VERSION: u8 = super::frame::VERSION;

/// The initiator's offer: the token that the acceptor has to show.
pub(super) fn encode_initiator(token: &Token) -> Offer {
    let mut bytes = Vec::with_capacity(6 + TOKEN_BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, b'i']);
    bytes.extend(token.0);
    Offer(bytes)
}

/// The acceptor's offer: the token that the initiator has to show, and where.
pub(super) fn encode_acceptor(token: &Token, address: SocketAddr) -> Offer {
    let mut bytes = Vec::with_capacity(25 + TOKEN_BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, b'a']);
    bytes.extend(token.0);
    bytes.extend(address.port().to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    Offer(bytes)
}

pub(super) fn decode_initiator(offer: &Offer) -> Result<Token, &'static str> {
    let (token, rest) = decode(offer, b'i')?;
    if rest.is_empty() { Ok(token) } else { Err("it is too long") }
}

pub(super) fn decode_acceptor(offer: &Offer) -> Result<(Token, SocketAddr), &'static str> {
    let (token, rest) = decode(offer, b'a')?;
    let (port, ip) = rest.split_first_chunk::<2>().ok_or("it is too short")?;
    let ip: IpAddr = match ip.len() {
        4 => <[u8; 4]>::try_from(ip).map_err(|_| "its address is cut")?.into(),
        16 => <[u8; 16]>::try_from(ip).map_err(|_| "its address is cut")?.into(),
        _ => return Err("its address is neither IPv4 nor IPv6"),
    };
    Ok((token, SocketAddr::new(ip, u16::from_le_bytes(*port))))
}

fn decode(offer: &Offer, role: u8) -> Result<(Token, &[u8]), &'static str> {
    let rest = offer.0.strip_prefix(&MAGIC).ok_or("it is none of this fabric")?;
    let (head, rest) = rest.split_first_chunk::<2>().ok_or("it is too short")?;
    if head[0] != VERSION {
        return Err("it is of another version");
    }
    if head[1] != role {
        return Err("it is of the wrong side");
    }
    let (token, rest) = rest.split_first_chunk::<TOKEN_BYTES>().ok_or("it is too short")?;
    Ok((Token(*token), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offers_come_back() {
        let token = Token::random();
        assert_eq!(decode_initiator(&encode_initiator(&token)), Ok(token));
        for address in ["127.0.0.1:80", "[2001:db8::1]:65535"] {
            let address = address.parse().unwrap();
            assert_eq!(decode_acceptor(&encode_acceptor(&token, address)), Ok((token, address)));
        }
        assert!(decode_acceptor(&encode_initiator(&token)).is_err());
        assert!(token.is(&token) && !token.is(&Token::random()));
    }

    #[test]
    fn fuzz_tcp_offer() {
        let token = Token([7; TOKEN_BYTES]);
        let at = |address: &str| encode_acceptor(&token, address.parse().unwrap()).0;
        let examples = [encode_initiator(&token).0, at("127.0.0.1:80"), at("[2001:db8::1]:65535")];
        transfer_fuzz::Target::new("tcp-offer", examples).run(|bytes| {
            let offer = Offer(bytes.to_vec());
            match (decode_initiator(&offer), decode_acceptor(&offer)) {
                (Ok(token), Err(_)) => {
                    assert_eq!(encode_initiator(&token), offer);
                    "an initiator's".into()
                }
                (Err(_), Ok((token, address))) => {
                    assert_eq!(encode_acceptor(&token, address), offer);
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
            let _ = decode_initiator(&offer);
            if let Ok((token, address)) = decode_acceptor(&offer) {
                prop_assert_eq!(encode_acceptor(&token, address), offer);
            }
        }
    }
}
