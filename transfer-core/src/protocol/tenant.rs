//! Tenants of workers, and the tenants for which a peer may speak.
//!
//! A worker's tenant follows from what the kernel reports of its process: it is the name that the configuration gives
//! to such workers, or else the user id. On the wire a tenant is a text, because each node numbers its names for
//! itself: the user id in digits, or the name. No name consists of digits alone, so a name and a user id cannot be
//! confused.

use crate::op::{Failure, FailureCode};
use crate::tensor::{Key, Name};
use std::sync::Arc;

/// The tenant of a worker. Workers of one tenant may read each other's tensors; workers of other tenants may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// The user id of workers to which the configuration gives no name.
    User(u32),
    /// A name of [`Tenants`], by its number there.
    Named(u16),
}

impl Tenant {
    /// Returns the user id, if the tenant is one.
    #[must_use]
    pub fn user_id(self) -> Option<u32> {
        match self {
            Tenant::User(id) => Some(id),
            Tenant::Named(_) => None,
        }
    }
}

/// The names of tenants, and the rules for prefixes of keys. Fixed at the node's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenants {
    /// The names, without duplicates. No name consists of digits alone.
    names: Vec<Name>,
    /// Prefixes of keys. Only the tenants beside a prefix may own keys that begin with it. The longest matching prefix
    /// decides.
    reserved: Vec<(Box<str>, Vec<Tenant>)>,
    /// Prefixes of keys. The tenants beside a prefix may read tensors whose keys begin with it, whichever tenant owns
    /// them.
    shared: Vec<(Box<str>, Vec<Tenant>)>,
}

/// A text that cannot be the name of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a tenant's name is 1 to 64 letters, digits or any of -_. and not digits alone, which are a user id; {0:?} is none"
)]
pub struct InvalidTenant(pub String);

impl Tenants {
    /// The length of the longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 64;

    /// Returns the tenant of this name. A new name gets the next number.
    ///
    /// # Errors
    /// [`InvalidTenant`] if the text cannot be a name, or is the 65,537th name.
    pub fn enter(&mut self, text: &str) -> Result<Tenant, InvalidTenant> {
        let invalid = || InvalidTenant(text.to_owned());
        if let Some(known) = self.named(text) {
            return Ok(known);
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let right = text.len() <= Tenants::MAX_NAME_BYTES && text.chars().all(is_part);
        if !right || text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid());
        }
        let number = u16::try_from(self.names.len()).map_err(|_| invalid())?;
        self.names.push(Name::new(text).map_err(|_| invalid())?);
        Ok(Tenant::Named(number))
    }

    /// Lets only these tenants own keys that begin with `prefix`, and counters and barriers whose names begin with it.
    pub fn reserve(&mut self, prefix: &str, for_whom: Vec<Tenant>) {
        self.reserved.push((prefix.into(), for_whom));
    }

    /// Lets these tenants, too, read tensors whose keys begin with `prefix`.
    pub fn share(&mut self, prefix: &str, with: Vec<Tenant>) {
        self.shared.push((prefix.into(), with));
    }

    /// Whether a rule lets a tenant read what other tenants publish under this key.
    pub(super) fn shares(&self, reader: Tenant, key: &Key) -> bool {
        let fits =
            |(prefix, with): &(Box<str>, Vec<Tenant>)| key.as_str().starts_with(&**prefix) && with.contains(&reader);
        self.shared.iter().any(fits)
    }

    fn named(&self, text: &str) -> Option<Tenant> {
        let place = self.names.iter().position(|name| name.as_str() == text)?;
        u16::try_from(place).ok().map(Tenant::Named)
    }

    /// Returns the tenant of this text: a user id in digits, or a known name.
    #[must_use]
    pub fn called(&self, text: &str) -> Option<Tenant> {
        match text.parse::<u32>() {
            // Each user id has one text, without a sign and without leading zeros.
            Ok(id) if text == "0" || !text.starts_with(['+', '0']) => Some(Tenant::User(id)),
            _ => self.named(text),
        }
    }

    /// Returns the name of a tenant, for people and for the wire.
    #[must_use]
    pub fn name(&self, tenant: Tenant) -> Name {
        match tenant {
            Tenant::User(id) => Name::of_number(id),
            Tenant::Named(n) => {
                // Every number that this node has given out has a name.
                self.names.get(usize::from(n)).cloned().unwrap_or_else(|| Name::of_number(u32::MAX))
            }
        }
    }

    /// Returns "user id 7" or "tenant x".
    #[must_use]
    pub fn in_words(&self, tenant: Tenant) -> String {
        match tenant {
            Tenant::User(id) => format!("user id {id}"),
            Tenant::Named(_) => format!("tenant {}", self.name(tenant)),
        }
    }

    /// Returns the tenants that alone may own a key of this text, by the longest reserved prefix. `None` if no prefix
    /// matches.
    fn holders(&self, text: &str) -> Option<&[Tenant]> {
        let longest = self.reserved.iter().filter(|(prefix, _)| text.starts_with(&**prefix));
        longest.max_by_key(|(prefix, _)| prefix.len()).map(|(_, who)| &who[..])
    }

    /// Checks whether a tenant may own a key, a counter or a barrier. The error names the tenants that may.
    ///
    /// # Errors
    /// [`FailureCode::PermissionDenied`] if the name begins with a prefix that is reserved for other tenants.
    pub fn may_own(&self, tenant: Tenant, key: &Key) -> Result<(), Failure> {
        let (what, text) = match key.reserved_for() {
            Some((kind, text)) => (kind.noun(), text),
            None => ("key", key.as_str()),
        };
        match self.holders(text) {
            Some(who) if !who.contains(&tenant) => {
                let who: Vec<_> = who.iter().map(|t| self.name(*t).to_string()).collect();
                let text = format!(
                    "{what} {text:?} begins with a prefix that --reserve keeps for {}; tenant {} may not own it",
                    if who.is_empty() { "nobody".to_owned() } else { who.join(", ") },
                    self.name(tenant)
                );
                Err(Failure::new(FailureCode::PermissionDenied, text))
            }
            _ => Ok(()),
        }
    }

    /// Checks whether a peer may speak for this tenant at the node `node`. The error gives the reason.
    pub(super) fn vouched(
        &self,
        node: &Name,
        (peer, vouches): (&Name, &Vouches),
        tenant: Tenant,
    ) -> Result<(), Failure> {
        if vouches.includes(tenant) {
            return Ok(());
        }
        let (text, why) = (self.name(tenant), vouches.why_not());
        Err(denied(format!("node {peer:?} may not speak for tenant {text} at node {node:?}: {why}")))
    }

    /// Returns the failure for something that belongs to another tenant. It names the owner's tenant and tells nothing
    /// else about it.
    pub(super) fn of_another(&self, what: &str, owner: Tenant, asks: Tenant) -> Failure {
        denied(format!(
            "{what} belongs to {}, and this worker to {}: workers of another tenant may not have it",
            self.in_words(owner),
            self.in_words(asks)
        ))
    }
}

/// The tenants for which a peer may speak: it may bring their requests, and may be given their tensors to hold or be
/// asked for them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Vouches {
    /// All tenants, as the peer's certificate or the operator says.
    #[default]
    ForAll,
    /// These tenants. The text says why no others are included, for people.
    For(Arc<[Tenant]>, Arc<str>),
}

impl Vouches {
    /// Returns a value that includes no tenant, with the reason.
    #[must_use]
    pub fn for_nobody(why: &str) -> Vouches {
        Vouches::For(Arc::from([]), why.into())
    }

    /// Whether the peer may speak for no tenant at all.
    #[must_use]
    pub fn is_for_nobody(&self) -> bool {
        matches!(self, Vouches::For(who, _) if who.is_empty())
    }

    /// Whether the peer may speak for this tenant.
    #[must_use]
    pub fn includes(&self, tenant: Tenant) -> bool {
        match self {
            Vouches::ForAll => true,
            Vouches::For(who, _) => who.contains(&tenant),
        }
    }

    /// Whether this value includes every tenant that the other one includes.
    #[must_use]
    pub fn covers(&self, other: &Vouches) -> bool {
        match (self, other) {
            (Vouches::ForAll, _) => true,
            (Vouches::For(..), Vouches::ForAll) => false,
            (Vouches::For(..), Vouches::For(who, _)) => who.iter().all(|tenant| self.includes(*tenant)),
        }
    }

    /// Returns the reason why the peer may not speak for another tenant.
    #[must_use]
    pub fn why_not(&self) -> &str {
        match self {
            Vouches::ForAll => "",
            Vouches::For(_, why) => why,
        }
    }
}

pub(super) fn denied(text: String) -> Failure {
    Failure::new(FailureCode::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_one_text_and_each_text_one_tenant() {
        let mut tenants = Tenants::default();
        let train = tenants.enter("train").unwrap();
        assert_eq!(tenants.enter("train"), Ok(train));
        let eval = tenants.enter("eval-2.x_y").unwrap();
        for tenant in [train, eval, Tenant::User(0), Tenant::User(u32::MAX)] {
            assert_eq!(tenants.called(tenants.name(tenant).as_str()), Some(tenant));
        }
        for none in ["", "01", "00", "+1", "+0", "4294967296", "Train", "trai"] {
            assert_eq!(tenants.called(none), None, "{none:?}");
        }
        for bad in ["", "12", "a b", "a/b", "\u{e9}", &"x".repeat(65)] {
            assert_eq!(tenants.enter(bad), Err(InvalidTenant(bad.to_owned())));
        }
    }

    #[test]
    fn longest_prefix_decides_which_tenants_may_own_a_name() {
        let mut tenants = Tenants::default();
        let (a, b) = (Tenant::User(1), tenants.enter("b").unwrap());
        tenants.reserve("prod/", vec![a]);
        tenants.reserve("prod/shared/", vec![a, b]);
        let key = |text: &str| Key::new(text).unwrap();
        assert!(tenants.may_own(b, &key("prod")).is_ok());
        assert!(tenants.may_own(b, &key("prod/shared/x")).is_ok());
        assert!(tenants.may_own(a, &key("prod/x")).is_ok());
        let why = tenants.may_own(b, &key("prod/x")).unwrap_err();
        assert_eq!(why.code, FailureCode::PermissionDenied);
        assert!(
            why.text.contains("\"prod/x\"") && why.text.contains("for 1;") && why.text.contains("tenant b"),
            "{}",
            why.text
        );
        let name = Name::new("prod/x").unwrap();
        for of in [Key::of_counter(&name).unwrap(), Key::of_barrier(&name).unwrap()] {
            assert!(tenants.may_own(b, &of).is_err() && tenants.may_own(a, &of).is_ok());
        }
    }
}
