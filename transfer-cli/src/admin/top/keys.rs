//! Keys, read by a thread of its own, because reading a terminal blocks.

use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// The interval at which the thread checks whether it should stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A request by a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typed {
    Quit,
    Redraw,
}

/// Reads keys until dropped.
pub(super) struct Keys {
    typed: mpsc::UnboundedReceiver<io::Result<Typed>>,
    stop: Arc<AtomicBool>,
}

impl Keys {
    pub(super) fn listen() -> io::Result<Keys> {
        let (tell, typed) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::Builder::new().name("keys".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let event = match poll(STOP_CHECK_INTERVAL) {
                    Ok(false) => continue,
                    Ok(true) => read().map(meaning),
                    Err(e) => Err(e),
                };
                let failed = event.is_err();
                if let Some(event) = event.transpose()
                    && (tell.send(event).is_err() || failed)
                {
                    return;
                }
            }
        })?;
        Ok(Keys { typed, stop })
    }

    /// Waits for the next key.
    pub(super) async fn next(&mut self) -> io::Result<Typed> {
        match self.typed.recv().await {
            Some(typed) => typed,
            // The thread ends only after it has sent the reason.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn meaning(event: Event) -> Option<Typed> {
    match event {
        Event::Resize(..) => Some(Typed::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Typed::Quit),
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Typed::Quit),
            _ => None,
        },
        _ => None,
    }
}
