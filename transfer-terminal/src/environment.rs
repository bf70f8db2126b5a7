//! Settings in the environment.
//!
//! Not every variable with the name of a setting is one. An empty variable is one that is not set: that is what Compose and
//! Helm make of a value that nobody gave. And Kubernetes describes each Service in the environment of every container: one
//! named `transfer-verbs` is `TRANSFER_VERBS_PORT=tcp://10.0.0.1:7471`.

use clap::{Arg, Command};
use std::ffi::OsStr;

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
