//! A Lease object, as far as the directory reads and writes it.

use crate::directory::election::coordinator::record::Record;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use transfer_core::tensor::Name;

/// The label of hosts: the name of their directory.
pub(super) const LABEL: &str = "transfer/directory";

/// The annotations.
const RECORD: &str = "transfer/record";
const TERM: &str = "transfer/term";
const NODES: &str = "transfer/nodes";
const NEWEST: &str = "transfer/newest";

/// The most bytes of names of nodes: Kubernetes takes 256 KiB of annotations.
const MAX_NODES_BYTES: usize = 250 << 10;

/// The highest number in a Lease: it has 32 bits, with a sign.
const MAX_NUMBER: u64 = i32::MAX as u64;

/// A Lease object. What else is in one is not kept when it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) name: String,
    /// Its resource version; empty: it is to be created.
    pub(super) version: String,
    /// Which object of this name it is. With it, an update of one that was deleted fails; else Kubernetes would make it again.
    uid: String,
    pub(super) labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    holder: String,
    /// It ends when nobody has written it for so long.
    pub(super) duration: Duration,
    /// How often it has had another holder.
    transitions: u64,
}

impl Lease {
    pub(super) fn new(name: String) -> Lease {
        Lease { name, ..Lease::default() }
    }

    /// As an API server has it that has stored this one.
    #[cfg(test)]
    pub(super) fn stored(&self, version: u64) -> Lease {
        let uid = if self.uid.is_empty() { format!("uid-{version}") } else { self.uid.clone() };
        Lease { version: version.to_string(), uid, ..self.clone() }
    }

    #[cfg(test)]
    pub(super) fn is_same_object(&self, other: &Lease) -> bool {
        self.uid == other.uid
    }

    /// Gives it to a host for this time; `None`: to no host.
    pub(super) fn give(&mut self, to: Option<&Record>, duration: Duration) {
        let holder = to.map_or("", |record| record.node.as_str());
        self.transitions = self.transitions.saturating_add(u64::from(self.holder != holder));
        self.holder = holder.to_owned();
        self.annotations.insert(RECORD.to_owned(), to.map(Record::text).unwrap_or_default());
        self.duration = duration;
    }

    /// The host that has it. `Err`: another program's text.
    pub(super) fn record(&self) -> Option<Result<Record, String>> {
        match self.annotations.get(RECORD).map_or("", String::as_str) {
            "" if self.holder.is_empty() => None,
            "" => Some(Err(Record::shown(format!("held by {}", self.holder).as_bytes()))),
            text => Some(Record::parse(text.as_bytes())),
        }
    }

    fn number(&self, annotation: &str) -> u64 {
        self.annotations.get(annotation).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    pub(super) fn term(&self) -> u64 {
        self.number(TERM)
    }

    pub(super) fn set_term(&mut self, term: u64) {
        self.annotations.insert(TERM.to_owned(), term.to_string());
    }

    pub(super) fn newest(&self) -> u64 {
        self.number(NEWEST)
    }

    pub(super) fn set_newest(&mut self, newest: u64) {
        self.annotations.insert(NEWEST.to_owned(), newest.to_string());
    }

    /// The nodes for which the next host waits. What is no name is left out.
    pub(super) fn nodes(&self) -> Vec<Name> {
        let names = self.annotations.get(NODES).and_then(|text| serde_json::from_str::<Vec<String>>(text).ok());
        names.unwrap_or_default().iter().filter_map(|name| Name::new(name).ok()).collect()
    }

    /// # Errors
    /// They are too many, in words.
    pub(super) fn set_nodes<'a>(&mut self, nodes: impl Iterator<Item = &'a Name>) -> Result<(), String> {
        let nodes: Vec<_> = nodes.map(Name::as_str).collect();
        let text = Value::from(nodes.as_slice()).to_string();
        if text.len() > MAX_NODES_BYTES {
            return Err(format!(
                "the names of {} nodes take {} bytes, and Lease {} has room for {MAX_NODES_BYTES}: give nodes shorter names, or use etcd: or static:",
                nodes.len(),
                text.len(),
                self.name
            ));
        }
        self.annotations.insert(NODES.to_owned(), text);
        Ok(())
    }

    /// The object, written now. The time is for people: nobody reads it, but it makes each renewal another version.
    pub(super) fn json(&self, now: SystemTime) -> Value {
        let mut metadata = Map::new();
        metadata.insert("name".to_owned(), self.name.as_str().into());
        if !self.version.is_empty() {
            metadata.insert("resourceVersion".to_owned(), self.version.as_str().into());
            metadata.insert("uid".to_owned(), self.uid.as_str().into());
        }
        metadata.insert("labels".to_owned(), json!(self.labels));
        metadata.insert("annotations".to_owned(), json!(self.annotations));
        let mut spec = Map::new();
        if !self.holder.is_empty() {
            spec.insert("holderIdentity".to_owned(), self.holder.as_str().into());
        }
        spec.insert("renewTime".to_owned(), time(now).into());
        // The first is 1 or more.
        spec.insert("leaseDurationSeconds".to_owned(), self.duration.as_secs().clamp(1, MAX_NUMBER).into());
        spec.insert("leaseTransitions".to_owned(), self.transitions.min(MAX_NUMBER).into());
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
    }

    /// `None`: it is none.
    pub(super) fn parse(value: &Value) -> Option<Lease> {
        let (metadata, spec) = (value.get("metadata")?, &value["spec"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| {
            let map = value.as_object().into_iter().flatten();
            map.map(|(key, value)| (key.clone(), text(value))).collect::<BTreeMap<_, _>>()
        };
        let (name, version) = (text(&metadata["name"]), text(&metadata["resourceVersion"]));
        let number = |value: &Value| value.as_u64().unwrap_or(0).min(MAX_NUMBER);
        (!name.is_empty() && !version.is_empty()).then(|| Lease {
            name,
            version,
            uid: text(&metadata["uid"]),
            labels: texts(&metadata["labels"]),
            annotations: texts(&metadata["annotations"]),
            holder: text(&spec["holderIdentity"]),
            duration: Duration::from_secs(number(&spec["leaseDurationSeconds"])),
            transitions: number(&spec["leaseTransitions"]),
        })
    }
}

/// The name of a host's Lease. A name of an object has small letters, digits, "-" and "."; another node's is in hexadecimal digits.
pub(super) fn of_host(directory: &str, node: &Name) -> String {
    let node = node.as_str();
    match is_object_name(node) && !node.starts_with("0x") {
        true => format!("{directory}-host-{node}"),
        false => format!("{directory}-host-0x{}", node.bytes().map(|b| format!("{b:02x}")).collect::<String>()),
    }
}

fn is_object_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.split('.').all(|part| {
        part.starts_with(is_plain) && part.ends_with(is_plain) && part.chars().all(|c| is_plain(c) || c == '-')
    })
}

/// A time as Kubernetes writes it: `2026-11-30T20:15:00.123456Z`.
fn time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// The date of a day that is so many days after the first of 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn lease_is_read_as_it_was_written_and_nothing_else_is() {
        let mut lease = Lease { version: "7".to_owned(), uid: "u".to_owned(), ..Lease::new("d".to_owned()) };
        lease.labels.insert(LABEL.to_owned(), "d".to_owned());
        assert_eq!((lease.record(), lease.nodes()), (None, vec![]));
        let record = Record { node: name("a"), address: "h:1".to_owned(), incarnation: 5, leads: true };
        lease.give(Some(&record), Duration::from_secs(2));
        lease.set_term(u64::MAX);
        lease.set_newest(9);
        lease.set_nodes([name("n 1"), name("\"n\"2\n")].iter()).unwrap();
        let json = lease.json(SystemTime::UNIX_EPOCH + Duration::from_micros(1_764_533_700_123_456));
        assert_eq!(json["spec"]["renewTime"], "2025-11-30T20:15:00.123456Z");
        assert_eq!(json["spec"]["leaseTransitions"], 1);
        let read = Lease::parse(&json).unwrap();
        assert_eq!(read, lease);
        assert_eq!((read.record(), read.term(), read.newest()), (Some(Ok(record)), u64::MAX, 9));
        assert_eq!(read.nodes(), [name("n 1"), name("\"n\"2\n")]);
        lease.give(None, Duration::from_secs(2));
        assert_eq!(lease.record(), None);
        for garbage in [json!({}), json!([1]), json!("x"), json!({"metadata": {"name": "d"}}), json!({"metadata": 5})] {
            assert_eq!(Lease::parse(&garbage), None, "{garbage}");
        }
        let huge = json!({"leaseDurationSeconds": u64::MAX, "leaseTransitions": u64::MAX});
        let mut huge = Lease::parse(&json!({"metadata": {"name": "d", "resourceVersion": "1"}, "spec": huge})).unwrap();
        assert_eq!(huge.duration, Duration::from_secs(i32::MAX as u64));
        huge.give(
            Some(&Record { node: name("b"), address: "h:1".to_owned(), incarnation: 5, leads: true }),
            huge.duration,
        );
        assert_eq!(huge.json(SystemTime::UNIX_EPOCH)["spec"]["leaseTransitions"], i32::MAX);
        let spec = json!({"holderIdentity": "\u{1b}x", "leaseDurationSeconds": -1});
        let other = json!({"metadata": {"name": "d", "resourceVersion": "1", "annotations": 7}, "spec": spec});
        let text = Lease::parse(&other).unwrap().record().unwrap().unwrap_err();
        assert!(text.contains("held by") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn names_of_objects_differ_and_are_valid() {
        let of = |node| of_host("d", &name(node));
        assert_eq!(
            [of("a-1.b"), of("A"), of("0x41"), of("a b")],
            ["d-host-a-1.b", "d-host-0x41", "d-host-0x30783431", "d-host-0x612062"]
        );
        for node in ["-a", "a-", "a..b", "a.-b", ".", "ä", "a_b"] {
            assert!(of(node).starts_with("d-host-0x"), "{node}");
        }
    }

    #[test]
    fn dates_have_leap_days() {
        let dates = [0, 58, 59, 11_016, 11_017, 19_782, 47_540].map(date);
        let right =
            [(1970, 1, 1), (1970, 2, 28), (1970, 3, 1), (2000, 2, 29), (2000, 3, 1), (2024, 2, 29), (2100, 2, 28)];
        assert_eq!(dates, right);
    }

    #[test]
    fn thousands_of_nodes_fit_and_more_are_refused_with_the_number() {
        let nodes = |count: usize| (0..count).map(|i| name(&format!("node-{i:015}"))).collect::<Vec<_>>();
        let mut lease = Lease::new("d-nodes".to_owned());
        lease.set_nodes(nodes(10_000).iter()).unwrap();
        let why = lease.set_nodes(nodes(20_000).iter()).unwrap_err();
        assert!(why.contains("20000") && why.contains("d-nodes"), "{why}");
        assert_eq!(lease.nodes().len(), 10_000);
    }
}
