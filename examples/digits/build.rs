//! Compiles the baseline's gRPC contract; protox is a protobuf compiler in Rust, so no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/digits.proto"], ["proto"])?;
    // Makes `bytes` fields `Bytes`, so that a received payload is a view of the message and not another copy. The
    // baseline should be as fast as possible.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
