//! The worker that end-to-end tests control, and the leash on which they keep other programs.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    transfer_tests::agent::main()
}
