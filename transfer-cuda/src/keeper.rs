//! The thread that keeps the memory of copies whose handle was dropped, or is awaited, until the copies have ended.
//!
//! It polls, since the driver can wait for one event at a time, and copies in several streams end in any order. It sleeps
//! while there are none.

use crate::copying::Flying;
use crate::sys;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The first pause between two polls. Each pause without news is twice as long as the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Keeps a copy until it has ended. Without the thread, which the system may refuse, the caller waits for it.
pub(crate) fn keep(flight: Arc<dyn Flying>) {
    static KEEPER: OnceLock<Option<Sender<Arc<dyn Flying>>>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("transfer-gpu".into());
        thread.spawn(move || run(&receiver)).ok().map(|_| sender)
    });
    let not_sent = match keeper {
        Some(sender) => sender.send(flight).map_err(|unsent| unsent.0).err(),
        None => Some(flight),
    };
    if let Some(flight) = not_sent {
        while !flight.is_over() {
            std::thread::sleep(LONGEST_PAUSE);
        }
    }
}

fn run(receiver: &Receiver<Arc<dyn Flying>>) {
    if let Ok(driver) = sys::driver() {
        driver.leave_captures_alone();
    }
    let (mut flights, mut pause): (Vec<Arc<dyn Flying>>, _) = (Vec::new(), FIRST_PAUSE);
    loop {
        let next = match flights.is_empty() {
            true => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => receiver.recv_timeout(pause),
        };
        match next {
            Ok(flight) => {
                flights.push(flight);
                pause = FIRST_PAUSE;
            }
            Err(RecvTimeoutError::Timeout) => pause = (2 * pause).min(LONGEST_PAUSE),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        flights.retain(|flight| !flight.is_over());
    }
}

#[cfg(test)]
mod tests {
    use super::{Flying, keep};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Sender, channel};

    /// Is over when it was asked so often, and says when it is dropped.
    struct Counted(AtomicU32, u32, Sender<u32>);

    impl Flying for Counted {
        fn is_over(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) >= self.1
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            let _ = self.2.send(self.1);
        }
    }

    #[test]
    fn a_copy_that_ends_early_does_not_wait_for_one_that_was_begun_before() {
        let (sender, receiver) = channel();
        let counted = |asked| Arc::new(Counted(AtomicU32::new(0), asked, sender.clone()));
        let late = counted(40);
        keep(late.clone());
        keep(counted(3));
        assert_eq!(receiver.recv(), Ok(3));
        drop(late);
        assert_eq!(receiver.recv(), Ok(40));
    }
}
