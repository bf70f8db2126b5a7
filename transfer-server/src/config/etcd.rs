//! The settings of etcd, as the place that says which host leads the directory.

use super::ConfigError;
use clap::Args;
use std::path::PathBuf;

/// The prefix of the keys, if `--directory` names none.
const DEFAULT_PREFIX: &str = "/transfer";

/// How etcd is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "The directory by etcd")]
pub struct EtcdConfig {
    /// The certificates of the authorities that have signed those of etcd's members; needed for https://
    #[arg(id = "etcd_ca", long = "etcd-ca", env = "TRANSFER_ETCD_CA", value_name = "PATH")]
    pub ca: Option<PathBuf>,

    /// The certificate that this node shows etcd, if etcd asks for one
    #[arg(id = "etcd_cert", long = "etcd-cert", env = "TRANSFER_ETCD_CERT", value_name = "PATH")]
    pub cert: Option<PathBuf>,

    /// The key of --etcd-cert
    #[arg(id = "etcd_key", long = "etcd-key", env = "TRANSFER_ETCD_KEY", value_name = "PATH")]
    pub key: Option<PathBuf>,

    /// This node's user in etcd, if etcd has users. It needs to read and write the keys that begin with the prefix
    #[arg(id = "etcd_user", long = "etcd-user", env = "TRANSFER_ETCD_USER", value_name = "NAME")]
    pub user: Option<String>,

    /// A file with the password of --etcd-user. It is read at each login, so a new password needs no restart
    #[arg(
        id = "etcd_password_file",
        long = "etcd-password-file",
        env = "TRANSFER_ETCD_PASSWORD_FILE",
        value_name = "PATH"
    )]
    pub password_file: Option<PathBuf>,
}

/// The members of an etcd, and the prefix of the directory's keys there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMembers {
    /// The URLs of the members, in the order in which they are asked.
    pub urls: Vec<String>,
    /// The prefix, without a slash at its end.
    pub prefix: String,
}

impl EtcdMembers {
    /// Reads what stands behind `etcd:` in `--directory`.
    pub(super) fn parse(value: &str, text: &str) -> Result<EtcdMembers, ConfigError> {
        let wrong = |wrong: String| ConfigError::DirectoryEtcd { value: value.to_owned(), wrong };
        let (mut urls, mut prefix) = (Vec::<String>::new(), None);
        for url in text.split(',').map(str::trim) {
            if prefix.is_some() {
                return Err(wrong("only the last URL may have a path, which is the prefix of the keys".to_owned()));
            }
            let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(format!("{url:?} is no URL")))?;
            let (address, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            if !["http", "https"].contains(&scheme) || !super::is_host_and_port(address) {
                return Err(wrong(format!("{url:?} is neither https://HOST:PORT nor http://HOST:PORT")));
            }
            if urls.first().is_some_and(|first| first.starts_with("https:") != (scheme == "https")) {
                return Err(wrong("some URLs are https:// and others http://".to_owned()));
            }
            let path = path.trim_end_matches('/');
            if path.contains(|c: char| c.is_whitespace() || c.is_control()) {
                return Err(wrong(format!("the prefix {path:?} has white space")));
            }
            prefix = Some(path.to_owned()).filter(|path| !path.is_empty());
            let url = format!("{scheme}://{address}");
            if urls.contains(&url) {
                return Err(wrong(format!("{url} is there twice")));
            }
            urls.push(url);
        }
        Ok(EtcdMembers { urls, prefix: prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned()) })
    }

    /// Whether etcd is asked over TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.urls.iter().any(|url| url.starts_with("https:"))
    }
}

impl std::fmt::Display for EtcdMembers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "etcd:{}{}", self.urls.join(","), self.prefix)
    }
}

impl EtcdConfig {
    /// `members`: if `--directory` names an etcd.
    pub(super) fn check(&self, members: Option<&EtcdMembers>) -> Result<(), ConfigError> {
        let given = [
            ("--etcd-ca", self.ca.is_some()),
            ("--etcd-cert", self.cert.is_some()),
            ("--etcd-key", self.key.is_some()),
            ("--etcd-user", self.user.is_some()),
            ("--etcd-password-file", self.password_file.is_some()),
        ];
        let Some(members) = members else {
            return match given.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(ConfigError::NoEtcd { flag }),
                None => Ok(()),
            };
        };
        let needs = |flag: &str, needed: &str| {
            let wrong = format!("{flag} needs {needed}");
            Err(ConfigError::DirectoryEtcd { value: members.to_string(), wrong })
        };
        match (members.has_tls(), &self.ca, &self.cert, &self.key) {
            (true, None, ..) => return needs("https://", "--etcd-ca"),
            (false, Some(_), ..) => return needs("--etcd-ca", "https://"),
            (false, _, Some(_), _) => return needs("--etcd-cert", "https://"),
            (_, _, Some(_), None) => return needs("--etcd-cert", "--etcd-key"),
            (_, _, None, Some(_)) => return needs("--etcd-key", "--etcd-cert"),
            _ => {}
        }
        match (&self.user, &self.password_file) {
            (Some(_), None) => needs("--etcd-user", "--etcd-password-file"),
            (None, Some(_)) => needs("--etcd-password-file", "--etcd-user"),
            _ => Ok(()),
        }
    }
}
