//! The tasks of a process with several sessions: fetches that wait, the pushes that answer them, and their end.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use serde::{Deserialize, Serialize};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use transfer_client::{Client, DType, Error, NodeConfig, Tensor, TensorMut};

/// The tensors of one call, which fit into a session's ring.
const AT_ONCE: u64 = 512;

/// Keys of 32 bytes with numbers: `first`, `first + stride`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// The first number.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// The distance between neighbours.
    pub stride: u64,
    /// How often each comes, one time behind the other. They are part of `count`.
    pub repeat: u64,
}

impl Numbered {
    /// Calls of at most [`AT_ONCE`] keys each.
    fn calls(self) -> impl Iterator<Item = Vec<String>> {
        let key = move |at: u64| format!("bench/tensors/{:018}", self.first + at / self.repeat.max(1) * self.stride);
        (0..self.count).step_by(AT_ONCE as usize).map(move |from| {
            let to = self.count.min(from + AT_ONCE);
            (from..to).map(key).collect()
        })
    }
}

/// A task of a crowd.
#[derive(Debug, Serialize, Deserialize)]
pub enum CrowdTask {
    /// Begins a session more, with a sidecar that runs already.
    Join {
        /// The socket.
        socket: PathBuf,
        /// The worker's name.
        name: String,
        /// The arena, in bytes.
        arena_bytes: u64,
    },
    /// Starts a sidecar inside of the process, and begins a session with it.
    Embed {
        /// The settings of its node: keys of the configuration file, and values. The node's name is the worker's.
        settings: Vec<(String, String)>,
        /// The worker's name.
        name: String,
        /// The arena, in bytes.
        arena_bytes: u64,
    },
    /// Pushes tensors of 64 bytes, and waits until they are published.
    Push {
        /// The session.
        session: usize,
        /// The keys.
        keys: Numbered,
        /// The version of each.
        version: u64,
    },
    /// Begins to fetch. The answer comes when all is asked for.
    Wait {
        /// The session.
        session: usize,
        /// The keys.
        keys: Numbered,
        /// The version of each.
        version: u64,
    },
    /// Waits for all that is being fetched, and drops it.
    Take,
}

/// The sessions of a process, and what they are fetching.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    runtime: Option<Runtime>,
    clients: Vec<Client>,
    fetching: Vec<JoinHandle<Vec<Result<Tensor, Error>>>>,
}

impl Crowd {
    pub(super) fn perform(&mut self, task: CrowdTask) -> Result<Answer, Failed> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
        };
        let runtime = self.runtime.insert(runtime).handle().clone();
        runtime.block_on(async {
            match task {
                CrowdTask::Join { socket, name, arena_bytes } => {
                    let connect = Client::connect(&socket).name(name).arena_bytes(arena_bytes);
                    self.clients.push(connect.timeout(CALL_TIMEOUT).await?);
                }
                CrowdTask::Embed { settings, name, arena_bytes } => {
                    let config =
                        settings.iter().fold(NodeConfig::new(&name), |config, (key, value)| config.set(key, value));
                    let connect = Client::embedded_with(config).name(name).arena_bytes(arena_bytes);
                    self.clients.push(connect.timeout(CALL_TIMEOUT).await?);
                }
                CrowdTask::Push { session, keys, version } => push(self.client(session)?, keys, version).await?,
                CrowdTask::Wait { session, keys, version } => {
                    let begun = wait(self.client(session)?, keys, version).await?;
                    self.fetching.extend(begun);
                }
                CrowdTask::Take => {
                    for fetching in self.fetching.drain(..) {
                        fetching.await?.into_iter().try_for_each(|tensor| tensor.map(drop))?;
                    }
                }
            }
            Ok(Answer::Done)
        })
    }

    fn client(&self, session: usize) -> Result<&Client, Failed> {
        Ok(self.clients.get(session).ok_or("the crowd has no such session")?)
    }
}

async fn push(client: &Client, keys: Numbered, version: u64) -> Result<(), Failed> {
    for keys in keys.calls() {
        let mut tensors: Vec<(String, TensorMut)> = Vec::with_capacity(keys.len());
        for key in keys {
            tensors.push((key, client.allocate_wait(DType::F32, [4, 4]).timeout(CALL_TIMEOUT).await?));
        }
        let pushed = client.push_many(tensors).version(version).timeout(CALL_TIMEOUT).await;
        pushed.into_iter().try_for_each(|pushed| pushed.map(drop)).map_err(Error::from)?;
    }
    Ok(())
}

async fn wait(
    client: &Client,
    keys: Numbered,
    version: u64,
) -> Result<Vec<JoinHandle<Vec<Result<Tensor, Error>>>>, Failed> {
    let mut begun = Vec::new();
    for keys in keys.calls() {
        let fetch = client.fetch_many(keys).exactly(version).timeout(CALL_TIMEOUT).into_future();
        let (tell, told) = oneshot::channel();
        begun.push(tokio::spawn(async move {
            let (mut fetch, mut tell) = (pin!(fetch), Some(tell));
            poll_fn(|cx| {
                let polled = fetch.as_mut().poll(cx);
                // The first look at a call puts all of it into the ring.
                if let Some(tell) = tell.take() {
                    let _ = tell.send(());
                }
                polled
            })
            .await
        }));
        told.await?;
    }
    Ok(begun)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_divided_into_calls() {
        let calls: Vec<_> = Numbered { first: 5, count: 1030, stride: 10, repeat: 1 }.calls().collect();
        assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), [512, 512, 6]);
        assert_eq!((calls[0][0].len(), &*calls[0][1]), (32, "bench/tensors/000000000000000015"));
        assert_eq!(calls[2][5], format!("bench/tensors/{:018}", 5 + 1029 * 10));
        assert_eq!(Numbered { first: 0, count: 0, stride: 1, repeat: 1 }.calls().count(), 0);
        let twice: Vec<_> = Numbered { first: 5, count: 4, stride: 1, repeat: 2 }.calls().flatten().collect();
        assert!(twice[0] == twice[1] && twice[1] < twice[2] && twice[2] == twice[3], "{twice:?}");
    }
}
