//! Compiles the .proto files; needs no protoc.

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::{Label, Type};
use std::error::Error;
use std::path::PathBuf;
use tonic_prost_build::Builder;

const FILES: [&str; 6] = [
    "transfer/v1/types.proto",
    "transfer/v1/peering.proto",
    "transfer/v1/directory.proto",
    "transfer/v1/events.proto",
    "transfer/v1/lists.proto",
    "transfer/v1/admin.proto",
];

/// The part of etcd's API that a host of the directory uses.
const ETCD: &str = "etcd/rpc.proto";

/// Lets messages be written as JSON, with the names of their fields. In another form than in the messages are: enumerations, by
/// their names; incarnations, as texts, because readers that store numbers as doubles would change them; and pairs of a name and a
/// value, as an object.
fn with_json(mut build: Builder, files: &FileDescriptorSet) -> Builder {
    build = build.type_attribute(".", "#[derive(serde::Serialize)]");
    build = build.enum_attribute(".", r#"#[serde(rename_all = "lowercase")]"#);
    build = build.enum_attribute("Event.what", "#[serde(untagged)]");
    build = build.field_attribute("Tensor.tensor", "#[serde(flatten)]");
    build = build.field_attribute("PEER_STATE_YIELDED", r#"#[serde(rename = "awaiting its call")]"#);
    for value in files.file.iter().flat_map(|file| &file.enum_type).flat_map(|of| &of.value) {
        match value.name() {
            "FABRIC_UNSPECIFIED" => build = build.field_attribute(value.name(), r#"#[serde(rename = "any")]"#),
            name if value.number() == 0 => build = build.field_attribute(name, r#"#[serde(rename = "unknown")]"#),
            // Their names begin otherwise than that of the enumeration, so the generated ones keep that.
            name => {
                if let Some(short) = name.strip_prefix("DTYPE_") {
                    let attribute = format!("#[serde(rename = {:?})]", short.to_lowercase());
                    build = build.field_attribute(name, attribute);
                }
            }
        }
    }
    for message in files.file.iter().flat_map(|file| &file.message_type) {
        for field in &message.field {
            let path = format!("{}.{}", message.name(), field.name());
            let of = field.type_name().rsplit('.').next().unwrap_or_default();
            let written = match (field.r#type(), field.label()) {
                (Type::Enum, Label::Repeated) => format!("names::<{of}, _>"),
                (Type::Enum, _) => format!("name::<{of}, _>"),
                _ if field.name() == "incarnation" => "text".to_owned(),
                _ if path == "FabricState.settings" => "settings".to_owned(),
                _ if path == "FabricState.counts" => "counts".to_owned(),
                _ => continue,
            };
            let attribute = format!(r#"#[serde(serialize_with = "crate::json::{written}")]"#);
            build = build.field_attribute(path, attribute);
        }
    }
    build
}

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES.into_iter().chain([ETCD]) {
        println!("cargo::rerun-if-changed={file}");
    }
    let etcd = protox::compile([ETCD], ["."])?;
    tonic_prost_build::configure().build_transport(false).build_server(false).compile_fds(etcd)?;
    let mut files = protox::compile(FILES, ["."])?;
    // Leaves out the generated `connect` to a URL, which would clash with the call of that name in Peering.
    let build = tonic_prost_build::configure().build_transport(false);
    with_json(build, &files).compile_fds(files.clone())?;
    // Reflection needs no comments.
    for file in &mut files.file {
        file.source_code_info = None;
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("transfer.bin"), files.encode_to_vec())?;
    Ok(())
}
