//! The configuration file: TOML whose keys are the flags' names.

use super::source::{command, keys};
use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use std::any::TypeId;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys whose values are rules. They may be written as a table, in which the left side of a rule is the key.
const TABLE_KEYS: [&str; 5] = ["limits", "tenants", "peer_tenants", "reserve", "share"];

/// The longest file. No configuration is longer.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Errors of a configuration file. Each names the file, and the line and key if there are any.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("--config {}: cannot read it: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is too long.
    #[error("--config {}: it has more than {MAX_FILE_BYTES} bytes, and no configuration has", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file is not valid TOML.
    #[error("{}:{line}: it is no TOML: {why}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The error.
        why: String,
    },
    /// No flag has this key.
    #[error("{}:{line}: the key {key:?} is none that transferd knows{}", path.display(), nearest(near))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key.
        key: String,
        /// A known key with a similar name.
        near: Option<String>,
    },
    /// The file has a table that does not exist.
    #[error(
        "{}:{line}: [{name}] begins a table, and only [limits], [tenants], [peer_tenants], [reserve] and [share] are any: write its keys before any \
         heading, without one",
        path.display()
    )]
    Table {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The heading.
        name: String,
    },
    /// A value is not valid for its key.
    #[error("{}:{line}: {key} = {value}: {why}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key.
        key: String,
        /// The value, as it is written.
        value: String,
        /// The error, and the requirement.
        why: String,
    },
}

pub(super) fn nearest(near: &Option<String>) -> String {
    match near {
        Some(near) => format!("; {near:?} is one"),
        None => "; docs/configuration.md and `transferd --print-config` list them".to_owned(),
    }
}

/// A parsed file whose keys are known.
#[derive(Debug)]
pub(super) struct ConfigFile {
    path: PathBuf,
    entries: Vec<Entry>,
}

/// One key of the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    /// The value as it is written in the file.
    written: String,
    /// The value as the flags take it, or the reason why it cannot be one.
    texts: Result<Vec<String>, String>,
}

impl ConfigFile {
    pub(super) fn read(path: &Path) -> Result<ConfigFile, FileError> {
        let cannot = |source| FileError::Read { path: path.to_owned(), source };
        // A source that is not a regular file does not report its length.
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(cannot)?;
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(cannot)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(FileError::TooLong { path: path.to_owned() });
        }
        ConfigFile::parse(path, &text)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<ConfigFile, FileError> {
        let line_of = |at: usize| 1 + text.bytes().take(at).filter(|b| *b == b'\n').count();
        let table = DeTable::parse(text).map_err(|e| FileError::Toml {
            path: path.to_owned(),
            line: line_of(e.span().map_or(0, |span| span.start)),
            why: e.message().to_owned(),
        })?;
        let known = command();
        let mut entries = Vec::new();
        for (key, value) in table.get_ref() {
            let (name, line) = (key.get_ref().as_ref(), line_of(key.span().start));
            if matches!(value.get_ref(), DeValue::Table(_)) && !TABLE_KEYS.contains(&name) {
                return Err(FileError::Table { path: path.to_owned(), line, name: name.to_owned() });
            }
            if !keys(&known).any(|(known, _)| known == name) {
                let near = suggestion(name);
                return Err(FileError::UnknownKey { path: path.to_owned(), line, key: name.to_owned(), near });
            }
            let written = text.get(value.span()).unwrap_or_default().to_owned();
            entries.push(Entry { key: name.to_owned(), line, written, texts: texts(value) });
        }
        // The entries have the order of the file, so that the first error is reported.
        entries.sort_by_key(|entry| entry.line);
        Ok(ConfigFile { path: path.to_owned(), entries })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Entry {
    /// Returns the equivalent words of a command line, checked by the flags' own parser.
    pub(super) fn words(&self, path: &Path, judge: &mut Judge) -> Result<Vec<String>, FileError> {
        let wrong = |why: String| FileError::Value {
            path: path.to_owned(),
            line: self.line,
            key: self.key.clone(),
            value: self.written.clone(),
            why,
        };
        let texts = self.texts.as_ref().map_err(|why| wrong(why.clone()))?;
        let arg = keys(&judge.0).find(|(key, _)| *key == self.key).map(|(_, arg)| takes_many(arg));
        if texts.len() != 1 && arg != Some(true) {
            return Err(wrong(format!("a list of {} values, where there can be one", texts.len())));
        }
        let flag = format!("--{}", self.key.replace('_', "-"));
        let words: Vec<String> = texts.iter().map(|text| format!("{flag}={text}")).collect();
        judge
            .parse(std::iter::once("transferd").chain(words.iter().map(String::as_str)))
            .map_err(|e| wrong(in_short(&e)))?;
        Ok(words)
    }
}

/// The flags' parser, which checks one value at a time.
pub(super) struct Judge(Command);

impl Judge {
    pub(super) fn new() -> Judge {
        // The parser ignores the environment, because errors in the environment are not errors of the file.
        Judge(command().mut_args(|arg| arg.env(None::<&str>)))
    }

    /// Parses a command line, whose first word is the program's name.
    pub(super) fn parse<'a>(&mut self, words: impl IntoIterator<Item = &'a str>) -> Result<(), clap::Error> {
        self.0.try_get_matches_from_mut(words).map(|_| ())
    }
}

fn takes_many(arg: &Arg) -> bool {
    arg.get_value_delimiter().is_some() || matches!(arg.get_action(), ArgAction::Append)
}

/// Returns a parser's error without the parts that the caller adds.
pub(super) fn in_short(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue) {
        return format!("it can be {}", valid.join(", "));
    }
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Returns the known key with the most similar name, as the parser of the command line suggests it.
pub(super) fn suggestion(key: &str) -> Option<String> {
    let word = format!("--{}=x", key.replace('_', "-"));
    let error = command().try_get_matches_from(["transferd", &word]).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(flag) => Some(flag.trim_start_matches("--").replace('-', "_")),
        _ => None,
    }
}

/// Converts a value into the texts that the flags take: one, or several.
fn texts(value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    match value.get_ref() {
        DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
        DeValue::Table(rules) => rules.iter().map(|(left, list)| rule(left.get_ref(), list)).collect(),
        one => Ok(vec![text(one)?]),
    }
}

/// Converts a line of a table into the rule that the flags take.
fn rule(left: &str, list: &Spanned<DeValue<'_>>) -> Result<String, String> {
    let right: Vec<String> = match list.get_ref() {
        DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect::<Result<_, _>>()?,
        one => vec![text(one)?],
    };
    Ok(format!("{left}={}", right.join(",")))
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(yes) => Ok(yes.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        // Permissions are octal digits without a prefix, so the flags would misread 0o660.
        DeValue::Integer(number) => {
            Err(format!("a number of base {}; write it as on the command line, in quotes", number.radix()))
        }
        other => {
            Err(format!("a {}, where a text, a number, true or false, or a list of them can be", other.type_str()))
        }
    }
}

/// Writes a flag's value as TOML.
pub(super) fn to_toml(arg: &Arg, values: &[String]) -> String {
    let is = |parser: &ValueParser, of: &[TypeId]| of.iter().any(|id| parser.type_id() == *id);
    let parser = arg.get_value_parser();
    let bare =
        [TypeId::of::<bool>(), TypeId::of::<u8>(), TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>()];
    // A value such as +3 is a number for the flags, but not for the file.
    let is_bare = |value: &str| {
        let digits = value.bytes().all(|b| b.is_ascii_digit()) && (value.len() == 1 || !value.starts_with('0'));
        is(parser, &bare) && (digits || matches!(value, "true" | "false"))
    };
    let one = |value: &String| match is_bare(value) {
        true => value.clone(),
        false => toml::Value::String(value.clone()).to_string(),
    };
    match values {
        [value] if !takes_many(arg) => one(value),
        values => format!("[{}]", values.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}
