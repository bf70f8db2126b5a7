//! The settings of files that `transferctl copy` brings.

use super::{ConfigError, Size, Tenancy};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use transfer_core::protocol::Tenant;

/// The role that a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CopyRole {
    /// An administrator: of the sidecar, or of the copies' tenant.
    Admin,
    /// A reader.
    Reader,
}

/// The folder for files that other nodes copy here, and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Copies")]
pub struct CopyConfig {
    /// The folder below which "transferctl copy" may write files, as the user of the sidecar. Default: none, so nothing is
    /// copied here
    #[arg(id = "copy_folder", long = "copy-folder", env = "TRANSFER_COPY_FOLDER", value_name = "DIR")]
    pub folder: Option<PathBuf>,

    /// The role that a caller of "transferctl copy" needs here: an administrator of the sidecar or of the copies' tenant,
    /// or a reader. Without certificates every user of this host is a reader
    #[arg(id = "copy_role", long = "copy-role", env = "TRANSFER_COPY_ROLE", value_enum, default_value_t = CopyRole::Admin)]
    pub role: CopyRole,

    /// The tenant whose tensors may become files: a name of --tenants, or a user id. The sender's worker must be of it.
    /// Default: the tenant of the user that runs the sidecar
    #[arg(id = "copy_tenant", long = "copy-tenant", env = "TRANSFER_COPY_TENANT", value_name = "TENANT")]
    pub tenant: Option<String>,

    /// The largest file that is copied here
    #[arg(
        id = "copy_max_bytes",
        long = "copy-max-bytes",
        env = "TRANSFER_COPY_MAX_BYTES",
        value_name = "SIZE",
        default_value = "64GiB"
    )]
    pub max_bytes: Size,

    /// The most bytes of all files in the folder, with those that are being copied. Files that lie there for another
    /// reason count too
    #[arg(
        id = "copy_total_bytes",
        long = "copy-total-bytes",
        env = "TRANSFER_COPY_TOTAL_BYTES",
        value_name = "SIZE",
        default_value = "256GiB"
    )]
    pub total_bytes: Size,

    /// The most files that are copied here at a time. One caller has at most half of them, rounded up
    #[arg(
        id = "copy_at_once",
        long = "copy-at-once",
        env = "TRANSFER_COPY_AT_ONCE",
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub at_once: u32,
}

impl Default for CopyConfig {
    fn default() -> CopyConfig {
        let (folder, role, tenant) = (None, CopyRole::Admin, None);
        CopyConfig { folder, role, tenant, max_bytes: Size(64 << 30), total_bytes: Size(256 << 30), at_once: 4 }
    }
}

impl CopyConfig {
    /// Returns the tenant of copies.
    ///
    /// # Errors
    /// [`ConfigError::Tenants`] if the name is none.
    pub(crate) fn tenant(&self, tenancy: &Tenancy) -> Result<Tenant, ConfigError> {
        let Some(text) = &self.tenant else {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            return Ok(tenancy.of(uid, gid));
        };
        tenancy.tenants().called(text).ok_or_else(|| ConfigError::Tenants {
            flag: "--copy-tenant",
            rule: text.clone(),
            why: "it is neither a user id nor a name of --tenants".to_owned(),
        })
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid one.
    pub(super) fn check(&self, tenancy: &Tenancy) -> Result<(), ConfigError> {
        self.tenant(tenancy)?;
        if let (Some(tenant), None) = (&self.tenant, &self.folder) {
            return Err(ConfigError::Needs { flag: "--copy-tenant", value: tenant.clone(), needs: "--copy-folder" });
        }
        match &self.folder {
            Some(folder) if folder.is_relative() => Err(ConfigError::Value {
                flag: "--copy-folder",
                value: folder.display().to_string(),
                wrong: "is no absolute path",
                right: "give it from / on, so that it does not depend on where transferd starts",
            }),
            _ if self.max_bytes > self.total_bytes => Err(ConfigError::Value {
                flag: "--copy-max-bytes",
                value: self.max_bytes.to_string(),
                wrong: "is more than --copy-total-bytes",
                right: "one file has no more room than all together",
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_named() {
        let wrong = |change: fn(&mut CopyConfig), words: &[&str]| {
            let mut config = CopyConfig { folder: Some("/srv".into()), ..CopyConfig::default() };
            change(&mut config);
            let why = config.check(&Tenancy::default()).unwrap_err().to_string();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        };
        wrong(|c| c.folder = Some("here".into()), &["--copy-folder", "here", "absolute"]);
        wrong(|c| c.tenant = Some("train".into()), &["--copy-tenant", "train", "--tenants"]);
        wrong(|c| (c.tenant, c.folder) = (Some("7".into()), None), &["--copy-tenant", "7", "--copy-folder"]);
        wrong(|c| c.max_bytes = Size(1 << 50), &["--copy-max-bytes", "--copy-total-bytes"]);
        CopyConfig::default().check(&Tenancy::default()).unwrap();
    }
}
