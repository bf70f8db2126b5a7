//! Landing slots for many tensors in one call: the messages of `PrepareBuffers`, and the call.

use super::links::Links;
use crate::engine::EngineCommand;
use crate::security::Caller;
use crate::text;
use std::time::Duration;
use tonic::Status;
use transfer_core::fabric::LinkId;
use transfer_core::memory::{RailKeys, RemoteKey, RemoteSlice};
use transfer_core::op::{Failure, FailureCode};
use transfer_core::protocol::{BufferAnswer, BufferAsk, MAX_ASKS};
use transfer_core::tensor::{DType, Key, Name, Shape, TensorMeta};
use transfer_core::wire::landing::{HEADER_BYTES, SlotGrant, SlotNumber};
use transfer_proto::v1;
use v1::peering_client::PeeringClient;

/// The time-out of the peer's answer. The peer's pool may be full for a while.
const CALL_DEADLINE: Duration = Duration::from_secs(12);

/// The time for which a call waits until a link that the peer names is up here, and the interval of checks. Each side
/// learns separately that a link is up.
const LINK_DEADLINE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Links {
    /// Asks a peer for the landing slots that the engine has requested.
    pub(crate) fn prepare_buffers(&self, link: LinkId, peer: Name, asks: Vec<BufferAsk>) {
        let links = self.clone();
        drop(tokio::spawn(async move {
            let command = match links.call_prepare(link, &peer, &asks).await {
                Ok(answers) => EngineCommand::BuffersPrepared { link, answers },
                Err(why) => EngineCommand::PrepareFailed { link, asks, why },
            };
            // An engine that has ended needs no answer.
            let _ = links.engine().send(command);
        }));
    }

    async fn call_prepare(&self, link: LinkId, peer: &Name, asks: &[BufferAsk]) -> Result<Vec<BufferAnswer>, String> {
        let their_link = self.number_at_peer(link).ok_or_else(|| format!("{link} to node {peer} is gone"))?;
        let channel = self.channel_to(peer).await?;
        let me = self.identity();
        let request = v1::PrepareBuffersRequest {
            node: me.node.to_string(),
            incarnation: me.incarnation,
            link: their_link,
            buffers: asks.iter().map(to_message).collect(),
        };
        let mut client = PeeringClient::new(channel);
        let answer = tokio::time::timeout(CALL_DEADLINE, client.prepare_buffers(request)).await;
        let answer = answer.map_err(|_| format!("node {peer} did not answer within {CALL_DEADLINE:?}"))?;
        let answer = answer.map_err(|status| format!("node {peer}: {}", text::status(&status)))?.into_inner();
        answer.buffers.into_iter().map(|b| from_answer(b).map_err(|why| format!("node {peer}: {why}"))).collect()
    }

    /// Answers a peer's call for landing slots.
    pub(crate) async fn buffers_wanted(
        &self,
        request: v1::PrepareBuffersRequest,
        caller: &Caller,
    ) -> Result<v1::PrepareBuffersResponse, Status> {
        let peer = Name::new(&request.node).map_err(|e| Status::invalid_argument(format!("node: {e}")))?;
        if request.buffers.len() > MAX_ASKS {
            let found = request.buffers.len();
            return Err(Status::invalid_argument(format!("{found} buffers in one call, the limit is {MAX_ASKS}")));
        }
        let link = LinkId(request.link);
        let asks: Result<Vec<_>, _> = request.buffers.into_iter().map(from_message).collect();
        let asks = asks.map_err(Status::invalid_argument)?;
        let until = tokio::time::Instant::now() + LINK_DEADLINE;
        let answers = loop {
            let answers = match self.is_made_with(link, &peer, caller) {
                Some(true) => {
                    let asked = self.engine().prepare_buffers(link, peer.clone(), request.incarnation, asks.clone());
                    asked.await.map_err(|e| Status::unavailable(e.to_string()))?
                }
                Some(false) => {
                    let why = format!(
                        "{link} to node {peer} was made by a caller who has proved something else: call as that one did"
                    );
                    return Err(Status::permission_denied(why));
                }
                None => None,
            };
            match answers {
                Some(answers) => break answers,
                None if tokio::time::Instant::now() < until => tokio::time::sleep(LOOK_AGAIN).await,
                None => {
                    return Err(Status::not_found(format!("there is no {link} to node {peer} in that incarnation")));
                }
            }
        };
        Ok(v1::PrepareBuffersResponse { buffers: answers.into_iter().map(to_answer).collect() })
    }
}

fn to_message(ask: &BufferAsk) -> v1::BufferRequest {
    v1::BufferRequest {
        flow: ask.flow,
        key: ask.key.to_string(),
        tensor: Some(v1::TensorDescriptor {
            dtype: i32::from(ask.meta.dtype() as u8),
            shape: ask.meta.shape().dims().to_vec(),
        }),
        target_worker: ask.target.to_string(),
        owner: ask.owner.to_string(),
        tenant: ask.tenant.to_string(),
    }
}

fn from_message(m: v1::BufferRequest) -> Result<BufferAsk, String> {
    let tensor = m.tensor.ok_or_else(|| format!("flow {:#x} has no tensor", m.flow))?;
    let dtype = u8::try_from(tensor.dtype).ok().and_then(DType::from_wire);
    let dtype =
        dtype.ok_or_else(|| format!("flow {:#x} has element type {}, known are 1 to 21", m.flow, tensor.dtype))?;
    let shape = Shape::new(&tensor.shape).map_err(|e| e.to_string())?;
    Ok(BufferAsk {
        flow: m.flow,
        key: Key::new(&m.key).map_err(|e| e.to_string())?,
        meta: TensorMeta::new(dtype, shape).map_err(|e| e.to_string())?,
        target: Name::new(&m.target_worker).map_err(|e| format!("target worker: {e}"))?,
        owner: Name::new(&m.owner).map_err(|e| format!("owner: {e}"))?,
        tenant: Name::new(&m.tenant).map_err(|e| format!("tenant: {e}"))?,
    })
}

fn to_answer((flow, answer): BufferAnswer) -> v1::BufferResponse {
    match answer {
        Ok(slots) => v1::BufferResponse { flow, slots: slots.iter().map(to_slot).collect(), failure: None },
        Err(Failure { code, text }) => {
            let failure = Some(v1::Failure { code: u32::from(code as u16), text });
            v1::BufferResponse { flow, slots: Vec::new(), failure }
        }
    }
}

fn to_slot(slot: &SlotGrant) -> v1::LandingSlot {
    let RemoteSlice { address, len, keys } = slot.remote;
    let keys = keys.all().into_iter().zip(0..).filter_map(|(key, rail)| Some(v1::RailKey { rail, key: key?.0 }));
    let remote = v1::RemoteSlice { address, len_bytes: len, keys: keys.collect() };
    v1::LandingSlot { immediate: slot.number.0, remote: Some(remote) }
}

fn from_answer(m: v1::BufferResponse) -> Result<BufferAnswer, String> {
    if let Some(failure) = m.failure {
        let code = FailureCode::from_wire(u16::try_from(failure.code).unwrap_or(u16::MAX));
        return Ok((m.flow, Err(Failure::new(code, failure.text))));
    }
    let slots: Result<Vec<_>, String> = m.slots.into_iter().map(|slot| from_slot(slot, m.flow)).collect();
    Ok((m.flow, Ok(slots?)))
}

fn from_slot(slot: v1::LandingSlot, flow: u32) -> Result<SlotGrant, String> {
    let remote = slot.remote.ok_or_else(|| format!("a slot of flow {flow:#x} has no range"))?;
    let capacity = remote.len_bytes.checked_sub(HEADER_BYTES);
    let capacity = capacity.filter(|c| *c < 1 << 63).ok_or_else(|| {
        format!("a slot of flow {flow:#x} has {} bytes, it needs {HEADER_BYTES} to 2^63", remote.len_bytes)
    })?;
    let mut keys = [None; RailKeys::MAX_RAILS];
    for v1::RailKey { rail, key } in remote.keys {
        let place = keys.get_mut(rail as usize);
        let place =
            place.ok_or_else(|| format!("a slot of flow {flow:#x} has a key for rail {rail}; there are 0 to 3"))?;
        if place.replace(RemoteKey(key)).is_some() {
            return Err(format!("a slot of flow {flow:#x} has two keys for rail {rail}; one is right"));
        }
    }
    let keys = RailKeys::new(&keys).ok_or_else(|| format!("a slot of flow {flow:#x} has no key"))?;
    let remote = RemoteSlice { address: remote.address, len: remote.len_bytes, keys };
    Ok(SlotGrant { number: SlotNumber(slot.immediate), capacity, remote, body: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> (BufferAsk, [BufferAnswer; 2]) {
        let ask = BufferAsk {
            flow: 7,
            key: Key::new("grad/0").unwrap(),
            meta: TensorMeta::of(DType::BF16, &[3, 0, 5]).unwrap(),
            target: Name::new("ps").unwrap(),
            owner: Name::new("worker-0").unwrap(),
            tenant: Name::new("1001").unwrap(),
        };
        let keys = RailKeys::new(&[None, Some(RemoteKey(9)), Some(RemoteKey(0))]).unwrap();
        let remote = RemoteSlice { address: 4096, len: 64 + 128, keys };
        let slot = SlotGrant { number: SlotNumber(5), capacity: 128, remote, body: Vec::new() };
        (ask, [(7, Ok(vec![slot.clone(), slot])), (8, Err(Failure::new(FailureCode::TooLarge, "too large")))])
    }

    #[test]
    fn requests_and_answers_read_back() {
        let (ask, answers) = examples();
        assert_eq!(from_message(to_message(&ask)), Ok(ask.clone()));
        for answer in answers {
            assert_eq!(from_answer(to_answer(answer.clone())), Ok(answer));
        }
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_prepare_buffers() {
        use prost::Message;
        let (ask, answers) = examples();
        let examples = std::iter::once(to_message(&ask).encode_to_vec());
        let examples = examples.chain(answers.map(|answer| to_answer(answer).encode_to_vec()));
        // Requests with an invalid element type or shape, which random bytes would not find.
        let refused = [(300, vec![2]), (1, vec![1; 100])].map(|(dtype, shape)| {
            let tensor = Some(v1::TensorDescriptor { dtype, shape });
            v1::BufferRequest { tensor, ..to_message(&ask) }.encode_to_vec()
        });
        let examples = examples.chain(refused);
        transfer_fuzz::Target::new("grpc-prepare-buffers", examples).run(|bytes| {
            let asked = v1::BufferRequest::decode(bytes).map_err(|_| "no request".to_owned()).and_then(from_message);
            if let Ok(ask) = &asked {
                assert_eq!(from_message(to_message(ask)).as_ref(), Ok(ask));
            }
            let told = v1::BufferResponse::decode(bytes).map_err(|_| "no response".to_owned()).and_then(from_answer);
            if let Ok(answer) = &told {
                assert_eq!(from_answer(to_answer(answer.clone())).as_ref(), Ok(answer));
            }
            format!("{:?}; {:?}", asked.map(|_| "an ask"), told.map(|_| "an answer"))
        });
    }

    #[test]
    fn invalid_values_are_named() {
        let mut m = v1::BufferRequest { flow: 1, key: "k".into(), ..Default::default() };
        assert!(from_message(m.clone()).unwrap_err().contains("no tensor"));
        m.tensor = Some(v1::TensorDescriptor { dtype: 99, shape: vec![] });
        assert!(from_message(m).unwrap_err().contains("99"));
        let refused = |len_bytes, keys| {
            let remote = Some(v1::RemoteSlice { address: 0, len_bytes, keys });
            from_slot(v1::LandingSlot { immediate: 0, remote }, 1).unwrap_err()
        };
        assert!(refused(63, vec![]).contains("63"));
        assert!(refused(64, vec![]).contains("no key"));
        assert!(refused(64, vec![v1::RailKey { rail: 4, key: 1 }]).contains("rail 4"));
        assert!(refused(64, vec![v1::RailKey { rail: 2, key: 1 }; 2]).contains("two keys for rail 2"));
    }
}
