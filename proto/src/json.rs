//! Fields that JSON has in another form than their messages.

use crate::v1::{Count, Setting};
use serde::{Serialize, Serializer};

/// The name of an enumeration's value, which the message has as a number.
pub(crate) fn name<E: TryFrom<i32> + Serialize, S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
    match E::try_from(*number) {
        Ok(value) => value.serialize(to),
        // A sidecar of a later version.
        Err(_) => to.collect_str(&format_args!("unknown ({number})")),
    }
}

pub(crate) fn names<E: TryFrom<i32> + Serialize, S: Serializer>(numbers: &[i32], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(numbers.iter().filter_map(|number| E::try_from(*number).ok()))
}

pub(crate) fn text<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

pub(crate) fn settings<S: Serializer>(settings: &[Setting], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(settings.iter().map(|setting| (&setting.name, &setting.value)))
}

pub(crate) fn counts<S: Serializer>(counts: &[Count], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter().map(|count| (&count.name, count.value)))
}
