//! The tasks that ask a coordinator: of a host, and of another node.

use super::Coordinator;
use super::claimant::{Answer, Request};
use super::outlook::Outlook;
use crate::directory::election::{Members, Takeover};
use crate::directory::host::Directory;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// How long a node that hosts nothing waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Runs until the directory is closed and its lease has ended.
pub(in crate::directory) async fn run(directory: Directory, coordinator: Coordinator, outlook: Outlook) {
    let (mut effects, mut members) = (Vec::new(), Members::default());
    let mut asked: Option<Pin<Box<dyn Future<Output = Answer> + Send + '_>>> = None;
    loop {
        let changed = directory.changed();
        directory.update(&mut members);
        let is_closed = directory.is_closed();
        let polled = directory.claimant(|claimant| {
            if is_closed {
                claimant.end();
            }
            let due = claimant.poll(Instant::now(), &members, &mut effects);
            (due, claimant.request_timeout(), claimant.has_ended())
        });
        let Some((due, timeout, has_ended)) = polled else { return };
        for effect in effects.drain(..) {
            if let Some(request) = directory.take_effect(effect) {
                let coordinator = &coordinator;
                asked = Some(Box::pin(async move { coordinator.ask(&request, timeout).await }));
            }
        }
        if has_ended {
            return directory.has_ended();
        }
        let due = directory.keep().map_or(due, |settled| settled.min(due));
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = changed => {}
            answer = answer_of(&mut asked) => {
                asked = None;
                match &answer {
                    Answer::Failed(why) => outlook.fails(why.clone()),
                    Answer::Seen(seen) => outlook.tell(seen.clone()),
                    _ => {}
                }
                directory.claimant(|claimant| claimant.answered(Instant::now(), answer, &mut effects));
                // Before the members are read: a host that begins to lead awaits those that it has just read.
                effects.drain(..).for_each(|effect| drop(directory.take_effect(effect)));
                directory.tell_leader();
            }
        }
    }
}

async fn answer_of(asked: &mut Option<Pin<Box<dyn Future<Output = Answer> + Send + '_>>>) -> Answer {
    match asked {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

/// Looks who leads: now and then, and whenever this node wants to know it. Ends with the runtime.
pub(in crate::directory) async fn watch(coordinator: Coordinator, outlook: Outlook, takeover: Takeover) {
    let interval = coordinator.look_interval(takeover);
    let mut failures = 0_u32;
    loop {
        match coordinator.ask(&Request::Look, TIMEOUT).await {
            Answer::Seen(seen) => {
                failures = 0;
                outlook.tell(seen);
            }
            Answer::Failed(why) => {
                failures = failures.saturating_add(1);
                outlook.fails(why);
            }
            _ => {}
        }
        tokio::time::sleep(coordinator.look_pause(failures).mul_f64(jitter())).await;
        let _ = tokio::time::timeout(interval.mul_f64(jitter()), outlook.wanted()).await;
    }
}

/// From a half to one, so nodes that began together do not go on together.
fn jitter() -> f64 {
    0.5 + fastrand::f64() / 2.0
}
