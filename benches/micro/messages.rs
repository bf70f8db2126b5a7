//! Encoding and decoding the messages of sidecars and workers.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Duration;
use transfer_benches::Runner;
use transfer_core::fabric::FabricKind;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::op::{Answer, Command, Fetch, FetchedTensor, LeaseId, OpId, Push, Reply, Report, Request};
use transfer_core::tensor::{DType, InvalidName, InvalidShape, Key, Select, TensorMeta, Version};
use transfer_core::wire::message::{Body, Message, NameRef, Role};
use transfer_core::wire::session::{read_reply, read_request, write_reply, write_request};
use transfer_core::wire::{Writer, crc32c};

#[derive(Debug)]
enum Failed {
    Name(#[allow(dead_code, reason = "printed")] InvalidName),
    Shape(#[allow(dead_code, reason = "printed")] InvalidShape),
}

fn main() -> Result<(), Failed> {
    let runner = Runner::from_arguments();
    let key = Key::new("model/layers/12/attention/w_qkv").map_err(Failed::Name)?;
    let meta = TensorMeta::of(DType::F32, &[64, 16]).map_err(Failed::Shape)?;
    let timeout = Duration::from_secs(30);

    let push = Push { version: Some(Version(7)), timeout, ..Push::new(key.clone(), meta.clone(), 4096) };
    let fetch = Fetch {
        key,
        select: Select::Exactly(Version(7)),
        timeout,
        require: None,
        trace: None,
        watches: false,
        excerpt: None,
        base: None,
    };
    let op = OpId(1);
    for (name, request) in [
        ("push", Request::Command { op, command: Command::Push(push) }),
        ("fetch", Request::Command { op, command: Command::Fetch(fetch) }),
        ("release", Request::Release { lease: LeaseId(3) }),
    ] {
        let mut writer = Writer::new();
        write_request(&mut writer, &request);
        let mut bytes = writer.into_vec();
        runner.measure(&format!("commands: read a {name}, {} B", bytes.len()), 1, || read_request(black_box(&bytes)));
        runner.measure(&format!("commands: write a {name}"), 1, || {
            let mut writer = Writer::reusing(std::mem::take(&mut bytes));
            write_request(&mut writer, black_box(&request));
            bytes = writer.into_vec();
        });
    }

    let report = Report {
        fabric: FabricKind::Local,
        bytes: 4096,
        copied: 0,
        verified: 0,
        relayed: 0,
        delta: 0,
        queued: Duration::ZERO,
        waited: Duration::ZERO,
        in_flight: Duration::ZERO,
        origin: None,
    };
    let slice = LocalSlice { segment: SegmentId(1), offset: 4096, len: 4096 };
    let fetched = Reply::Answer {
        op: OpId(2),
        answer: Answer::Fetched {
            lease: LeaseId(3),
            tensor: FetchedTensor {
                version: Version(7),
                meta: meta.clone(),
                slice,
                ranges: 0,
                is_part: false,
                publication: 0,
                report,
            },
        },
    };
    for (name, reply) in [
        ("pushed", Reply::Answer { op: OpId(1), answer: Answer::Pushed { version: Version(7), link_rate: 0, report } }),
        ("fetched", fetched),
    ] {
        let mut writer = Writer::new();
        write_reply(&mut writer, &reply);
        let mut bytes = writer.into_vec();
        runner.measure(&format!("replies: read a {name}, {} B", bytes.len()), 1, || read_reply(black_box(&bytes)));
        runner.measure(&format!("replies: write a {name}"), 1, || {
            let mut writer = Writer::reusing(std::mem::take(&mut bytes));
            write_reply(&mut writer, black_box(&reply));
            bytes = writer.into_vec();
        });
    }

    let number = NameRef { id: 1, generation: 1 };
    let request = Body::TensorRequest {
        key: number,
        select: Select::Exactly(Version(7)),
        metadata_id: 3,
        tenant: number,
        excerpt: None,
        slot: None,
        held: None,
        direct: false,
        trace: None,
    };
    let update = Body::MetaDataUpdate { version: Version(7), metadata_id: 3, meta };
    for (name, body) in [("TENSOR_REQUEST", request), ("META_DATA_UPDATE", update), ("ACK", Body::Ack)] {
        let message = Message::new(Role::Pull, 1, body);
        let bytes = message.encode();
        runner.measure(&format!("messages: encode {name}, {} B", bytes.len()), 1, || black_box(&message).encode());
        runner.measure(&format!("messages: decode {name}"), 1, || Message::decode(black_box(&bytes)));
    }
    let header = [3u8; 64];
    runner.measure("messages: crc32c of 64 B", 1, || crc32c(black_box(&header)));
    Ok(())
}
