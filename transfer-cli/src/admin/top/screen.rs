//! The terminal while `top` has it.
//!
//! ratatui's own set-up prints an error when the terminal cannot be restored, and panics when that cannot be printed either,
//! because the terminal was closed.

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::{Frame, Terminal};
use std::io::{self, Stdout, stdout};
use std::mem::ManuallyDrop;

/// A terminal in raw mode, with a screen of its own. It is restored on drop, and if the program panics.
pub(super) struct Screen {
    /// Never dropped: its drop prints and panics as described above. [`restore`] does what it would do.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl Screen {
    /// Takes the terminal of standard output.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn take() -> io::Result<Screen> {
        enable_raw_mode()?;
        // From here on the terminal is restored.
        let terminal = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .inspect_err(|_| {
                let _ = restore();
            })?;
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // First, so that the words of the panic stay on the screen.
            let _ = restore();
            print(panic);
        }));
        Ok(Screen { terminal: ManuallyDrop::new(terminal) })
    }

    /// Draws a frame.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(frame).map(drop)
    }

    /// Restores the terminal.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn give_back(self) -> io::Result<()> {
        restore()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is closed needs nothing.
        let _ = restore();
    }
}

fn restore() -> io::Result<()> {
    let modes = disable_raw_mode();
    execute!(stdout(), LeaveAlternateScreen, Show).and(modes)
}
