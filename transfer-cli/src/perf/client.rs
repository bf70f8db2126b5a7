//! The client: says what is measured, measures it, and has the server check what has arrived.

use super::cm;
use super::control::Control;
use super::error::PerfError;
use super::figures::{Latency, Rate};
use super::message::Message;
use super::options::Options;
use super::rig::{Fresh, Rig};
use super::terms::{Measure, Run, Setup, Verb};
use super::wait::Watch;
use super::{bandwidth, latency, prepare};
use transfer_verbs::choose::Chosen;

/// The figures of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    /// Bytes of a message.
    pub(super) size: u64,
    /// The figures.
    pub(super) figures: Figures,
    /// Messages that did not arrive, where they may be lost and are counted.
    pub(super) lost: Option<u64>,
    /// Whether the bytes that should have arrived have arrived. Always so where nothing may be lost.
    pub(super) matches: bool,
}

/// A rate, or a distribution of times.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub(super) enum Figures {
    Bw(Rate),
    Lat(Latency),
}

impl Figures {
    /// Whether its rate is higher, or its time shorter.
    pub(super) fn is_better_than(&self, other: &Figures) -> bool {
        match (self, other) {
            (Figures::Bw(own), Figures::Bw(other)) => own.average > other.average,
            (Figures::Lat(own), Figures::Lat(other)) => own.typical < other.typical,
            _ => false,
        }
    }
}

/// A client with its server.
pub(super) struct Client<'a> {
    control: Control,
    chosen: &'a Chosen,
    rig: Option<Rig>,
    seed: u8,
}

impl<'a> Client<'a> {
    /// Connects to a server that was started for the same.
    pub(super) fn connect(options: &Options, host: &str, chosen: &'a Chosen) -> Result<Client<'a>, PerfError> {
        let mut control = Control::connect(host, options.port)?;
        let (Setup { verb, measure, kind, by_rdma_cm, .. }, sweep) = (options.setup.clone(), options.sweep.is_some());
        control.send(&Message::Hello { verb, measure, kind, by_rdma_cm, sweep })?;
        match control.recv("the server was to answer")? {
            Message::Welcome => Ok(Client { control, chosen, rig: None, seed: 0 }),
            message => Err(control.unexpected(&message, "Welcome")),
        }
    }

    /// Measures one size. The queue pairs are made anew if the set-up differs from the one before.
    pub(super) fn measure(
        &mut self,
        setup: &Setup,
        size: u64,
        messages: Option<u64>,
        seconds: Option<u32>,
    ) -> Result<Row, PerfError> {
        self.seed = self.seed.wrapping_add(1);
        let run = Run { size, messages, seconds, seed: self.seed };
        let row = self.set_up(setup).and_then(|()| self.run(&run));
        if let Err(error) = &row
            && !matches!(error, PerfError::Refused { .. })
        {
            self.control.refuse(error);
        }
        row
    }

    /// Ends the session.
    pub(super) fn end(mut self) -> Result<(), PerfError> {
        self.control.send(&Message::End)
    }

    fn set_up(&mut self, setup: &Setup) -> Result<(), PerfError> {
        if self.rig.as_ref().is_some_and(|rig| rig.setup == *setup) {
            return Ok(());
        }
        self.rig = None;
        let fresh = Fresh::new(setup, self.chosen)?;
        self.control.send(&Message::Prepare { setup: setup.clone(), ends: fresh.ends().to_vec() })?;
        let (ends, listens) = match self.control.recv("the server was to make its queue pairs")? {
            Message::Prepared { ends, listens } => (ends, listens),
            message => return Err(self.control.unexpected(&message, "Prepared")),
        };
        prepare::check_ends(setup, &ends)?;
        let rig = fresh.connect(&ends, |pairs, chosen, verb| match listens {
            Some(listener) => cm::connect(listener, pairs, chosen, verb),
            None => Err(cm::not_listening()),
        })?;
        if setup.by_rdma_cm {
            self.expect_go("the server was to accept the connections")?;
        }
        self.rig = Some(rig);
        Ok(())
    }

    fn expect_go(&mut self, waiting: &'static str) -> Result<(), PerfError> {
        match self.control.recv(waiting)? {
            Message::Go => Ok(()),
            message => Err(self.control.unexpected(&message, "Go")),
        }
    }

    fn run(&mut self, run: &Run) -> Result<Row, PerfError> {
        let Some(mut rig) = self.rig.take() else { return Err(PerfError::Unprepared) };
        run.check(&rig.setup)?;
        // Before the server sends: an answer may come at once.
        rig.prepare(run)?;
        self.control.send(&Message::Run(*run))?;
        self.expect_go("the server was to begin")?;
        let mut watch = Watch::new(&mut self.control, "messages were under way", rig.hint());
        let (messages, figures) = match rig.setup.measure {
            Measure::Bw => {
                let sent = bandwidth::send(&mut rig, run, &mut watch)?;
                let total = bandwidth::total(&sent.messages);
                (sent.messages, Some(Figures::Bw(Rate::new(run.size, total, sent.elapsed, &sent.times))))
            }
            Measure::Lat => {
                let (count, samples) = latency::ping(&mut rig, run, &mut watch)?;
                (vec![count], samples.latency().map(Figures::Lat))
            }
        };
        let total = bandwidth::total(&messages);
        self.control.send(&Message::Done { messages })?;
        let outcome = match self.control.recv("the server was to check what has arrived")? {
            Message::Outcome(outcome) => outcome,
            message => return Err(self.control.unexpected(&message, "Outcome")),
        };
        let here = match (rig.setup.verb, rig.setup.is_ping_pong()) {
            (Verb::Read, _) | (_, true) => rig.has_arrived(run)?,
            _ => true,
        };
        let lost = outcome.arrived.map(|arrived| total.saturating_sub(arrived));
        let matches = outcome.matches && here;
        if !matches && rig.setup.is_reliable() {
            return Err(PerfError::NotVerified { test: rig.setup.name(), size: run.size });
        }
        self.rig = Some(rig);
        let figures = figures.ok_or(PerfError::Unmeasured)?;
        Ok(Row { size: run.size, figures, lost, matches })
    }
}
