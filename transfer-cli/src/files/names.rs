//! The names of the files of fetched tensors.

use super::error::FilesError;
use std::collections::HashSet;

/// The longest name of a file, on any usual file system, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A key without the given prefix, and without the `/` between. A `/` at the beginning of a key stays if there is no
/// prefix: `/a` and `a` are different keys, and must not share a file.
pub(super) fn below<'a>(key: &'a str, prefix: Option<&str>) -> &'a str {
    let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) else { return key };
    let rest = key.strip_prefix(prefix.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    // The key that is the prefix itself has its own name.
    rest.filter(|rest| !rest.is_empty()).unwrap_or(key)
}

/// Checks that a name stays below its directory. A publisher may choose any key, also `../../x`.
pub(super) fn safe<'a>(key: &str, name: &'a str) -> Result<&'a str, FilesError> {
    let no = |why| FilesError::UnsafeKey { key: key.to_owned(), why };
    for part in name.split('/') {
        match part {
            "" => return Err(no("it begins or ends with /, or has two in a row")),
            "." | ".." => return Err(no("it has . or .. for a name")),
            _ if part.contains('\0') => return Err(no("it has a NUL character")),
            _ if part.len() > MAX_NAME_BYTES => return Err(no("one of its names is longer than 255 bytes")),
            _ => {}
        }
    }
    Ok(name)
}

/// Checks that no name stands for two files, or for a file and a directory.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<(), FilesError> {
    let mut files = HashSet::new();
    let twice = |name: &str| FilesError::TwoKeys { name: name.to_owned() };
    for name in names.clone() {
        if !files.insert(name) {
            return Err(twice(name));
        }
    }
    for name in names {
        let directories = name.match_indices('/').map(|(at, _)| &name[..at]);
        if let Some(both) = { directories }.find(|directory| files.contains(directory)) {
            return Err(twice(both));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_below_the_prefix() {
        for (key, prefix, name) in [
            ("m/a/b", Some("m"), "a/b"),
            ("m/a/b", Some("m/"), "a/b"),
            ("m/a/b", Some(""), "m/a/b"),
            ("m/a/b", None, "m/a/b"),
            ("m", Some("m"), "m"),
            ("m//a", Some("m/"), "/a"),
            ("/a", None, "/a"),
            ("/a", Some(""), "/a"),
            ("/m/a", Some("/m"), "a"),
            ("/a", Some("/"), "a"),
            ("mx", Some("m"), "mx"),
            ("other", Some("m"), "other"),
        ] {
            assert_eq!(below(key, prefix), name, "{key} {prefix:?}");
        }
    }

    // Promise: fetched-files, seen to fail
    #[test]
    fn no_key_leads_out_of_the_directory() {
        for good in ["a", "a/b", "..a", "a/...", "-", "~"] {
            assert_eq!(safe(good, good).unwrap(), good);
        }
        let long = "x".repeat(256);
        for bad in ["/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "", "a\0b", &long] {
            assert!(matches!(safe(bad, bad), Err(FilesError::UnsafeKey { .. })), "{bad:?}");
        }
    }

    #[test]
    fn duplicate_names_are_found() {
        distinct(["a", "b/a", "b/c", "ba"].into_iter()).unwrap();
        for (names, twice) in [(["a", "b", "a"], "a"), (["a/b/c", "x", "a/b"], "a/b")] {
            let said = distinct(names.into_iter()).unwrap_err();
            assert!(matches!(&said, FilesError::TwoKeys { name } if name == twice), "{said}");
        }
    }
}
