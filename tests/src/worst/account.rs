//! What came of the deeds.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most texts of what should not have happened that are kept.
const MOST_STRANGE: usize = 20;

/// What came of the deeds of one program.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Account {
    /// By the name of the deed.
    pub deeds: BTreeMap<String, Outcome>,
    /// What does not belong to the deed that it came of: another error than those that it may have, or a success where there may be none.
    pub strange: Vec<String>,
}

/// What came of one deed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// How often it was begun.
    pub times: u64,
    /// How many of its steps succeeded.
    pub done: u64,
    /// How many ended with an error of this kind.
    pub errors: BTreeMap<String, u64>,
}

/// Notes what comes of one deed.
#[derive(Debug)]
pub(super) struct Notes<'a> {
    account: &'a mut Account,
    deed: &'a str,
}

impl Account {
    /// One deed begins.
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

    /// A step has succeeded, as it may.
    pub(super) fn done(&mut self) {
        self.outcome().done += 1;
    }

    /// A step has failed with an error of this kind, which is one of `may` or else strange.
    pub(super) fn error(&mut self, kind: &str, text: &str, may: &[&str]) {
        *self.outcome().errors.entry(kind.to_owned()).or_default() += 1;
        if !may.contains(&kind) {
            self.strange(&format!("{kind}: {text}"));
        }
    }

    /// Something that must not be.
    pub(super) fn strange(&mut self, what: &str) {
        if self.account.strange.len() < MOST_STRANGE {
            self.account.strange.push(format!("{}: {what}", self.deed));
        }
    }
}
