//! The settings of tenants: names for user and group ids, the tenants for which nodes may speak, and rules about keys.

use super::{ConfigError, NamePattern};
use clap::Args;
use hashbrown::HashMap;
use std::str::FromStr;
use transfer_core::protocol::{Tenant, Tenants};

/// Tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Tenants")]
pub struct TenantsConfig {
    /// Names for user ids, and with @ for group ids, so that nodes with different ids mean the same tenant:
    /// train=1001,1002,@3000. A worker's tenant is the name of its user id, else that of its effective group id, else
    /// the user id. In the file a table named tenants
    #[arg(long, env = "TRANSFER_TENANTS", value_name = "NAME=ID,...;...", value_delimiter = ';')]
    pub tenants: Vec<TenantIds>,

    /// The tenants for which a node may speak, by the node's name: node-*=train,1001, or * for all. A node without a
    /// rule speaks for none. Default: each node speaks for all. In the file a table named peer_tenants
    #[arg(long, env = "TRANSFER_PEER_TENANTS", value_name = "NODE=TENANT,...;...", value_delimiter = ';')]
    pub peer_tenants: Vec<PeerTenants>,

    /// Only these tenants may own keys, counters and barriers with this prefix: prod/=train. The longest prefix counts.
    /// In the file a table named reserve
    #[arg(long, env = "TRANSFER_RESERVE", value_name = "PREFIX=TENANT,...;...", value_delimiter = ';')]
    pub reserve: Vec<PrefixRule>,

    /// These tenants may fetch keys with this prefix, whoever owns them: models/=eval. They get copies. In the file a
    /// table named share
    #[arg(long, env = "TRANSFER_SHARE", value_name = "PREFIX=TENANT,...;...", value_delimiter = ';')]
    pub share: Vec<PrefixRule>,

    /// The names of certificates that may view and administer one tenant only: list and delete its keys, evict in its
    /// pool: ops-train=train. They have no access to the sidecar itself, and no further rights unless --readers or
    /// --admins name them
    #[arg(long, env = "TRANSFER_TENANT_ADMINS", value_name = "NAME=TENANT;...", value_delimiter = ';')]
    pub tenant_admins: Vec<TenantAdmin>,
}

/// Certificates that administer one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantAdmin {
    names: NamePattern,
    tenant: String,
}

/// A tenant's name, and its ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantIds {
    name: String,
    users: Vec<u32>,
    groups: Vec<u32>,
}

/// Nodes, and the tenants for which they may speak. `None`: all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerTenants {
    nodes: NamePattern,
    tenants: Option<Vec<String>>,
}

/// A prefix of keys, and the tenants that the rule allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixRule {
    prefix: String,
    tenants: Vec<String>,
}

/// The text is not a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotARule(&'static str);

/// Splits a rule into its two sides.
fn sides<'a>(text: &'a str, right: &'static str) -> Result<(&'a str, Vec<&'a str>), NotARule> {
    let (left, list) = text.rsplit_once('=').ok_or(NotARule(right))?;
    let list: Vec<_> = list.split(',').collect();
    if left.is_empty() || list.iter().any(|part| part.is_empty()) { Err(NotARule(right)) } else { Ok((left, list)) }
}

impl FromStr for TenantIds {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<TenantIds, NotARule> {
        const RIGHT: &str = "a tenant is NAME=ID,... with user ids, and group ids behind @, like train=1001,1002,@3000";
        let (name, ids) = sides(text, RIGHT)?;
        let mut made = TenantIds { name: name.to_owned(), users: Vec::new(), groups: Vec::new() };
        for id in ids {
            let (list, digits) = match id.strip_prefix('@') {
                Some(digits) => (&mut made.groups, digits),
                None => (&mut made.users, id),
            };
            list.push(digits.parse().map_err(|_| NotARule(RIGHT))?);
        }
        Ok(made)
    }
}

impl FromStr for PeerTenants {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<PeerTenants, NotARule> {
        const RIGHT: &str = "a rule is NODE=TENANT,... like node-*=train,1001, or NODE=* for all tenants";
        let (nodes, list) = sides(text, RIGHT)?;
        let nodes = nodes.parse().map_err(|_| NotARule(RIGHT))?;
        let tenants = (list != ["*"]).then(|| list.into_iter().map(str::to_owned).collect());
        Ok(PeerTenants { nodes, tenants })
    }
}

impl FromStr for TenantAdmin {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<TenantAdmin, NotARule> {
        const RIGHT: &str = "a rule is NAME=TENANT, like ops-train=train";
        let (names, list) = sides(text, RIGHT)?;
        let names = names.parse().map_err(|_| NotARule(RIGHT))?;
        match list[..] {
            [tenant] => Ok(TenantAdmin { names, tenant: tenant.to_owned() }),
            _ => Err(NotARule(RIGHT)),
        }
    }
}

impl FromStr for PrefixRule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<PrefixRule, NotARule> {
        let (prefix, list) = sides(text, "a rule is PREFIX=TENANT,... like prod/=train")?;
        Ok(PrefixRule { prefix: prefix.to_owned(), tenants: list.into_iter().map(str::to_owned).collect() })
    }
}

/// The parsed rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tenancy {
    tenants: Tenants,
    users: HashMap<u32, Tenant>,
    groups: HashMap<u32, Tenant>,
    /// The tenants for which each node may speak. Empty: every node may speak for all tenants.
    nodes: Vec<(NamePattern, Option<Vec<Tenant>>)>,
    admins: Vec<(NamePattern, Tenant)>,
}

impl TenantsConfig {
    /// Parses the rules.
    ///
    /// # Errors
    /// [`ConfigError::Tenants`] for the first invalid rule.
    pub(crate) fn tenancy(&self) -> Result<Tenancy, ConfigError> {
        let mut made = Tenancy::default();
        for TenantIds { name, users, groups } in &self.tenants {
            let wrong = |why: String| ConfigError::Tenants { flag: "--tenants", rule: name.clone(), why };
            let tenant = made.tenants.enter(name).map_err(|e| wrong(e.to_string()))?;
            for (what, ids, known) in [("user", users, &mut made.users), ("group", groups, &mut made.groups)] {
                for id in ids {
                    if let Some(other) = known.insert(*id, tenant).filter(|other| *other != tenant) {
                        let other = made.tenants.name(other);
                        return Err(wrong(format!("{what} id {id} is {other}'s already; an id has one tenant")));
                    }
                }
            }
        }
        for PeerTenants { nodes, tenants } in &self.peer_tenants {
            let listed = match tenants {
                None => None,
                Some(list) => Some(made.all(list, "--peer-tenants", &nodes.to_string())?),
            };
            made.nodes.push((nodes.clone(), listed));
        }
        for PrefixRule { prefix, tenants } in &self.reserve {
            let listed = made.all(tenants, "--reserve", prefix)?;
            made.tenants.reserve(prefix, listed);
        }
        for PrefixRule { prefix, tenants } in &self.share {
            let listed = made.all(tenants, "--share", prefix)?;
            made.tenants.share(prefix, listed);
        }
        for TenantAdmin { names, tenant } in &self.tenant_admins {
            let listed = made.all(std::slice::from_ref(tenant), "--tenant-admins", &names.to_string())?;
            made.admins.extend(listed.first().map(|tenant| (names.clone(), *tenant)));
        }
        Ok(made)
    }
}

impl Tenancy {
    fn all(&self, texts: &[String], flag: &'static str, rule: &str) -> Result<Vec<Tenant>, ConfigError> {
        let one = |text: &String| {
            self.tenants.called(text).ok_or_else(|| ConfigError::Tenants {
                flag,
                rule: rule.to_owned(),
                why: format!("{text:?} is neither a user id nor a name of --tenants"),
            })
        };
        texts.iter().map(one).collect()
    }

    /// Returns the rules for the state machine.
    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Returns the tenant of a process, by its effective ids.
    pub(crate) fn of(&self, uid: u32, gid: u32) -> Tenant {
        let named = self.users.get(&uid).or_else(|| self.groups.get(&gid));
        named.copied().unwrap_or(Tenant::User(uid))
    }

    /// Returns the tenant that the holder of a certificate with these names administers, if the holder is limited to
    /// one tenant. The first matching rule counts.
    pub(crate) fn administered_by(&self, names: &[String]) -> Option<Tenant> {
        let (_, tenant) = self.admins.iter().find(|(pattern, _)| names.iter().any(|name| pattern.matches(name)))?;
        Some(*tenant)
    }

    /// Returns the tenants for which a node of this name may speak. The first rule that names the node counts. `None`:
    /// all.
    pub(crate) fn rule_for(&self, node: &str) -> Option<&[Tenant]> {
        if self.nodes.is_empty() {
            return None;
        }
        match self.nodes.iter().find(|(pattern, _)| pattern.matches(node)) {
            Some((_, tenants)) => tenants.as_deref(),
            None => Some(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tenants: &[&str], peers: &[&str], reserve: &[&str]) -> TenantsConfig {
        TenantsConfig {
            tenants: tenants.iter().map(|t| t.parse().unwrap()).collect(),
            peer_tenants: peers.iter().map(|t| t.parse().unwrap()).collect(),
            reserve: reserve.iter().map(|t| t.parse().unwrap()).collect(),
            share: Vec::new(),
            tenant_admins: Vec::new(),
        }
    }

    #[test]
    fn user_id_takes_precedence_over_group_id() {
        let made = config(&["train=1001,1002,@3000", "eval=@3001"], &[], &[]).tenancy().unwrap();
        let [train, eval] = ["train", "eval"].map(|name| made.tenants().called(name).unwrap());
        assert_eq!(made.of(1001, 3001), train);
        assert_eq!(made.of(7, 3000), train);
        assert_eq!(made.of(7, 3001), eval);
        assert_eq!(made.of(7, 7), Tenant::User(7));
        assert_eq!(TenantsConfig::default().tenancy().unwrap().of(0, 0), Tenant::User(0));
    }

    #[test]
    fn invalid_rules_are_named() {
        for bad in ["train", "=1", "train=", "train=1,", "train=x", "train=-1", "train=@"] {
            assert!(bad.parse::<TenantIds>().is_err(), "{bad}");
        }
        let wrong = |config: TenantsConfig, words: &[&str]| {
            let why = config.tenancy().unwrap_err().to_string();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        };
        wrong(config(&["a b=1"], &[], &[]), &["--tenants", "a b"]);
        wrong(config(&["12=1"], &[], &[]), &["--tenants", "12", "user id"]);
        wrong(config(&["a=1,@5", "b=1"], &[], &[]), &["--tenants", "user id 1", "a's"]);
        wrong(config(&["a=1,@5", "b=@5"], &[], &[]), &["group id 5", "a's"]);
        wrong(config(&[], &["node-*=train"], &[]), &["--peer-tenants", "node-*", "train"]);
        wrong(config(&[], &[], &["prod/=train"]), &["--reserve", "prod/", "train"]);
        let tenant_admins = vec!["ops-*=train".parse().unwrap()];
        wrong(TenantsConfig { tenant_admins, ..TenantsConfig::default() }, &["--tenant-admins", "ops-*", "train"]);
        for bad in ["ops", "ops=", "ops=a,b", "=a"] {
            assert!(bad.parse::<TenantAdmin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn node_without_a_rule_speaks_for_no_tenant() {
        let made = config(&["train=1"], &["node-1=*", "node-*=train,7"], &[]).tenancy().unwrap();
        let train = made.tenants().called("train").unwrap();
        assert_eq!(made.rule_for("node-1"), None);
        assert_eq!(made.rule_for("node-2"), Some(&[train, Tenant::User(7)][..]));
        assert_eq!(made.rule_for("other"), Some(&[][..]));
        assert_eq!(Tenancy::default().rule_for("other"), None);
    }
}
