//! The gRPC contracts of **transfer**, compiled from `transfer/v1/*.proto`. The .proto files are the documentation:
//! they state the units and rules of each field.
#![forbid(unsafe_code)]

mod json;

/// Version 1 of the contracts.
#[allow(missing_docs, clippy::all, unreachable_pub, rust_2018_idioms, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("transfer.v1");
}

/// The part of etcd's API, version 3, that hosts of the directory use.
#[allow(missing_docs, clippy::all, unreachable_pub, rust_2018_idioms, reason = "generated code")]
pub mod etcd {
    tonic::include_proto!("etcdserverpb");
}

/// The compiled descriptors of all files, for gRPC reflection: a serialized `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/transfer.bin"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_set_names_every_service() {
        let text = String::from_utf8_lossy(FILE_DESCRIPTOR_SET);
        for name in ["Peering", "Directory", "Admin", "PrepareBuffers", "Attach", "Tensors"] {
            assert!(text.contains(name), "{name}");
        }
    }
}
