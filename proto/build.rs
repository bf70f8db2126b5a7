//! Compiles the .proto files; needs no protoc.

use prost::Message;
use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 6] = [
    "transfer/v1/types.proto",
    "transfer/v1/peering.proto",
    "transfer/v1/directory.proto",
    "transfer/v1/events.proto",
    "transfer/v1/lists.proto",
    "transfer/v1/admin.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut files = protox::compile(FILES, ["."])?;
    // Leaves out the generated `connect` to a URL, which would clash with the call of that name in Peering.
    tonic_prost_build::configure().build_transport(false).compile_fds(files.clone())?;
    // Reflection needs no comments.
    for file in &mut files.file {
        file.source_code_info = None;
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("transfer.bin"), files.encode_to_vec())?;
    Ok(())
}
