//! The limit of file sizes, `ulimit -f`.

use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Makes a write beyond the limit an error of that write, which names its file. By default the kernel ends the process
/// by SIGXFSZ.
///
/// It holds for the rest of the process, and not for the programs that it starts. If the system has no descriptor left
/// for it, the default stays.
pub fn exceeding_is_an_error() {
    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
    let _entered = runtime.enter();
    // The handler stays when its listener is dropped.
    drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw())));
}
