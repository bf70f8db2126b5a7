//! Any bytes on the socket of a link. Memory that was not granted does not change, and the link ends.

use super::super::frame::{HEADER_BYTES, Header, Kind};
use super::super::offer;
use super::*;
use crate::token::Token;
use std::io::Write;
use std::net::TcpStream;
use transfer_core::wire::crc32c;

const SEGMENT: SegmentId = SegmentId(1);
const LEN: u64 = 4096;
const GRANTED: LocalSlice = LocalSlice { segment: SEGMENT, offset: 128, len: 64 };

fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    [&header.encode()[..], body].concat()
}

/// Calls `change` for each header of a stream of frames.
fn each_header(bytes: &mut [u8], mut change: impl FnMut(&mut [u8; HEADER_BYTES])) {
    let mut at = 0;
    while let Some(header) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<HEADER_BYTES>()) {
        change(header);
        let len = u64::from_le_bytes(header[24..32].try_into().unwrap());
        at = at.saturating_add(HEADER_BYTES).saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
    }
}

fn with_sum(header: &mut [u8; HEADER_BYTES]) {
    let sum = crc32c(&header[..44]);
    header[44..].copy_from_slice(&sum.to_le_bytes());
}

/// The stream behind a valid Hello. A Write with key 0 goes to the granted range, because no example can know its key.
// Promise: writes-of-peers, seen to fail
#[test]
fn fuzz_tcp_stream() {
    let write = |address, len| {
        let remote = RemoteSlice::new(address, len, RemoteKey(0));
        Header { remote, immediate: Some(5), ..Header::new(Kind::Write, 0) }
    };
    let ack = Header { placed: 1, ..Header::new(Kind::Ack, 0) };
    let examples = [
        [frame(write(0, 64), &[7; 64]), frame(Header::new(Kind::Send, 3), b"end")].concat(),
        [frame(write(8, 16), &[7; 16]), frame(write(0, 0), &[]), frame(Header::new(Kind::Ack, 0), &[])].concat(),
        [frame(Header::new(Kind::Send, 0), &[]), frame(ack, &[]), frame(Header::new(Kind::Bye, 2), b"so")].concat(),
        frame(Header::new(Kind::Refuse, 4), b"full"),
        frame(Header::new(Kind::Hello, 16), &[0; 16]),
    ];
    let mut fabric = TcpFabric::new(local()).unwrap();
    let memory = Arc::new(segment(LEN));
    fabric.register(SEGMENT, memory.clone()).unwrap();
    let fabric = std::cell::RefCell::new((fabric, 0));
    let repair = |bytes: &mut Vec<u8>| each_header(bytes, with_sum);
    transfer_fuzz::Target::new("tcp-stream", examples).repair(repair).rounds(2_000).bound(1 << 20).run(|bytes| {
        let (fabric, links) = &mut *fabric.borrow_mut();
        *links += 1;
        let link = LinkId(*links);
        let answer =
            fabric.accept(link, &offer::encode_initiator(&Token::random().unwrap(), offer::Encryption::None)).unwrap();
        let (token, address) = offer::decode_acceptor(&answer, offer::Encryption::None).unwrap();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&frame(Header::new(Kind::Hello, 16), token.bytes())).unwrap();
        until(fabric, |event| matches!(event, FabricEvent::Connected { .. }).then_some(()));
        fabric.grant(link, GRANTED, GrantAccess::Write, 0).unwrap();
        let granted = until(fabric, |event| match event {
            FabricEvent::Granted { remote, .. } => Some(remote),
            _ => None,
        });
        let mut stream = bytes.to_vec();
        each_header(&mut stream, |header| {
            if let Ok(mut found) = Header::decode(header)
                && (found.kind, found.remote.key().0) == (Kind::Write, 0)
            {
                let address = granted.address.wrapping_add(found.remote.address);
                found.remote = RemoteSlice::new(address, found.remote.len, granted.key());
                *header = found.encode();
            }
        });
        // The fabric may have ended the link already.
        let _ = peer.write_all(&stream);
        drop(peer);
        let (mut events, mut end) = (0, None);
        while end.is_none() || !fabric.links.is_empty() {
            fabric.poll(&mut |event| match event {
                FabricEvent::LinkDown { reason, .. } => end = Some(reason),
                FabricEvent::Immediate { .. } | FabricEvent::Message { .. } => events += 1,
                other => panic!("{other:?}"),
            });
        }
        assert!(events <= 2 * stream.len() / HEADER_BYTES, "{events} events of {} bytes", stream.len());
        let mut seen = vec![0; LEN as usize];
        memory.mapping().copy_out(0, &mut seen).unwrap();
        let granted = GRANTED.offset as usize..(GRANTED.offset + GRANTED.len) as usize;
        let outside = seen[..granted.start].iter().chain(&seen[granted.end..]);
        assert!(outside.into_iter().all(|byte| *byte == 0), "bytes outside of what was granted have changed");
        memory.mapping().copy_in(GRANTED.offset, &[0; GRANTED.len as usize]).unwrap();
        end.unwrap().to_string()
    });
}
