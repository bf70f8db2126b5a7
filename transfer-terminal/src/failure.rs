//! Error texts for people: a line with the failure and its causes, and a line with advice.

use std::error::Error;
use std::fmt::Write;
use transfer_core::text::printable;

/// Texts of libraries that only wrap a cause; they are left out.
const VAGUE: [&str; 3] = ["transport error", "client error (Connect)", "tcp connect error"];

/// An error and its causes.
pub fn causes<'a>(first: Option<&'a (dyn Error + 'static)>) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(first, |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// Formats the failure and its causes in one line, the root cause last. `words` gives the text of a cause.
#[must_use]
pub fn in_one_line(error: &dyn Error, words: impl Fn(&(dyn Error + 'static)) -> String) -> String {
    let mut parts = vec![error.to_string()];
    for cause in causes(error.source()) {
        let words = words(cause);
        // Some errors include their cause, and some causes have no text of their own.
        let is_said = parts.iter().any(|part| part.contains(&words)) || VAGUE.contains(&words.as_str());
        if !words.is_empty() && !is_said {
            parts.push(words);
        }
    }
    printable(parts.join(": "))
}

/// The last lines of a program: the failure, as [`in_one_line`] gives it, and the advice.
#[must_use]
pub fn for_people(program: &str, line: &str, advice: Option<String>) -> String {
    let mut text = format!("{program}: {line}\n");
    if let Some(advice) = advice {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", printable(advice));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot {what}")]
    struct Failed {
        what: &'static str,
        source: Box<dyn Error>,
    }

    #[test]
    fn each_cause_is_printed_once_and_the_root_cause_last() {
        let bottom = Box::new(io::Error::other("no room"));
        let vague = Box::new(Failed { what: "write", source: Box::new(io::Error::other("transport error")) });
        let said = |error: &dyn Error| in_one_line(error, ToString::to_string);
        assert_eq!(said(&Failed { what: "store", source: bottom }), "cannot store: no room");
        assert_eq!(said(&Failed { what: "store", source: vague }), "cannot store: cannot write");
        let twice = Box::new(Failed { what: "store", source: Box::new(io::Error::other("a\u{1b}b")) });
        assert_eq!(said(&Failed { what: "store", source: twice }), r"cannot store: a\u{1b}b");
    }

    #[test]
    fn advice_has_a_line_of_its_own() {
        assert_eq!(for_people("p", "cannot store", None), "p: cannot store\n");
        assert_eq!(for_people("p", "cannot store", Some("Make room.".into())), "p: cannot store\nMake room.\n");
    }
}
