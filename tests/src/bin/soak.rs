//! Runs the soak test: see `transfer_tests::soak`.
#![forbid(unsafe_code)]

use clap::Parser;

fn main() {
    transfer_tests::soak::run(&transfer_tests::soak::Options::parse());
}
