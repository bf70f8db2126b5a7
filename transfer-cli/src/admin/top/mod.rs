//! `transferctl top`: a screen that shows what a sidecar does.
//!
//! # Layout
//! - `sample`: a sample of the sidecar, and the change between two. `frame`: the drawing.
//! - `keys`: the keyboard. `screen`: the terminal.

mod frame;
mod keys;
mod sample;
mod screen;

use super::Target;
use crate::error::Error;
use keys::Keys;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use sample::Sample;
use screen::Screen;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use transfer_terminal::exit::Exit;

/// The options of `transferctl top`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The pause between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub every: Duration,
    /// Print one frame as text, over one such pause, and exit
    #[arg(long)]
    pub once: bool,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
}

/// The size of the frame of --once without a terminal.
const FRAME_SIZE: (u16, u16) = (120, 40);

fn pause(text: &str) -> Result<Duration, String> {
    match transfer_terminal::units::duration(text) {
        Ok(time) if time < Duration::from_millis(10) => {
            Err("at least 10ms: a sample costs the sidecar some work".to_owned())
        }
        Ok(time) => Ok(time),
        Err(e) => Err(e.to_string()),
    }
}

/// Shows the sidecar's activity, until `q`, Esc, Ctrl-C or a signal. The terminal is restored in every case.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`]; [`Error::NoTerminal`], [`Error::Terminal`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let mut admin = options.target.connect().await?;
    let before = Sample::take(&options.target, &mut admin).await?;
    if options.once {
        tokio::time::sleep(options.every).await;
        let now = Sample::take(&options.target, &mut admin).await?;
        let (width, height) = ratatui::crossterm::terminal::size().unwrap_or(FRAME_SIZE);
        let mut terminal = match Terminal::new(TestBackend::new(width.max(80), height.max(24))) {
            Ok(terminal) => terminal,
            Err(never) => match never {},
        };
        match terminal.draw(|frame| frame::draw(frame, &before, &now, None)) {
            Ok(_) => {}
            Err(never) => match never {},
        }
        transfer_terminal::out!("{}", text_of(terminal.backend().buffer()));
        return Ok(());
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let mut screen = Screen::take().map_err(|source| Error::Terminal { source })?;
    let ended = live(options, &mut admin, before, &mut screen).await;
    let restored = screen.give_back().map_err(|source| Error::Terminal { source });
    ended.and(restored)
}

async fn live(
    options: &Options,
    admin: &mut transfer_proto::v1::admin_client::AdminClient<tonic::transport::Channel>,
    mut before: Sample,
    screen: &mut Screen,
) -> Result<(), Error> {
    let failed = |source| Error::Terminal { source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    let mut keys = Keys::listen().map_err(failed)?;
    let mut now = before.clone();
    // The reason why there was no answer to the last request.
    let mut lost: Option<String> = None;
    let mut next_look = Instant::now() + options.every;
    loop {
        screen.draw(|frame| frame::draw(frame, &before, &now, lost.as_deref())).map_err(failed)?;
        tokio::select! {
            key = keys.next() => match key.map_err(failed)? {
                keys::Typed::Quit => return Ok(()),
                // The size has changed: draw again.
                keys::Typed::Redraw => continue,
            },
            _ = terminate.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            () = tokio::time::sleep_until(next_look.into()) => {}
        }
        let taken = tokio::select! {
            taken = Sample::take(&options.target, admin) => taken,
            // Keys are handled meanwhile, because a stopped sidecar does not answer for a long time.
            key = keys.next() => match key.map_err(failed)? {
                keys::Typed::Quit => return Ok(()),
                keys::Typed::Redraw => continue,
            },
        };
        next_look = Instant::now() + options.every;
        match taken {
            Ok(sample) => {
                before = std::mem::replace(&mut now, sample);
                lost = None;
            }
            // The channel reconnects by itself.
            Err(error) if matches!(error.exit(), Exit::Unreachable | Exit::TimedOut) => {
                lost = Some(error.in_one_line())
            }
            Err(error) => return Err(error),
        }
    }
}

/// A frame as text, without spaces at the ends of its lines.
fn text_of(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    let text: String = lines.collect();
    format!("{}\n", text.trim_end())
}
