//! The times of a copy, and of another program that sends the same file.

use super::copy_options::{Options, Other};
use super::{FilesError, blocking};
use crate::admin::Target;
use crate::error::Error;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use transfer_proto::v1::StatusResponse;
use transfer_terminal::cpu::{self, CpuTime};
use transfer_terminal::units::nanos;

/// Prints the CPU time of a shell's children, as POSIX has `times`, behind what rsync says at the other end.
const WITH_TIMES: &str = r#"sh -c 'rsync "$@"; status=$?; times >&2; exit $status' rsync"#;

/// The CPU time of both ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// This end: the programs that run here.
    pub(super) here: CpuTime,
    /// The other end. `None`: it is not known.
    pub(super) there: Option<CpuTime>,
}

impl Ends {
    pub(super) fn as_json(&self) -> Value {
        let one = |time: CpuTime| json!({ "user_ns": nanos(time.user), "system_ns": nanos(time.system) });
        json!({ "here": one(self.here), "there": self.there.map(one) })
    }

    pub(super) fn as_text(&self) -> String {
        let one =
            |time: CpuTime| format!("{:.2} s user, {:.2} s system", time.user.as_secs_f64(), time.system.as_secs_f64());
        let there = self.there.map_or("not known".to_owned(), one);
        format!("CPU here: {}; there: {there}", one(self.here))
    }
}

/// Measures a copy: this program and its sidecar here, the other sidecar there. Whatever else the two sidecars do
/// meanwhile counts too.
pub(super) struct Clock<'a> {
    here: &'a Target,
    there: &'a Target,
    is_one: bool,
    before: Ends,
}

impl<'a> Clock<'a> {
    /// Starts. `is_one`: both targets are the same sidecar.
    pub(super) async fn start(here: &'a Target, there: &'a Target, is_one: bool) -> Result<Clock<'a>, Error> {
        let mut clock = Clock { here, there, is_one, before: Ends::default() };
        clock.before = clock.now().await?;
        Ok(clock)
    }

    async fn now(&self) -> Result<Ends, Error> {
        let of = |status: StatusResponse| CpuTime {
            user: Duration::from_nanos(status.cpu_user_ns),
            system: Duration::from_nanos(status.cpu_system_ns),
        };
        let there = match self.is_one {
            true => None,
            false => Some(of(self.there.status().await?)),
        };
        let [own, _] = cpu::of_process_and_children();
        Ok(Ends { here: own + of(self.here.status().await?), there })
    }

    /// The times since the start.
    pub(super) async fn end(&self) -> Result<Ends, Error> {
        let now = self.now().await?;
        let there = now.there.zip(self.before.there).map(|(now, before)| now - before);
        Ok(Ends { here: now.here - self.before.here, there })
    }
}

/// Sends the file by another program. Returns the time that it took, and the CPU time of both ends.
pub(super) async fn other(options: &Options, program: Other, to: &str) -> Result<(Duration, Ends), Error> {
    let (file, to) = (options.file.clone(), to.to_owned());
    let sent = blocking(move || {
        let [_, before] = cpu::of_process_and_children();
        let began = Instant::now();
        let failed = |why: String| FilesError::Use(format!("{} {} {to} failed: {why}", name(program), file.display()));
        let output = command(program, &file, &to).output().map_err(|e| failed(e.to_string()))?;
        let took = began.elapsed();
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(failed(format!("{}: {}", output.status, said.trim())));
        }
        let [_, after] = cpu::of_process_and_children();
        Ok((took, Ends { here: after - before, there: of_times(&said) }))
    });
    Ok(sent.await?)
}

pub(super) fn name(program: Other) -> &'static str {
    match program {
        Other::Rsync => "rsync",
        Other::Scp => "scp",
    }
}

fn command(program: Other, file: &Path, to: &str) -> Command {
    let mut command = Command::new(name(program));
    match program {
        Other::Rsync => {
            // Otherwise it would send nothing if the file is there already.
            command.args(["--whole-file", "--ignore-times"]);
            if !to.starts_with("rsync://") && !to.contains("::") {
                command.arg(format!("--rsync-path={WITH_TIMES}"));
            }
        }
        Other::Scp => drop(command.arg("-q")),
    }
    command.arg("--").arg(file).arg(to).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Reads the second line that `times` prints, of a shell's children: `0m0.12s 0m1.30s`.
fn of_times(said: &str) -> Option<CpuTime> {
    let time = |word: &str| {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        let seconds = minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some(CpuTime { user: time(words.next()?)?, system: time(words.next()?)? })
    };
    said.lines().filter_map(line).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_shell_are_read() {
        let millis = Duration::from_millis;
        let said = "a word of ssh\n0m0.00s 0m0.01s\n1m0.25s 0m1.500000s\n";
        assert_eq!(of_times(said), Some(CpuTime { user: millis(60_250), system: millis(1500) }));
        assert_eq!(of_times("nothing"), None);
        assert_eq!(of_times("x0s y"), None);
    }

    #[test]
    fn the_shell_runs_the_program_with_its_arguments() {
        // The other end runs what is given as --rsync-path, with further words, in a shell.
        let line = WITH_TIMES.replacen("rsync \"$@\"", "printf %s \"$@\"", 1);
        let output = Command::new("sh").arg("-c").arg(format!("{line} --server x")).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "--serverx");
        assert!(of_times(&String::from_utf8_lossy(&output.stderr)).is_some());
    }
}
