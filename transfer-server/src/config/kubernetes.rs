//! The settings of Kubernetes, as the place that says which host leads the directory.

use super::ConfigError;
use clap::Args;
use std::path::{Path, PathBuf};

/// The longest name: it is the value of a label, too.
const MAX_NAME_BYTES: usize = 63;

/// The folder that Kubernetes mounts into each pod: of its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How Kubernetes' API is reached. A pod needs none of this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "The directory by Kubernetes")]
pub struct KubernetesConfig {
    /// The API server of --directory kubernetes:; by default that of this pod, as KUBERNETES_SERVICE_HOST and
    /// KUBERNETES_SERVICE_PORT say
    #[arg(
        id = "kubernetes_url",
        long = "kubernetes-url",
        env = "TRANSFER_KUBERNETES_URL",
        value_name = "https://HOST:PORT"
    )]
    pub url: Option<String>,

    /// The certificates of the authorities that have signed the API server's; by default those of this pod's service account.
    /// Read again for each connection
    #[arg(id = "kubernetes_ca", long = "kubernetes-ca", env = "TRANSFER_KUBERNETES_CA", value_name = "PATH")]
    pub ca: Option<PathBuf>,

    /// A file with the token that is shown to the API server; by default that of this pod's service account. Read again for each
    /// call, because Kubernetes replaces it
    #[arg(
        id = "kubernetes_token_file",
        long = "kubernetes-token-file",
        env = "TRANSFER_KUBERNETES_TOKEN_FILE",
        value_name = "PATH"
    )]
    pub token_file: Option<PathBuf>,
}

/// The Lease objects of a directory: the name of the first one, with which those of the others begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesLease {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl KubernetesLease {
    /// Reads what stands behind `kubernetes:` in `--directory`.
    pub(super) fn parse(value: &str, text: &str) -> Result<KubernetesLease, ConfigError> {
        KubernetesLease::parse_in(value, text, Path::new(ACCOUNT))
    }

    /// `account` is the folder of the pod's service account.
    pub(super) fn parse_in(value: &str, text: &str, account: &Path) -> Result<KubernetesLease, ConfigError> {
        let wrong = |wrong: String| ConfigError::DirectoryKubernetes { value: value.to_owned(), wrong };
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name),
            None => {
                let path = account.join("namespace");
                let (read, path) = (std::fs::read_to_string(&path), path.display());
                let read =
                    read.map_err(|e| wrong(format!("without NAMESPACE it is that of {path}: cannot read it: {e}")))?;
                (read.trim().to_owned(), text)
            }
        };
        for (what, text, may_have_dots) in [("namespace", &*namespace, false), ("name", name, true)] {
            let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            let is_label = |part: &str| {
                part.starts_with(is_end) && part.ends_with(is_end) && part.chars().all(|c| is_end(c) || c == '-')
            };
            let is_name = match may_have_dots {
                true => text.split('.').all(is_label),
                false => is_label(text),
            };
            if !is_name || text.len() > MAX_NAME_BYTES {
                return Err(wrong(format!(
                    "the {what} {text:?} is none of Kubernetes: it has 1 to {MAX_NAME_BYTES} small letters, digits and \"-\""
                )));
            }
        }
        Ok(KubernetesLease { namespace, name: name.to_owned() })
    }
}

impl std::fmt::Display for KubernetesLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kubernetes:{}/{}", self.namespace, self.name)
    }
}

impl KubernetesConfig {
    /// The host and the port of the API server.
    ///
    /// # Errors
    /// [`ConfigError::DirectoryKubernetes`]: they are not given, or are no URL. `lease` is of `--directory`.
    pub(crate) fn server(&self, lease: &KubernetesLease) -> Result<(String, u16), ConfigError> {
        self.server_in(lease, |name| std::env::var(name).ok())
    }

    /// `environment` has the pod's variables.
    pub(super) fn server_in(
        &self,
        lease: &KubernetesLease,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(String, u16), ConfigError> {
        let wrong = |wrong: String| ConfigError::DirectoryKubernetes { value: lease.to_string(), wrong };
        let of_pod = || {
            let get = |name: &str| environment(name).filter(|text| !text.is_empty());
            let (host, port) = get("KUBERNETES_SERVICE_HOST").zip(get("KUBERNETES_SERVICE_PORT"))?;
            Some(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
        };
        let needs = "outside of a pod, where KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, it needs --kubernetes-url";
        let url = self.url.clone().or_else(of_pod).ok_or_else(|| wrong(needs.to_owned()))?;
        let address = url.strip_prefix("https://").map(|address| address.trim_end_matches('/'));
        let split = address.filter(|address| super::is_host_and_port(address)).and_then(|a| a.rsplit_once(':'));
        let parsed = split.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        parsed.ok_or_else(|| wrong(format!("the API server's URL is https://HOST:PORT, and not {url:?}")))
    }

    /// The file with the authorities.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.ca.clone().unwrap_or_else(|| Path::new(ACCOUNT).join("ca.crt"))
    }

    /// The file with the token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.token_file.clone().unwrap_or_else(|| Path::new(ACCOUNT).join("token"))
    }

    /// `lease`: if `--directory` names one.
    pub(super) fn check(&self, lease: Option<&KubernetesLease>) -> Result<(), ConfigError> {
        let given = [
            ("--kubernetes-url", self.url.is_some()),
            ("--kubernetes-ca", self.ca.is_some()),
            ("--kubernetes-token-file", self.token_file.is_some()),
        ];
        match (lease, given.into_iter().find(|(_, given)| *given)) {
            (None, Some((flag, _))) => Err(ConfigError::NoKubernetes { flag }),
            (None, None) => Ok(()),
            (Some(lease), _) => self.server(lease).map(drop),
        }
    }
}
