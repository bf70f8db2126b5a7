//! Tests that compare the printed lists with their messages.

use super::*;
use prost::Message;
use prost_types::FileDescriptorSet;
use std::collections::BTreeSet;
use transfer_proto::v1;

/// The fields of a message of `lists.proto`.
fn fields_of(message: &str) -> BTreeSet<String> {
    let files = FileDescriptorSet::decode(transfer_proto::FILE_DESCRIPTOR_SET).expect("it can be decoded");
    let message = files.file.iter().flat_map(|file| &file.message_type).find(|m| m.name() == message);
    message.expect("it is declared").field.iter().map(|field| field.name().to_owned()).collect()
}

/// The keys of an entry's object.
fn keys_of(entry: impl Show) -> BTreeSet<String> {
    let Value::Object(object) = entry.json() else { panic!("an entry is an object") };
    object.keys().cloned().collect()
}

#[test]
fn json_has_every_field_of_a_message() {
    let listings = [
        ("Session", keys_of(v1::Session::default())),
        ("Peer", keys_of(v1::Peer::default())),
        ("Link", keys_of(v1::Link::default())),
        ("Tensor", keys_of(v1::Tensor { tensor: Some(v1::TensorDescriptor::default()), ..Default::default() })),
        ("Segment", keys_of(v1::Segment::default())),
        ("Transfer", keys_of(v1::Transfer::default())),
        ("Exchange", keys_of(v1::Exchange::default())),
        ("Quarantined", keys_of(v1::Quarantined::default())),
    ];
    for (message, keys) in listings {
        let mut fields = fields_of(message);
        if fields.remove("tensor") {
            // The fields of its message are spread out, except the length, which the list has as a field of its own.
            fields.extend(["dtype", "shape"].map(str::to_owned));
        }
        if fields.remove("published_at_unix_ns") {
            // A text for people and for tools, so it has no unit.
            fields.insert("published_at".to_owned());
        }
        assert_eq!(keys, fields, "{message}: its fields in lists.proto, and the keys of --json");
    }
}
