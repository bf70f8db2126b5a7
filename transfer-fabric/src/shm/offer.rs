//! The offers that the two sides exchange before they connect: tokens, and the socket of the initiator.

use super::SOCKET_SUFFIX;
use crate::token::{TOKEN_BYTES, Token};
use transfer_core::fabric::Offer;

const MAGIC: [u8; 4] = *b"TSHM";

/// The version of the whole protocol between two sides of this fabric.
pub(super) const VERSION: u8 = 2;

/// The longest name of a socket, in bytes: the most that a socket's address holds.
pub(super) const MAX_NAME_BYTES: usize = 107;

/// Encodes the initiator's offer: the token that the acceptor has to show, and the name of the initiator's socket in
/// the shared directory.
pub(super) fn encode_initiator(token: &Token, name: &str) -> Offer {
    let mut bytes = head(b'i', token);
    // The name was checked to be short.
    bytes.push(name.len() as u8);
    bytes.extend(name.as_bytes());
    Offer(bytes)
}

/// Encodes the acceptor's offer: the token that the initiator has to show.
pub(super) fn encode_acceptor(token: &Token) -> Offer {
    Offer(head(b'a', token))
}

pub(super) fn decode_initiator(offer: &Offer) -> Result<(Token, &str), &'static str> {
    let (token, rest) = decode(offer, b'i')?;
    let (len, name) = rest.split_first().ok_or("it is too short")?;
    if name.len() != usize::from(*len) {
        return Err("its name has another length than it says");
    }
    let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
    name.map(|name| (token, name)).ok_or("its name is none of a socket in a directory")
}

pub(super) fn decode_acceptor(offer: &Offer) -> Result<Token, &'static str> {
    let (token, rest) = decode(offer, b'a')?;
    if rest.is_empty() { Ok(token) } else { Err("it is too long") }
}

/// Returns whether this names a socket of this kind of fabric in a directory, and nothing else.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= MAX_NAME_BYTES && !name.starts_with('.') && name.ends_with(SOCKET_SUFFIX) && name.bytes().all(plain)
}

fn head(side: u8, token: &Token) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7 + TOKEN_BYTES + MAX_NAME_BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, side]);
    bytes.extend(token.0);
    bytes
}

fn decode(offer: &Offer, side: u8) -> Result<(Token, &[u8]), &'static str> {
    let (magic, rest) = offer.0.split_first_chunk::<4>().ok_or("it is too short")?;
    let ([version, whose], rest) = rest.split_first_chunk::<2>().ok_or("it is too short")?;
    let (token, rest) = rest.split_first_chunk::<TOKEN_BYTES>().ok_or("it is too short")?;
    match (*magic == MAGIC, *version == VERSION, *whose == side) {
        (false, ..) => Err("it is none of the shm fabric"),
        (_, false, _) => Err("it is of another version of the shm fabric"),
        (.., false) => Err("it is of the wrong side"),
        _ => Ok((Token(*token), rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_round_trip_and_bad_ones_are_refused() {
        let token = Token::random().unwrap();
        let offer = encode_initiator(&token, "a-1.shm");
        assert_eq!(decode_initiator(&offer), Ok((token, "a-1.shm")));
        assert_eq!(decode_acceptor(&encode_acceptor(&token)), Ok(token));
        assert_eq!(decode_acceptor(&offer), Err("it is of the wrong side"));
        for name in
            ["", ".shm", "worker.sock", "a/b.shm", "/etc.shm", "a\0b.shm", "ä.shm", &format!("{}.shm", "x".repeat(104))]
        {
            assert!(decode_initiator(&encode_initiator(&token, name)).is_err(), "{name}");
        }
        for at in 0..offer.0.len() {
            let mut other = offer.clone();
            other.0[at] ^= 0x80;
            assert_ne!(decode_initiator(&other), Ok((token, "a-1.shm")), "byte {at}");
            assert!(decode_initiator(&Offer(offer.0[..at].to_vec())).is_err(), "cut to {at}");
        }
        assert!(decode_acceptor(&Offer([encode_acceptor(&token).0, vec![0]].concat())).is_err());
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_shm_offer() {
        let token = Token([7; TOKEN_BYTES]);
        let examples = [encode_initiator(&token, "a.shm").0, encode_acceptor(&token).0];
        transfer_fuzz::Target::new("shm-offer", examples).run(|bytes| {
            let offer = Offer(bytes.to_vec());
            match (decode_initiator(&offer), decode_acceptor(&offer)) {
                (Ok((token, name)), _) => {
                    assert_eq!(encode_initiator(&token, name), offer);
                    format!("from {}", name.len())
                }
                (_, Ok(token)) => {
                    assert_eq!(encode_acceptor(&token), offer);
                    "answer".into()
                }
                (Err(a), Err(_)) => a.into(),
            }
        });
    }
}
