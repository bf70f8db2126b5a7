//! Settings in the environment.
//!
//! Not every variable with the name of a setting is one. An empty variable is one that is not set: that is what Compose and
//! Helm make of a value that nobody gave. And Kubernetes describes each Service in the environment of every container: one
//! named `transfer-verbs` is `TRANSFER_VERBS_PORT=tcp://10.0.0.1:7471`.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use std::ffi::{OsStr, OsString};

/// Returns whether this variable is a setting.
fn is_setting(name: &OsStr, value: &OsStr) -> bool {
    let (name, value) = (name.as_encoded_bytes(), value.as_encoded_bytes());
    let of_a_service = name.ends_with(b"_PORT") && value.windows(3).any(|part| part == b"://");
    !value.is_empty() && !of_a_service
}

/// Returns the command line without the variables that are no settings, so that the parser does not take their values.
#[must_use]
pub fn settings(command: Command) -> Command {
    let settings_of = |arg: Arg| match arg.get_env().and_then(|name| Some((name, std::env::var_os(name)?))) {
        Some((name, value)) if !is_setting(name, &value) => arg.env(None::<&str>),
        _ => arg,
    };
    command.mut_args(settings_of).mut_subcommands(settings)
}

/// Returns the variable whose value is invalid, and the value, if the error is about one and not about a word of the command
/// line. The parser's own error would name the flag.
#[must_use]
pub fn invalid_variable(command: &Command, error: &clap::Error, words: &[OsString]) -> Option<(String, OsString)> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    // `--admin <URL|PATH>`
    let flag = shown.split([' ', '=']).next()?;
    let given = |word: &OsString| word.to_str().is_some_and(|word| word.split('=').next() == Some(flag));
    if words.iter().any(given) {
        return None;
    }
    let commands = std::iter::once(command).chain(command.get_subcommands());
    let mut all = commands.flat_map(|command| command.get_arguments());
    let name = all.find(|arg| arg.get_long() == flag.strip_prefix("--"))?.get_env()?;
    Some((name.to_string_lossy().into_owned(), std::env::var_os(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_variables_and_those_of_services_are_no_settings() {
        let is = |name: &str, value: &str| is_setting(name.as_ref(), value.as_ref());
        assert!(is("TRANSFER_VERBS_PORT", "1") && is("TRANSFER_DIRECTORY", "http://10.0.0.1:7471") && is("A", " "));
        assert!(!is("TRANSFER_LISTEN", "") && !is("TRANSFER_VERBS_PORT", "tcp://10.0.0.1:7471"));
    }
}
