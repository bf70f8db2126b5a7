//! A sidecar: `transferd` in a process of its own.

use crate::container::{self, Container, SHARED};
use crate::port::ReservedPort;
use crate::process::{Process, Start};
use crate::status::{Admin, Counts, Seen};
use crate::witness::Witness;
use crate::{Worker, poll, programs};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// A `transferd`. Killed when dropped; [`Sidecar::terminate`] ends it as its operator would.
#[derive(Debug)]
pub struct Sidecar {
    name: String,
    folder: PathBuf,
    arguments: Vec<String>,
    container: Option<Container>,
    /// The user id that it runs as, if not the test's.
    uid: Option<u32>,
    process: Process,
    admin: Admin,
    /// The line that says "ready".
    ready: String,
    _witness: Witness,
    /// The port that it listens at, also after a restart.
    _port: Option<ReservedPort>,
}

impl Sidecar {
    /// Starts a sidecar named `name`, with its sockets in `folder`, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(folder: &Path, name: &str, arguments: &[&str]) -> Sidecar {
        Sidecar::start_in(None, folder, name, arguments)
    }

    /// Starts a sidecar, as [`Sidecar::start`] does, in a container that shares the folder.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_in(container: Option<Container>, folder: &Path, name: &str, arguments: &[&str]) -> Sidecar {
        Sidecar::start_for(container, None, folder, name, arguments)
    }

    /// Starts a sidecar, as [`Sidecar::start`] does, as another user, who owns the folder. Only root can do that.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_as(uid: u32, folder: &Path, name: &str, arguments: &[&str]) -> Sidecar {
        Sidecar::start_for(None, Some(uid), folder, name, arguments)
    }

    fn start_for(
        container: Option<Container>,
        uid: Option<u32>,
        folder: &Path,
        name: &str,
        arguments: &[&str],
    ) -> Sidecar {
        let mut arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        // A container has ports of its own.
        let any_port = arguments.windows(2).position(|pair| pair == ["--listen", "127.0.0.1:0"]);
        let _port = any_port.filter(|_| container.is_none()).map(|at| {
            let port = ReservedPort::any();
            arguments[at + 1] = port.address().to_string();
            port
        });
        let (process, ready) = run(container, uid, folder, name, &arguments);
        let admin = Admin::at(admin_socket(folder, name));
        let _witness = Witness::at(admin_socket(folder, name));
        Sidecar {
            name: name.to_owned(),
            folder: folder.to_owned(),
            arguments,
            container,
            uid,
            process,
            admin,
            ready,
            _witness,
            _port,
        }
    }

    /// Returns the name of its node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its process id, as seen by the test.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        if self.container.is_some() { container::first_process(self.process.id()) } else { self.process.id() }
    }

    /// Returns the folder of its sockets.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the socket for workers.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.sock", self.name))
    }

    /// Returns the path of the socket for tools, with its gRPC services.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        admin_socket(&self.folder, &self.name)
    }

    /// Returns the address and port of its gRPC services for other nodes.
    ///
    /// # Panics
    /// If it does not listen.
    #[must_use]
    pub fn address(&self) -> String {
        self.told("grpc=")
    }

    /// Returns the address and port of its HTTP server.
    ///
    /// # Panics
    /// If it has no HTTP server.
    #[must_use]
    pub fn http(&self) -> String {
        self.told("http=")
    }

    /// Returns a field of the line that says "ready".
    fn told(&self, name: &str) -> String {
        let field = self.ready.split_whitespace().find_map(|field| field.strip_prefix(name));
        field.unwrap_or_else(|| panic!("no {name} in {:?}", self.ready)).to_owned()
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join(format!("{}.log", self.name))).unwrap_or_default()
    }

    /// Starts a worker of that name, with an arena of 16 MiB.
    #[must_use]
    pub fn worker(&self, name: &str) -> Worker {
        Worker::of(self, name).start()
    }

    /// Returns a connection to its gRPC services.
    #[must_use]
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Returns its status.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn status(&self) -> Seen {
        self.admin.status().unwrap_or_else(|e| panic!("{}: {e}\n{}", self.name, self.process.last_words()))
    }

    /// Waits until `is` holds for its status.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn until(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let seen = poll(|| {
            let status = self.status();
            if is(&status) { Ok(()) } else { Err(Box::new(status)) }
        });
        if let Err(status) = seen {
            panic!("{} is never so that {what}: {status:#?}\n{}", self.name, self.process.last_words());
        }
    }

    /// Waits until its counts are equal to `wanted`.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn until_counts(&self, wanted: &Counts) {
        let seen = poll(|| match Counts::of(&self.status()) {
            counts if counts == *wanted => Ok(()),
            counts => Err(Box::new(counts)),
        });
        if let Err(counts) = seen {
            let status = self.status();
            let log = self.process.last_words();
            panic!("{} has {counts:#?}, not {wanted:#?}: {status:#?}\n{log}", self.name);
        }
    }

    /// Ends it with SIGKILL. It cannot notify its workers or peers.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again after its end, with the same arguments and, for other nodes, the same address.
    pub fn restart(&mut self) {
        let address = self.ready.contains(" grpc=").then(|| self.address());
        if let (Some(at), Some(address)) = (self.arguments.iter().position(|a| a == "--listen"), address) {
            self.arguments[at + 1] = address;
        }
        (self.process, self.ready) = run(self.container, self.uid, &self.folder, &self.name, &self.arguments);
        self.admin = Admin::at(self.admin_socket());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops its process, as a debugger does; [`Sidecar::go_on`] lets it run again.
    pub fn freeze(&self) {
        self.process.stop();
    }

    /// See [`Sidecar::freeze`].
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Limits the number of its descriptors; `None` raises the limit to its maximum. Open descriptors stay open.
    ///
    /// # Panics
    /// If the kernel refuses the limit.
    pub fn limit_descriptors(&self, most: Option<u64>) {
        let pid = i32::try_from(self.process_id()).ok().and_then(Pid::from_raw).expect("a process has an id");
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: most.or(maximum), maximum };
        prlimit(Some(pid), Resource::Nofile, limit).expect("its limit can be set");
    }

    /// Waits until it has ended by itself, and returns its exit status.
    #[must_use]
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Ends it with SIGTERM, and returns its exit status.
    #[must_use]
    pub fn terminate(&mut self) -> ExitStatus {
        match self.container {
            None => self.process.signal(Signal::TERM),
            // The process that made the container ends with the same status.
            Some(_) => crate::process::signal(self.process_id(), Signal::TERM),
        }
        self.process.wait()
    }
}

fn admin_socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}-admin.sock"))
}

fn run(
    container: Option<Container>,
    uid: Option<u32>,
    folder: &Path,
    name: &str,
    arguments: &[String],
) -> (Process, String) {
    let ready_file = folder.join(format!("{name}.ready"));
    // A killed sidecar leaves this file behind.
    let _ = std::fs::remove_file(&ready_file);
    let (leash, program) = match uid {
        None => (programs::worker(), programs::transferd()),
        // Copies that the other user can run.
        Some(_) => {
            (programs::worker_for_all(folder), programs::for_all(&programs::transferd(), folder, "transferd.copy"))
        }
    };
    // The path of the folder as the sidecar sees it.
    let inside = if container.is_some() { Path::new(SHARED) } else { folder };
    let socket = inside.join(format!("{name}.sock"));
    let (admin, ready_inside) = (admin_socket(inside, name), inside.join(format!("{name}.ready")));
    let mut words: Vec<&OsStr> = vec!["--node".as_ref(), name.as_ref(), "--socket".as_ref(), socket.as_ref()];
    words.extend(["--admin-socket".as_ref(), admin.as_os_str(), "--ready-file".as_ref(), ready_inside.as_os_str()]);
    words.extend(arguments.iter().map(OsStr::new));
    let contained = container.map(|container| container.words(folder, &program, &words));
    let arguments = match &contained {
        None => Process::tied(&program, words),
        Some(words) => words.iter().map(AsRef::as_ref).collect(),
    };
    let mut process =
        Process::start(Start { leash: &leash, arguments, mode: "tied", log: folder.join(format!("{name}.log")), uid });
    let ready = poll(|| match std::fs::read_to_string(&ready_file) {
        Ok(line) => Ok(Ok(line)),
        Err(_) => process.ended().map(Err).ok_or(()),
    });
    match ready {
        Ok(Ok(line)) => (process, line),
        other => panic!("{name} does not start ({other:?}):\n{}", process.last_words()),
    }
}
