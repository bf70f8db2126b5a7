//! The sources of a configuration. The order of precedence is the command line, the environment, the file, the
//! defaults.
//!
//! The flags are the only definition. A setting is `--pool-bytes` on the command line, `TRANSFER_POOL_BYTES` in the
//! environment and `pool_bytes` in the file, and a value has the same text in each. Settings of the file are inserted
//! before the words of the command line if neither the command line nor the environment has them. So one parser checks
//! everything.

use super::file::{ConfigFile, FileError, Judge, in_short};
use super::{Config, ConfigError, Flags};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Flags about the configuration itself. They are not in the file.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct SourceFlags {
    /// A TOML file for settings that are not on the command line or in the environment: "pool_bytes = "1GiB"" for
    /// --pool-bytes 1GiB
    #[arg(long, env = "TRANSFER_CONFIG", value_name = "PATH")]
    pub config: Option<PathBuf>,

    /// Check the configuration and the files that it names, and exit: 0 if it is valid, 2 if not
    #[arg(long)]
    pub check: bool,

    /// Print the configuration with the source of each value, as a file for --config, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `--pool-bytes`
    CommandLine,
    /// `TRANSFER_POOL_BYTES`
    Environment(String),
    /// The file of `--config`, and the line.
    File(PathBuf, usize),
    /// The default.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::CommandLine => f.write_str("the command line"),
            Origin::Environment(name) => f.write_str(name),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A setting, its value, and the source of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as in the file.
    pub key: String,
    /// The texts of the value; empty if it is not set.
    pub values: Vec<String>,
    /// The source of the value.
    pub origin: Origin,
}

/// A loaded configuration, with its sources.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The parsed flags.
    pub flags: Flags,
    /// Every key, in the order of the help.
    pub settings: Vec<Setting>,
}

/// The reason why a configuration was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The command line or the environment is invalid, in the parser's words; or the user asked for help.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// A value in the environment is invalid. The parser would name the flag instead of the variable.
    #[error("{name}={value:?}: {why}")]
    Environment {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// The error, and the requirement.
        why: String,
    },
    /// The file is invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// Values contradict each other, or are not valid.
    #[error("{source}{}", from_where(origins))]
    Config {
        /// The error.
        #[source]
        source: ConfigError,
        /// The flags in the error's text whose values come from a file or the environment.
        origins: Vec<(String, Origin)>,
    },
}

fn from_where(origins: &[(String, Origin)]) -> String {
    origins.iter().map(|(key, origin)| format!(" ({key} is from {origin})")).collect()
}

/// Returns the flags in the form for the file: a switch takes a value, so that `--huge-pages=false` can override the
/// file.
pub(super) fn command() -> Command {
    transfer_terminal::environment::settings(Flags::command()).mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue if !is_about_itself(&arg) => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_value("false")
            .default_missing_value("true"),
        _ => arg,
    })
}

fn is_about_itself(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "config" | "check" | "print_config" | "help" | "version")
}

/// Returns the keys of the file, as the parser knows them.
pub(super) fn keys(command: &Command) -> impl Iterator<Item = (String, &Arg)> {
    let known = command.get_arguments().filter(|arg| !is_about_itself(arg));
    known.filter_map(|arg| Some((arg.get_long()?.replace('-', "_"), arg)))
}

/// Loads the configuration for these arguments. The first argument is the program's name.
///
/// # Errors
/// [`LoadError`].
pub fn load(arguments: &[OsString]) -> Result<Loaded, LoadError> {
    let said = command().try_get_matches_from(arguments);
    let said = said.map_err(|error| of_environment(&error, arguments).unwrap_or(LoadError::CommandLine(error)))?;
    let file = said.get_one::<PathBuf>("config").map(|path| ConfigFile::read(path)).transpose()?;
    load_with(arguments, &said, file)
}

/// Returns the error of a value that is in the environment, and not on the command line.
fn of_environment(error: &clap::Error, arguments: &[OsString]) -> Option<LoadError> {
    let (name, value) = transfer_terminal::environment::invalid_variable(&command(), error, arguments)?;
    Some(LoadError::Environment { name, value: value.to_string_lossy().into_owned(), why: in_short(error) })
}

fn load_with(arguments: &[OsString], said: &ArgMatches, file: Option<ConfigFile>) -> Result<Loaded, LoadError> {
    let mut all: Vec<OsString> = arguments.first().cloned().into_iter().collect();
    let command_now = command();
    let mut from_file = Vec::new();
    if let Some(file) = &file {
        let mut judge = Judge::new();
        for entry in file.entries() {
            let words = entry.words(file.path(), &mut judge)?;
            let id = keys(&command_now).find(|(key, _)| *key == entry.key).map(|(_, arg)| arg.get_id().clone());
            let Some(id) = id else { continue };
            let overruled =
                matches!(said.value_source(id.as_str()), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
            if !overruled {
                all.extend(words.into_iter().map(OsString::from));
                from_file.push((entry.key.clone(), entry.line));
            }
        }
    }
    all.extend(arguments.iter().skip(1).cloned());
    let matches = command().try_get_matches_from(all)?;
    let settings = settings(&command_now, &matches, file.as_ref().map(ConfigFile::path), &from_file);
    Ok(Loaded { flags: Flags::from_arg_matches(&matches)?, settings })
}

fn settings(
    command: &Command,
    matches: &ArgMatches,
    file: Option<&Path>,
    from_file: &[(String, usize)],
) -> Vec<Setting> {
    let setting = |(key, arg): (String, &Arg)| {
        let id = arg.get_id().as_str();
        let line = from_file.iter().find(|(named, _)| *named == key).map(|(_, line)| *line);
        let origin = match (matches.value_source(id), line, file) {
            (_, Some(line), Some(path)) => Origin::File(path.to_owned(), line),
            (Some(ValueSource::CommandLine), ..) => Origin::CommandLine,
            (Some(ValueSource::EnvVariable), ..) => {
                Origin::Environment(arg.get_env().unwrap_or_default().to_string_lossy().into_owned())
            }
            _ => Origin::Default,
        };
        let raw = matches.get_raw(id).into_iter().flatten();
        let values = raw.map(|value| value.to_string_lossy().into_owned()).collect();
        Setting { key, values, origin }
    };
    keys(command).map(setting).collect()
}

impl Loaded {
    /// Returns the checked configuration.
    ///
    /// # Errors
    /// [`LoadError::Config`], with the sources of the values that the error names.
    pub fn config(&self) -> Result<Config, LoadError> {
        self.flags.clone().into_config().map_err(|source| {
            let words = source.to_string();
            let named = |setting: &&Setting| {
                let flag = format!("--{}", setting.key.replace('_', "-"));
                let is_end = |rest: &str| !rest.starts_with(|c: char| c == '-' || c.is_ascii_alphanumeric());
                words.match_indices(&flag).any(|(at, _)| is_end(&words[at + flag.len()..]))
            };
            let silent = |origin: &Origin| matches!(origin, Origin::CommandLine | Origin::Default);
            let told = self.settings.iter().filter(named).filter(|setting| !silent(&setting.origin));
            LoadError::Config { origins: told.map(|s| (s.key.clone(), s.origin.clone())).collect(), source }
        })
    }

    /// Returns the configuration as a file, with a comment on each value's source.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let command = command();
        let mut text = String::from("# What transferd runs with, and where each value is from.\n");
        for (setting, (_, arg)) in self.settings.iter().zip(keys(&command)) {
            let value = super::file::to_toml(arg, &setting.values);
            let line = match setting.values.is_empty() {
                true => format!("# {} is not set\n", setting.key),
                false => format!("{} = {value} # {}\n", setting.key, setting.origin),
            };
            text.push_str(&line);
        }
        text
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
