//! The task of a host that stands for election, and its calls to the other hosts.

use super::Members;
use super::voter::{Ballot, Vote};
use crate::directory::connection::{Place, Reached};
use crate::directory::convert;
use crate::directory::host::Directory;
use crate::text;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// Runs until the directory is closed. `others` are the other hosts.
pub(in crate::directory) async fn run(directory: Directory, others: Vec<(Name, Place)>, lease: Duration) {
    let (answer, mut answers) = mpsc::channel(64);
    let (ballots, ballot) = watch::channel(None);
    for (node, place) in others {
        tokio::spawn(call(node, place, ballot.clone(), answer.clone(), lease));
    }
    let (mut effects, mut members) = (Vec::new(), Members::default());
    while !directory.is_closed() {
        let changed = directory.changed();
        directory.update(&mut members);
        let due = directory.campaign(|campaign| campaign.poll(Instant::now(), &members, &mut effects));
        let Some(due) = due else { return };
        for effect in effects.drain(..) {
            if let Some(asks) = directory.take_effect(effect) {
                let _ = ballots.send(Some(asks));
            }
        }
        let due = directory.keep().map_or(due, |settled| settled.min(due));
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = changed => {}
            Some((node, number, vote)) = answers.recv() => {
                directory.campaign(|campaign| campaign.answered(&node, number, vote, &mut effects));
            }
        }
    }
}

/// Asks one of the other hosts, and passes on what it answers. What was not sent before the next ballot is not sent.
async fn call(
    node: Name,
    place: Place,
    mut ballots: watch::Receiver<Option<(u64, Ballot)>>,
    answer: mpsc::Sender<(Name, u64, Vote)>,
    lease: Duration,
) {
    let (mut line, mut why_not) = (None, String::new());
    while ballots.changed().await.is_ok() {
        let Some((number, ballot)) = ballots.borrow_and_update().clone() else { continue };
        let asked = async {
            let client = match &mut line {
                Some(client) => client,
                None => match place.reach().await? {
                    Reached::Remote(client) => line.insert(client),
                    Reached::Local(host) => return host.vote(&ballot).map_err(tonic::Status::from),
                },
            };
            Ok(convert::vote(client.vote(convert::ballot(ballot)).await?.into_inner()))
        };
        let heard = match tokio::time::timeout(lease / 2, asked).await {
            Ok(heard) => heard.map_err(|status| text::status(&status)),
            Err(_) => Err(format!("no answer within {:?}", lease / 2)),
        };
        match heard {
            Ok(vote) => {
                why_not.clear();
                // The task may have ended.
                let _ = answer.send((node.clone(), number, vote)).await;
            }
            Err(why) => {
                line = None;
                if why != why_not {
                    tracing::warn!(host = %node, why, "another host of the directory does not vote");
                    why_not = why;
                }
            }
        }
    }
}
