//! Runs the attackers: see `transfer_tests::worst`.
#![forbid(unsafe_code)]

use clap::Parser;

fn main() {
    transfer_tests::worst::run(&transfer_tests::worst::Options::parse());
}
