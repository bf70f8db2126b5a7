//! Rounds between two workers for as long as a test lasts. Other events must not disturb them.

use super::{Agent, lock, work};
use crate::order::{ExchangeOrder, Spec, Trouble};
use crate::pattern;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use transfer_client::{BlockingClient, Client, Error, Tensor};

/// How long a worker waits for the other one's tensor.
const TIMEOUT: Duration = crate::WAIT_LIMIT;

/// How long the leader pauses after each round. Without it the two workers and their sidecars keep two processors
/// busy for as long as a test waits.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Progress {
    rounds: u64,
    /// The version of the last finished round.
    last: u64,
    held: bool,
    /// Whether a round is under way.
    busy: bool,
    finish_with: Option<u64>,
    ended: bool,
    trouble: Option<Trouble>,
}

/// One side of the rounds.
pub(super) struct Exchange {
    order: ExchangeOrder,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// The client that this worker uses, blocking or async.
enum AnyClient {
    Blocking(BlockingClient),
    Async(tokio::runtime::Handle, Client),
}

impl Exchange {
    pub(super) fn new(order: ExchangeOrder) -> Exchange {
        let progress = Progress { last: order.first - 1, ..Progress::default() };
        Exchange { order, progress: Mutex::new(progress), changed: Condvar::new() }
    }

    pub(super) fn start(self: Arc<Self>, agent: &Agent) {
        let client = match &agent.asynchronous {
            Some((runtime, client)) => AnyClient::Async(runtime.handle().clone(), client.clone()),
            None => AnyClient::Blocking(agent.client.clone()),
        };
        std::thread::spawn(move || self.run(&client));
    }

    pub(super) fn rounds(&self) -> Result<u64, Trouble> {
        let progress = lock(&self.progress);
        progress.trouble.clone().map_or(Ok(progress.rounds), Err)
    }

    pub(super) fn hold(&self) -> Result<u64, Trouble> {
        let mut progress = lock(&self.progress);
        progress.held = true;
        self.wait_until(progress, |p| !p.busy)
    }

    pub(super) fn finish_with(&self, last: u64) {
        let mut progress = lock(&self.progress);
        progress.finish_with = Some(last);
        progress.held = false;
        self.changed.notify_all();
    }

    pub(super) fn finished(&self) -> Result<u64, Trouble> {
        self.wait_until(lock(&self.progress), |p| p.ended)
    }

    fn wait_until(
        &self,
        mut progress: std::sync::MutexGuard<'_, Progress>,
        done: impl Fn(&Progress) -> bool,
    ) -> Result<u64, Trouble> {
        loop {
            if let Some(trouble) = &progress.trouble {
                return Err(trouble.clone());
            }
            if done(&progress) {
                return Ok(progress.last);
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the next round may begin, and returns its version. Returns `None` after the last round.
    fn next(&self) -> Option<u64> {
        let mut progress = lock(&self.progress);
        while progress.held {
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        let version = progress.last + 1;
        progress.busy = progress.finish_with.is_none_or(|last| version <= last);
        progress.ended = !progress.busy;
        self.changed.notify_all();
        progress.busy.then_some(version)
    }

    fn run(&self, client: &AnyClient) {
        while let Some(version) = self.next() {
            let result = self.round(client, version);
            let mut progress = lock(&self.progress);
            progress.busy = false;
            progress.last = version;
            progress.rounds += 1;
            progress.trouble = result.err();
            let broken = progress.trouble.is_some();
            self.changed.notify_all();
            drop(progress);
            if broken {
                return;
            }
            if self.order.leads {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn round(&self, client: &AnyClient, version: u64) -> Result<(), Trouble> {
        let ExchangeOrder { leads, key, to, len, .. } = &self.order;
        let back = format!("{key}-back");
        if *leads {
            client.push(key, *len, version, to.as_deref())?;
            check(&client.fetch(&back, version)?, *len, version + 1)
        } else {
            check(&client.fetch(key, version)?, *len, version)?;
            client.push(&back, *len, version + 1, None)
        }
    }
}

/// Checks the bytes of a tensor. Leader and follower push different bytes: the follower's are those of the next
/// version.
pub(super) fn check(tensor: &Tensor, len: u64, seed: u64) -> Result<(), Trouble> {
    let (found, right) = (pattern::sum(tensor.as_bytes()), Spec::bytes(len, seed).sum());
    if found == right {
        return Ok(());
    }
    let text = format!("version {} has the checksum {found:#x}, not {right:#x}", tensor.version());
    Err(Trouble { kind: "WrongBytes".into(), fault: "Nobody".into(), can_retry: false, text })
}

impl AnyClient {
    fn push(&self, key: &str, len: u64, seed: u64, to: Option<&str>) -> Result<(), Trouble> {
        let spec = Spec::bytes(len, seed);
        match self {
            AnyClient::Blocking(client) => {
                let mut tensor = client
                    .allocate_wait(pattern::dtype(&spec.dtype), &spec.shape)
                    .timeout(TIMEOUT)
                    .call()
                    .map_err(|e| work::trouble(&e))?;
                let dtype = tensor.dtype();
                pattern::fill(tensor.as_mut_bytes(), dtype, seed);
                let push = client.push_tensor(key, tensor).timeout(TIMEOUT);
                let push = if let Some(to) = to { push.to(to) } else { push };
                push.call().map_err(|e| work::trouble(e.error()))?;
            }
            AnyClient::Async(runtime, client) => {
                let pushed: Result<_, Error> = runtime.block_on(async {
                    let mut tensor =
                        client.allocate_wait(pattern::dtype(&spec.dtype), &spec.shape).timeout(TIMEOUT).await?;
                    let dtype = tensor.dtype();
                    pattern::fill(tensor.as_mut_bytes(), dtype, seed);
                    let push = client.push_tensor(key, tensor).timeout(TIMEOUT);
                    let push = if let Some(to) = to { push.to(to) } else { push };
                    Ok(push.await?)
                });
                pushed.map_err(|e| work::trouble(&e))?;
            }
        }
        Ok(())
    }

    fn fetch(&self, key: &str, version: u64) -> Result<Tensor, Trouble> {
        let fetched = match self {
            AnyClient::Blocking(client) => client.fetch(key).exactly(version).timeout(TIMEOUT).call(),
            AnyClient::Async(runtime, client) => {
                runtime.block_on(async { client.fetch(key).exactly(version).timeout(TIMEOUT).await })
            }
        };
        fetched.map_err(|e| work::trouble(&e))
    }
}
