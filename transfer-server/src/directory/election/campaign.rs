//! What a host does to lead, and to go on leading. No I/O and no clock.

use super::voter::{Ballot, Candidate, Purpose, Vote, Voter};
use super::{Effect, Members};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// Asks the other hosts. Their answers have this number.
type BallotEffect = Effect<(u64, Ballot)>;

/// A request to all hosts.
#[derive(Debug)]
struct Round {
    number: u64,
    asked_at: Instant,
    granted: usize,
    refused: usize,
    /// The version of the members that it names.
    version: u64,
}

#[derive(Debug)]
enum Seat {
    StandsBy,
    Asks { term: u64, round: Round, awaited: BTreeSet<Name>, newest: u64 },
    Leads { term: u64, until: Instant, round: Round },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Campaign {
    me: Candidate,
    /// The place of this host in the list, so that not all ask at once.
    rank: u32,
    hosts: usize,
    lease: Duration,
    voter: Voter,
    seat: Seat,
    /// Before this it does not ask to lead.
    rests_until: Instant,
    /// The highest term of which it was told.
    told: u64,
    rounds: u64,
    /// The host that was the first to promise it in the last round that one did.
    follower: Option<Name>,
    /// It leads, and is to give up; this host may lead before others.
    gives_up: Option<Option<Name>>,
}

impl Campaign {
    pub(crate) fn new(now: Instant, me: Candidate, (rank, hosts): (u32, usize), lease: Duration) -> Campaign {
        let voter = Voter::new(now, lease);
        Campaign {
            me,
            rank,
            hosts,
            lease,
            voter,
            seat: Seat::StandsBy,
            rests_until: now,
            told: 0,
            rounds: 0,
            follower: None,
            gives_up: None,
        }
    }

    /// Answers another host.
    pub(crate) fn vote(&mut self, now: Instant, ballot: &Ballot) -> Vote {
        self.hear_term(ballot.term);
        self.voter.vote(now, ballot)
    }

    /// Gives up soon, if this host leads, so that another one leads at once: if it can, this one, else one that lives.
    pub(crate) fn give_up(&mut self, heir: Option<Name>) {
        if matches!(self.seat, Seat::Leads { .. }) {
            self.gives_up = Some(heir.or_else(|| self.follower.clone()));
        }
    }

    /// Returns the host that leads by its own word.
    pub(crate) fn leads(&self, now: Instant) -> Option<&Name> {
        self.voter.leads(now).map(|candidate| &candidate.node)
    }

    /// Returns who leads, as far as this host knows.
    pub(crate) fn leader(&self, now: Instant) -> Option<&Name> {
        self.voter.leader(now).map(|candidate| &candidate.node)
    }

    /// Returns the highest term that this host has promised.
    pub(crate) fn term(&self) -> u64 {
        self.voter.term()
    }

    /// Does what is due. Call it again at the returned time, when the members change, and after each vote.
    pub(crate) fn poll(&mut self, now: Instant, members: &Members, effects: &mut Vec<BallotEffect>) -> Instant {
        let (asks_at, due_at, gives_up) = (self.asks_at(now), self.due_at(now, members), self.gives_up.take());
        match &mut self.seat {
            Seat::Leads { until, .. } if now >= *until => {
                effects.push(Effect::StandBy);
                self.rest(now);
            }
            Seat::Leads { term, .. } if gives_up.is_some() => {
                let (term, heir) = (*term, gives_up.flatten());
                effects.push(Effect::StandBy);
                self.ask(now, term, Purpose::GiveUp { heir }, members, effects);
                (self.seat, self.follower) = (Seat::StandsBy, None);
                self.rests_until = now + self.lease;
            }
            Seat::Leads { term, round, .. } => {
                // Not before the last round is over: else, while one node after the other attaches, none ever is.
                let is_news = round.version != members.version && round.granted > self.hosts / 2;
                if is_news && now >= round.asked_at + self.lease / 200 || now >= round.asked_at + self.lease / 4 {
                    // A host that has itself asked for votes in a higher term votes only in one above that.
                    let next = if self.told > *term { self.told + 1 } else { *term };
                    let begun = self.ask(now, next, Purpose::GoOn, members, effects);
                    if let (Some((begun, _)), Seat::Leads { term, round, .. }) = (begun, &mut self.seat) {
                        (*term, *round) = (next, begun);
                    }
                }
            }
            Seat::Asks { .. } if now >= due_at => self.rest(now),
            Seat::Asks { .. } => {}
            Seat::StandsBy if now >= asks_at => {
                let term = self.told.max(self.voter.term()) + 1;
                match self.ask(now, term, Purpose::Lead, members, effects) {
                    Some((round, vote)) => {
                        let (awaited, newest) = (vote.members.into_iter().collect(), vote.newest);
                        self.seat = Seat::Asks { term, round, awaited, newest };
                    }
                    None => self.rest(now),
                }
            }
            Seat::StandsBy => {}
        }
        self.decide(effects);
        self.due_at(now, members)
    }

    /// Handles the answer of another host.
    pub(crate) fn answered(&mut self, from: &Name, number: u64, vote: Vote, effects: &mut Vec<BallotEffect>) {
        self.hear_term(vote.term);
        match &mut self.seat {
            Seat::Asks { round, .. } | Seat::Leads { round, .. } if round.number != number => return,
            Seat::Asks { round, .. } | Seat::Leads { round, .. } if !vote.granted => round.refused += 1,
            Seat::Asks { round, .. } | Seat::Leads { round, .. } => {
                if round.granted == 1 {
                    self.follower = Some(from.clone());
                }
                round.granted += 1;
            }
            Seat::StandsBy => return,
        }
        if let Seat::Asks { awaited, newest, .. } = &mut self.seat
            && vote.granted
        {
            awaited.extend(vote.members);
            *newest = (*newest).max(vote.newest);
        }
        self.decide(effects);
    }

    fn hear_term(&mut self, term: u64) {
        // It has to be able to go beyond that.
        if self.voter.believes(term.saturating_add(1)) {
            self.told = self.told.max(term);
        }
    }

    /// Leads, or goes on leading, if more than half of the hosts have promised it.
    fn decide(&mut self, effects: &mut Vec<BallotEffect>) {
        let (most, lasts) = (self.hosts / 2 + 1, self.lease - self.lease / 8);
        match &mut self.seat {
            Seat::Asks { round, .. } if round.granted >= most => {
                let until = round.asked_at + lasts;
                let Seat::Asks { term, round, awaited, newest } = std::mem::replace(&mut self.seat, Seat::StandsBy)
                else {
                    return;
                };
                self.seat = Seat::Leads { term, until, round };
                effects.push(Effect::Lead { until, grants_from: None, awaited, newest });
            }
            Seat::Leads { until, round, .. } if round.granted >= most && *until < round.asked_at + lasts => {
                *until = round.asked_at + lasts;
                effects.push(Effect::Renew { until: *until, known: round.version });
            }
            _ => {}
        }
    }

    /// Votes for itself, and asks the others. `None`: it has promised another one.
    fn ask(
        &mut self,
        now: Instant,
        term: u64,
        purpose: Purpose,
        members: &Members,
        effects: &mut Vec<BallotEffect>,
    ) -> Option<(Round, Vote)> {
        self.rounds += 1;
        let (newest, names) = (members.newest, members.names.clone());
        let ballot = Ballot { term, candidate: self.me.clone(), purpose, lease: self.lease, newest, members: names };
        let vote = self.voter.vote(now, &ballot);
        if !vote.granted {
            return None;
        }
        effects.push(Effect::Ask((self.rounds, ballot)));
        Some((Round { number: self.rounds, asked_at: now, granted: 1, refused: 0, version: members.version }, vote))
    }

    /// Stands by, and lets others ask first.
    fn rest(&mut self, now: Instant) {
        if self.voter.leader(now) == Some(&self.me) {
            self.voter.release(now);
        }
        (self.seat, self.follower) = (Seat::StandsBy, None);
        self.rests_until =
            now + if self.is_heir(now) { Duration::ZERO } else { self.lease.mul_f64(fastrand::f64() / 4.0) };
    }

    fn asks_at(&self, now: Instant) -> Instant {
        let free_at = self.voter.free_at();
        if self.is_heir(now) { free_at } else { free_at.max(self.rests_until) + self.lease / 8 * self.rank }
    }

    /// Returns whether this host comes before the others.
    fn is_heir(&self, now: Instant) -> bool {
        self.voter.heir(now) == Some(&self.me.node)
    }

    fn due_at(&self, now: Instant, members: &Members) -> Instant {
        match &self.seat {
            Seat::StandsBy => self.asks_at(now),
            Seat::Asks { round, .. } => {
                // To an heir a host may say no because it has not heard yet that the one that led has given up.
                let is_lost = round.refused > (self.hosts - 1) / 2;
                round.asked_at + if is_lost && self.is_heir(now) { self.lease / 100 } else { self.lease / 4 }
            }
            Seat::Leads { until, round, .. } => {
                let is_news = round.version != members.version && round.granted > self.hosts / 2;
                let next = if is_news { self.lease / 200 } else { self.lease / 4 };
                (*until).min(round.asked_at + next)
            }
        }
    }
}

#[cfg(test)]
#[path = "campaign_tests.rs"]
mod tests;
