//! What a coordinator has of each host: a line of text.

use crate::text::printable;
use transfer_core::tensor::Name;

/// The longest record: names and addresses are short.
const MAX_BYTES: usize = 1024;

/// The longest value that is shown.
const MAX_SHOWN: usize = 80;

/// A host, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) node: Name,
    /// Where its gRPC services listen, as host:port.
    pub(crate) address: String,
    /// The number of its start.
    pub(crate) incarnation: u64,
    /// At the leader's key: the host has taken it, and does not only come next.
    pub(crate) leads: bool,
}

impl Record {
    /// Whether both are of the same start of a host.
    pub(super) fn is_of(&self, other: &Record) -> bool {
        self.node == other.node && self.incarnation == other.incarnation
    }

    pub(super) fn text(&self) -> String {
        let state = if self.leads { "leads" } else { "stands-by" };
        format!("{} {} {} {state}", self.node, self.address, self.incarnation)
    }

    /// A value, safe to show.
    pub(super) fn shown(value: &[u8]) -> String {
        printable(&String::from_utf8_lossy(&value[..value.len().min(4 * MAX_SHOWN)]), MAX_SHOWN)
    }

    /// The error is the text, safe to show.
    pub(super) fn parse(value: &[u8]) -> Result<Record, String> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= MAX_BYTES).unwrap_or_default();
        let parse = || {
            // A name may have spaces.
            let [state, incarnation, address, node] = text.rsplitn(4, ' ').collect::<Vec<_>>().try_into().ok()?;
            let leads = match state {
                "leads" => true,
                "stands-by" => false,
                _ => return None,
            };
            let (node, incarnation) = (Name::new(node).ok()?, incarnation.parse().ok()?);
            Some(Record { node, address: address.to_owned(), incarnation, leads })
        };
        parse().ok_or_else(|| Record::shown(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_as_it_was_written_and_nothing_else_is() {
        for (leads, node) in [(true, "a"), (false, "a"), (true, "node 1"), (true, " a 5 leads ")] {
            let node = Name::new(node).unwrap();
            let record = Record { node, address: "h:1".into(), incarnation: u64::MAX, leads };
            assert_eq!(Record::parse(record.text().as_bytes()), Ok(record));
        }
        for garbage in ["", "a", "a h:1 5", "a h:1 -5 leads", "a h:1 5 rules", "a h:1 5 leads ", "a/b h:1 5 leads x"] {
            assert_eq!(Record::parse(garbage.as_bytes()), Err(garbage.to_owned()), "{garbage:?}");
        }
        let shown = Record::parse(&[b'\x1b'; 1000]).unwrap_err();
        assert!(!shown.contains('\x1b') && shown.len() < 1000, "{shown}");
        assert!(Record::parse(&[0xff, 0xfe]).is_err());
        let long = format!("a {}:1 5 leads", "h".repeat(MAX_BYTES));
        assert!(Record::parse(long.as_bytes()).unwrap_err().len() < MAX_BYTES);
    }
}
