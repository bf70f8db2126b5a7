//! The server: serves one client, then ends.

use super::cm::{self, Listening};
use super::control::Control;
use super::error::PerfError;
use super::message::{Message, Outcome};
use super::options::Options;
use super::rig::{Fresh, Rig};
use super::terms::{Measure, Run, Setup, Verb};
use super::wait::Watch;
use super::{bandwidth, latency, prepare};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;
use transfer_core::text::printable;
use transfer_terminal::units::counted;
use transfer_verbs::choose::Chosen;

/// How long a client may take from one run to the next: it may have much memory to fill.
const NEXT_RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Listens, serves the first client that was started for the same, and returns when it is done.
pub(super) fn run(options: &Options, chosen: &Chosen) -> Result<(), PerfError> {
    // Only this host, unless it is asked for more: a client may use the memory of the test.
    let ip = options.listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let address = SocketAddr::new(ip, options.port);
    let failed = |source| PerfError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let whom = if options.listen.is_some() { "" } else { ", from this host; --listen ADDRESS lets others connect" };
    if options.json {
        transfer_terminal::errln!("listening at {address}{whom}");
    } else {
        transfer_terminal::outln!("listening at {address}{whom}");
    }
    let mut control = loop {
        let (stream, peer) = listener.accept().map_err(failed)?;
        // A stranger does not end the server.
        match Control::new(stream).map_err(|source| PerfError::Broken { peer, source }).and_then(|c| greet(c, options))
        {
            Ok(control) => break control,
            Err(error) => transfer_terminal::errln!("{}", printable(format!("{peer} is not served: {error}"))),
        }
    };
    drop(listener);
    let mut session = Session { options, chosen, rig: None, tests: Vec::new() };
    let served = session.serve(&mut control);
    if let Err(error) = &served {
        control.refuse(error);
    }
    session.report(&control);
    served
}

/// Hears what a client was started for.
fn greet(mut control: Control, options: &Options) -> Result<Control, PerfError> {
    let greeted = match control.recv("a client was to send what it measures")? {
        Message::Hello { verb, measure, kind, by_rdma_cm, sweep } => {
            let name = |setup: &Setup, sweep| {
                let by = if setup.by_rdma_cm { " --rdma_cm" } else { "" };
                format!("{}{by}{}", setup.name(), if sweep { " --sweep" } else { "" })
            };
            let own = &options.setup;
            let (server, client) =
                (name(own, false), name(&Setup { verb, measure, kind, by_rdma_cm, ..own.clone() }, sweep));
            match options.sweep.is_some() || server == client {
                true => Ok(()),
                false => Err(PerfError::Differs { server, client }),
            }
        }
        message => Err(control.unexpected(&message, "Hello")),
    };
    match greeted {
        Ok(()) => control.send(&Message::Welcome).map(|()| control),
        Err(error) => {
            control.refuse(&error);
            Err(error)
        }
    }
}

struct Session<'a> {
    options: &'a Options,
    chosen: &'a Chosen,
    rig: Option<Rig>,
    /// What was served, for the report.
    tests: Vec<(Setup, Run, Outcome)>,
}

impl Session<'_> {
    fn serve(&mut self, control: &mut Control) -> Result<(), PerfError> {
        loop {
            match control.recv_within(Some(NEXT_RUN_TIMEOUT), "it was to send what comes next")? {
                Message::Prepare { mut setup, ends } => {
                    setup.events |= self.options.setup.events;
                    // The former one's memory goes first.
                    self.rig = None;
                    let fresh = Fresh::new(&setup, self.chosen)?;
                    let own = fresh.ends().to_vec();
                    prepare::check_ends(&setup, &ends)?;
                    let listening = setup.by_rdma_cm.then(|| Listening::new(self.chosen)).transpose()?;
                    let listens = listening.as_ref().map(Listening::listener).transpose()?;
                    let prepared = Message::Prepared { ends: own, listens };
                    if listening.is_some() {
                        control.send(&prepared)?;
                    }
                    let rig = fresh.connect(&ends, |pairs, chosen, verb| match listening {
                        Some(listening) => listening.accept(pairs, chosen, verb),
                        None => Err(cm::not_listening()),
                    })?;
                    self.rig = Some(rig);
                    if setup.by_rdma_cm {
                        // The receives are posted now.
                        control.send(&Message::Go)?;
                    } else {
                        control.send(&prepared)?;
                    }
                }
                Message::Run(run) => {
                    let Some(rig) = self.rig.as_mut() else {
                        return Err(control.unexpected(&Message::Run(run), "Prepare"));
                    };
                    run.check(&rig.setup)?;
                    let outcome = serve(rig, &run, control)?;
                    self.tests.push((rig.setup.clone(), run, outcome));
                    control.send(&Message::Outcome(outcome))?;
                }
                Message::End => return Ok(()),
                message => return Err(control.unexpected(&message, "Prepare, Run or End")),
            }
        }
    }

    fn report(&self, control: &Control) {
        let peer = control.peer();
        if self.options.json {
            let test = |(setup, run, outcome): &(Setup, Run, Outcome)| {
                json!({
                    "verb": setup.verb, "measure": setup.measure, "connection": setup.kind, "bytes": run.size,
                    "arrived": outcome.arrived, "matches": outcome.matches,
                })
            };
            let tests: Vec<_> = self.tests.iter().map(test).collect();
            transfer_terminal::outln!("{:#}", json!({ "client": peer.to_string(), "tests": tests }));
            return;
        }
        transfer_terminal::outln!("served {peer}: {}", counted(self.tests.len() as u64, "run", "runs"));
    }
}

/// The server's part of one run.
fn serve(rig: &mut Rig, run: &Run, control: &mut Control) -> Result<Outcome, PerfError> {
    let pairs = rig.pairs();
    rig.prepare(run)?;
    control.send(&Message::Go)?;
    let waiting = "the client was measuring";
    let hint = rig.hint();
    let mut watch = Watch::new(control, waiting, hint);
    let mut arrived = None;
    let mut done = None;
    match (rig.setup.verb, rig.setup.measure) {
        (Verb::Send, Measure::Bw) => {
            let (messages, count) = bandwidth::receive(rig, &mut watch)?;
            (done, arrived) = (Some(messages), Some(count));
        }
        (Verb::Send | Verb::Write, Measure::Lat) => {
            arrived = Some(latency::pong(rig, run, &mut watch)?);
            if let Some(message) = watch.said.take() {
                let Message::Done { messages } = message else { return Err(watch.unexpected(&message, "Done")) };
                done = Some(messages);
            }
        }
        _ => {}
    }
    let messages = match done {
        Some(messages) => messages,
        // A number of messages takes as long as it takes; while the client is there, it is measuring.
        None => {
            match control.recv_within(run.seconds.map(|s| NEXT_RUN_TIMEOUT + Duration::from_secs(s.into())), waiting)? {
                Message::Done { messages } => messages,
                message => return Err(control.unexpected(&message, "Done")),
            }
        }
    };
    let matches = match rig.setup.verb {
        Verb::Atomic => messages.len() == pairs && rig.memory.has_counted(&messages)?,
        // Its source is here.
        Verb::Read => true,
        Verb::Write | Verb::Send => rig.has_arrived(run)?,
    };
    Ok(Outcome { arrived, matches })
}

#[cfg(test)]
mod tests {
    use super::super::control::tests::ends;
    use super::super::plan::tests::options;
    use super::super::terms::Kind;
    use super::*;
    use std::io::{Read, Write};

    fn hello(kind: Kind, sweep: bool) -> Message {
        Message::Hello { verb: Verb::Send, measure: Measure::Lat, kind, by_rdma_cm: false, sweep }
    }

    /// What a server answers to a first message, and whether it serves that client.
    fn answer(started: &str, first: &Message) -> (Option<Message>, bool) {
        let (control, mut other) = ends();
        other.write_all(&first.to_bytes().unwrap()).unwrap();
        let serves = greet(control, &options(started)).is_ok();
        let mut bytes = vec![0; 4096];
        let count = other.read(&mut bytes).unwrap();
        (Message::read(&bytes[..count]).unwrap().map(|(message, _)| message), serves)
    }

    // Promise: perf-strangers, seen to fail
    #[test]
    fn clients_that_measure_something_else_are_refused_with_both_sides() {
        assert_eq!(answer("send lat", &hello(Kind::RC, false)), (Some(Message::Welcome), true));
        assert_eq!(answer("write bw --sweep size,qp", &hello(Kind::UD, true)), (Some(Message::Welcome), true));
        let why = |started, first: &Message| match answer(started, first) {
            (Some(Message::Refused { why }), false) => why,
            other => panic!("{other:?}"),
        };
        let of_kind = why("send lat", &hello(Kind::UD, false));
        assert_eq!(of_kind, "the server was started for send lat -c RC, and the client for send lat -c UD");
        assert!(why("send bw -R", &hello(Kind::RC, false)).contains("send bw -c RC --rdma_cm, and"));
        assert!(why("send lat", &hello(Kind::RC, true)).ends_with("send lat -c RC --sweep"));
        assert!(why("send lat", &Message::Go).contains("Go came in place of Hello"));
    }

    // Promise: perf-strangers
    #[test]
    fn silent_stranger_is_given_up() {
        let (control, _stranger) = ends();
        let error = greet(control, &options("send lat")).unwrap_err();
        assert!(matches!(error, PerfError::Silent { .. }), "{error}");
    }
}
