//! The check of a configuration without a start: `transferd --check`.

use crate::StartError;
use crate::config::{Config, DirectoryPlace, LoadError, Loaded};
use crate::directory::{Etcd, Kubernetes, Takeover};
use crate::observe::logging::{self, LogError};
use crate::security::Prepared;
use crate::sidecar::{check_required, folder_for_copies};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use transfer_memory::socket::{AddressError, Socket};

/// The reason why the sidecar cannot start with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// Values are not valid.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The filter of the log is not valid.
    #[error("--log: {0}")]
    Log(#[from] LogError),
    /// The start would fail.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Checks everything that needs no start: the values, the files and paths that they name, and whether this host has the
/// required fabric. Returns remarks about a valid configuration.
///
/// # Errors
/// [`CheckError`] for the first error.
pub fn check(loaded: &Loaded) -> Result<Vec<String>, CheckError> {
    let config = loaded.config()?;
    logging::check_filter(&loaded.flags.log.filter)?;
    Prepared::of(&config).map_err(StartError::from)?;
    match &config.directory {
        DirectoryPlace::Etcd(members) => {
            Etcd::new(members.clone(), config.etcd.clone()).map_err(StartError::from)?;
        }
        DirectoryPlace::Kubernetes(lease) => {
            let server = config.kubernetes.server(lease).map_err(StartError::from)?;
            let takeover = Takeover(config.directory_takeover);
            Kubernetes::new(lease.clone(), server, &config.kubernetes, takeover).map_err(StartError::from)?;
        }
        DirectoryPlace::Embedded | DirectoryPlace::At(_) | DirectoryPlace::Among(_) => {}
    }
    check_required(&config).map_err(StartError::from)?;
    folder_for_copies(&config)?;
    let mut remarks = Vec::new();
    let memory = memory_bytes().into_iter().chain(crate::config::group_limit()).min();
    remarks.extend(more_than_the_host(&config, memory));
    match is_running(&config)? {
        true => remarks.push(format!(
            "a sidecar listens at --socket {} already: addresses were not looked at, for they may be its own",
            config.socket.display()
        )),
        false => check_addresses(&config)?,
    }
    Ok(remarks)
}

/// Returns a remark if the limit exceeds this host's memory, or that of its control group. This is no error, because a file may be checked on a host
/// other than its own.
fn more_than_the_host(config: &Config, memory_bytes: Option<u64>) -> Option<String> {
    let (limit, host) = (config.pinned_limit, memory_bytes.filter(|host| config.pinned_limit.0 > *host)?);
    Some(format!(
        "--pinned-limit {limit} is more than the {} MiB of memory that this host has, or allows this process: the kernel kills the sidecar before it is reached",
        host >> 20
    ))
}

/// Returns whether a sidecar listens at the workers' socket.
fn is_running(config: &Config) -> Result<bool, StartError> {
    /// The time-out of the connection: a stopped sidecar does not answer, but still listens.
    const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
    if let Some(admin) = &config.admin_socket {
        match crate::unix::check(admin) {
            Ok(_) => {}
            Err(source) => return Err(cannot_listen("--admin-socket", admin.display(), source)),
        }
    }
    match crate::unix::check(&config.socket) {
        Ok(false) => Ok(false),
        Ok(true) => match Socket::connect(&config.socket, Instant::now() + CONNECT_TIMEOUT) {
            Ok(_) => Ok(true),
            // The start replaces a socket file that a dead process has left.
            Err(AddressError::NobodyListens { .. }) => Ok(false),
            Err(AddressError::System { .. }) => Ok(true),
            Err(e) => Err(e.into()),
        },
        Err(source) => Err(cannot_listen("--socket", config.socket.display(), source)),
    }
}

fn check_addresses(config: &Config) -> Result<(), StartError> {
    let addresses = [
        ("--listen", config.listen),
        ("--data-listen", config.data_listen),
        ("--http-listen", config.watch.http_listen),
    ];
    for (flag, address) in addresses.into_iter().filter_map(|(flag, address)| Some((flag, address?))) {
        TcpListener::bind(address).map_err(|source| cannot_listen(flag, address, source))?;
    }
    match &config.admin_socket {
        Some(path) if crate::unix::is_taken(path) => {
            let source = std::io::Error::new(std::io::ErrorKind::AddrInUse, "somebody listens there already");
            Err(cannot_listen("--admin-socket", path.display(), source))
        }
        _ => Ok(()),
    }
}

fn cannot_listen(flag: &'static str, address: impl ToString, source: std::io::Error) -> StartError {
    StartError::Listen { flag, address: address.to_string(), source }
}

/// Returns the size of this host's memory in bytes.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;
    use transfer_core::tensor::Name;

    #[test]
    fn limit_beyond_the_host_is_reported() {
        let mut config = Config::single(Name::new("n").unwrap(), Path::new("/x"));
        config.pinned_limit = Size(100 << 40);
        let said = more_than_the_host(&config, Some(16 << 30)).unwrap();
        assert!(said.contains("--pinned-limit 100TiB") && said.contains("16384 MiB"), "{said}");
        assert_eq!(more_than_the_host(&config, Some(100 << 40)), None);
        assert_eq!(more_than_the_host(&config, None), None);
        assert!(memory_bytes().is_some_and(|n| n > 0));
    }
}
