//! Nothing is built of this package. A build of some packages has the features that these need, and a build of the workspace those of all: every crate in
//! which they differ is built twice, and everything above it. Where this package is built together with some others, the features are
//! those of the workspace (`scripts/check-change.sh`). Its manifest names what brings all of them along. `scripts/check-dependencies.py` fails where it does not,
//! and says what is missing.

fn main() {}
