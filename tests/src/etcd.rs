//! A real etcd: one member, or three.

use crate::port::ReservedPort;
use crate::process::{Process, Start};
use crate::{Identity, poll, programs, tools};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The members of an etcd, which end with the test.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Option<Process>>,
    words: Vec<Vec<String>>,
    urls: Vec<String>,
    identity: Option<Identity>,
    _ports: Vec<ReservedPort>,
    folder: TempDir,
}

impl Etcd {
    /// Starts so many members, and waits until they answer. With an identity they speak TLS, and ask for a certificate.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start(count: usize, identity: Option<Identity>) -> Etcd {
        let folder = tempfile::Builder::new().prefix("transfer-test-etcd-").tempdir().expect("a folder");
        let ports: Vec<_> = (0..2 * count).map(|_| ReservedPort::any()).collect();
        let (clients, peers) = ports.split_at(count);
        let scheme = if identity.is_some() { "https" } else { "http" };
        let urls: Vec<_> = clients.iter().map(|port| format!("{scheme}://{}", port.address())).collect();
        let peers: Vec<_> = peers.iter().map(|port| format!("http://{}", port.address())).collect();
        let cluster: Vec<_> = peers.iter().enumerate().map(|(i, peer)| format!("m{i}={peer}")).collect();
        let words = (0..count).map(|i| {
            let data = folder.path().join(format!("m{i}"));
            let mut words = vec![
                format!("--name=m{i}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={}", urls[i]),
                format!("--advertise-client-urls={}", urls[i]),
                format!("--listen-peer-urls={}", peers[i]),
                format!("--initial-advertise-peer-urls={}", peers[i]),
                format!("--initial-cluster={}", cluster.join(",")),
                "--logger=zap".to_owned(),
                "--log-level=warn".to_owned(),
            ];
            if let Some(Identity { cert, key, ca }) = &identity {
                words.push(format!("--cert-file={}", cert.display()));
                words.push(format!("--key-file={}", key.display()));
                words.push(format!("--trusted-ca-file={}", ca.display()));
                words.push("--client-cert-auth".to_owned());
            }
            words
        });
        let words = words.collect();
        let members = (0..count).map(|_| None).collect();
        let mut etcd = Etcd { members, words, urls, identity, _ports: ports, folder };
        (0..count).for_each(|i| etcd.restart(i));
        etcd.until_it_answers();
        etcd
    }

    /// Waits until it writes.
    ///
    /// # Panics
    /// If it does not.
    pub fn until_it_answers(&self) {
        let writes = || {
            let output = self.output(&["put", "/test/answers", "1"]);
            output.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
        };
        poll(writes).expect("etcd answers");
    }

    /// Returns the `--directory` of its clients, with this prefix.
    #[must_use]
    pub fn directory(&self, prefix: &str) -> String {
        format!("etcd:{}{prefix}", self.urls.join(","))
    }

    /// Runs etcdctl.
    fn output(&self, words: &[&str]) -> Output {
        let mut command = Command::new(tools::etcdctl());
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.urls.join(",")));
        command.args(["--dial-timeout=1s", "--command-timeout=2s"]);
        if let Some(Identity { cert, key, ca }) = &self.identity {
            command.arg("--cert").arg(cert).arg("--key").arg(key).arg("--cacert").arg(ca);
        }
        command.args(words).output().expect("etcdctl runs")
    }

    /// Runs etcdctl, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn ctl(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the member that leads.
    ///
    /// # Panics
    /// If none does.
    #[must_use]
    pub fn leader(&self) -> usize {
        let leads = |url: &String| {
            let metrics = crate::http::get(url.trim_start_matches("http://"), "/metrics");
            metrics.body.lines().any(|line| line == "etcd_server_is_leader 1")
        };
        poll(|| self.urls.iter().position(leads).ok_or("none does")).expect("a member leads")
    }

    /// Starts a member that has ended.
    pub fn restart(&mut self, member: usize) {
        let program: PathBuf = tools::etcd();
        let words = self.words[member].iter().map(OsStr::new);
        self.members[member] = Some(Process::start(Start {
            leash: &programs::worker(),
            arguments: Process::tied(&program, words),
            mode: "tied",
            log: self.folder.path().join(format!("m{member}.log")),
            uid: None,
        }));
    }

    /// Ends a member with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].as_mut().expect("it runs").kill();
    }

    /// Stops a member with SIGSTOP.
    pub fn freeze(&self, member: usize) {
        self.members[member].as_ref().expect("it runs").stop();
    }

    /// Lets a member run again.
    pub fn go_on(&self, member: usize) {
        self.members[member].as_ref().expect("it runs").signal(Signal::CONT);
    }
}
