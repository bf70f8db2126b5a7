//! Which calls look at the sidecar, and which change it: for whoever decides who may do what.

/// The paths of the calls that change something.
pub const CHANGING: [&str; 5] = [
    "/transfer.v1.Admin/Delete",
    "/transfer.v1.Admin/Drain",
    "/transfer.v1.Admin/Evict",
    "/transfer.v1.Admin/SetLogLevel",
    "/transfer.v1.Admin/SetPoll",
];

/// The paths of those that only look.
pub const LOOKING: [&str; 9] = [
    "/transfer.v1.Admin/Status",
    "/transfer.v1.Admin/Sessions",
    "/transfer.v1.Admin/Peers",
    "/transfer.v1.Admin/Links",
    "/transfer.v1.Admin/Tensors",
    "/transfer.v1.Admin/Segments",
    "/transfer.v1.Admin/Transfers",
    "/transfer.v1.Admin/Quarantine",
    "/transfer.v1.Admin/Events",
];

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// The descriptors' part that names services and methods, by the numbers of `google/protobuf/descriptor.proto`.
    mod descriptor {
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Set {
            #[prost(message, repeated, tag = "1")]
            pub(super) file: Vec<File>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct File {
            #[prost(string, tag = "2")]
            pub(super) package: String,
            #[prost(message, repeated, tag = "6")]
            pub(super) service: Vec<Service>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Service {
            #[prost(string, tag = "1")]
            pub(super) name: String,
            #[prost(message, repeated, tag = "2")]
            pub(super) method: Vec<Method>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Method {
            #[prost(string, tag = "1")]
            pub(super) name: String,
        }
    }

    #[test]
    fn every_call_of_the_service_is_in_one_of_the_lists() {
        let set = descriptor::Set::decode(transfer_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut paths = Vec::new();
        for file in set.file {
            for service in file.service.into_iter().filter(|s| s.name == "Admin") {
                let path = |m: descriptor::Method| format!("/{}.{}/{}", file.package, service.name, m.name);
                paths.extend(service.method.into_iter().map(path));
            }
        }
        let mut listed: Vec<_> = LOOKING.iter().chain(&CHANGING).map(|path| (*path).to_owned()).collect();
        listed.sort();
        paths.sort();
        assert_eq!(listed, paths);
    }
}
