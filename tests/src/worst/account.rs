//! The results of an attacker's deeds.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many texts of strange results are kept at most.
const MAX_STRANGE: usize = 20;

/// The results of one program's deeds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Account {
    /// The outcome of each deed, by the deed's name.
    pub deeds: BTreeMap<String, Outcome>,
    /// Results that their deed must not have: an error of another kind than it may have, or a success where none is
    /// allowed.
    pub strange: Vec<String>,
}

/// The results of one deed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// How often the deed was begun.
    pub times: u64,
    /// How many of its steps succeeded.
    pub done: u64,
    /// How many of its steps failed, by the kind of the error.
    pub errors: BTreeMap<String, u64>,
}

/// Records the results of one deed.
#[derive(Debug)]
pub(super) struct Notes<'a> {
    account: &'a mut Account,
    deed: &'a str,
}

impl Account {
    /// Records the start of a deed, and returns the notes for its steps.
    pub(super) fn begin<'a>(&'a mut self, deed: &'a str) -> Notes<'a> {
        let mut notes = Notes { account: self, deed };
        notes.outcome().times += 1;
        notes
    }
}

impl Notes<'_> {
    fn outcome(&mut self) -> &mut Outcome {
        self.account.deeds.entry(self.deed.to_owned()).or_default()
    }

    /// Records a step that succeeded, as it may.
    pub(super) fn done(&mut self) {
        self.outcome().done += 1;
    }

    /// Records a step that failed with an error of this kind, which is strange unless it is one of `may`.
    pub(super) fn error(&mut self, kind: &str, text: &str, may: &[&str]) {
        *self.outcome().errors.entry(kind.to_owned()).or_default() += 1;
        if !may.contains(&kind) {
            self.strange(&format!("{kind}: {text}"));
        }
    }

    /// Records a result that must not occur.
    pub(super) fn strange(&mut self, what: &str) {
        if self.account.strange.len() < MAX_STRANGE {
            self.account.strange.push(format!("{}: {what}", self.deed));
        }
    }
}
