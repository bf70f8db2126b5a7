//! Queue pairs, whose state and kind are their type.
//!
//! - `inner`: the library's object.
//! - `step`: the attributes of a transition, and the one that is to blame for a refusal.
//! - `unreliable`: the transitions of unreliable queue pairs and of those for datagrams.

use std::fmt;
use std::marker::PhantomData;

use crate::{
    CompletionQueue, Connected, InitAttributes, ModifyError, PostError, ProtectionDomain, ReceiveAttributes,
    ReceiveList, Reliable, SendAttributes, SendList, SharedReceiveQueue, Transition, Transport, VerbsError, cm,
};

mod inner;
mod step;
mod unreliable;

use inner::QueuePairInner;
use step::{Step, Wrong};

/// The options of a queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// The completion queue of work requests.
    pub send_queue: CompletionQueue,
    /// The completion queue of receives; it may be the same.
    pub receive_queue: CompletionQueue,
    /// The shared receive queue, instead of the queue pair's own.
    pub shared_receives: Option<SharedReceiveQueue>,
    /// The most work requests in flight.
    pub max_send: u32,
    /// The most receives that can be waiting; 0 with `shared_receives`.
    pub max_receive: u32,
    /// The most elements of one work request.
    pub max_send_elements: u32,
    /// The most elements of one receive.
    pub max_receive_elements: u32,
    /// The most bytes that a work request itself can carry.
    pub max_inline: u32,
}

/// New: it accepts no posts.
#[derive(Debug)]
pub enum Reset {}
/// It accepts receives.
#[derive(Debug)]
pub enum Init {}
/// It knows its peer, and receives.
#[derive(Debug)]
pub enum ReadyToReceive {}
/// It sends and receives.
#[derive(Debug)]
pub enum ReadyToSend {}
/// It flushes its requests, and accepts no more.
#[derive(Debug)]
pub enum Errored {}

/// The states, as types.
pub trait QueuePairState: sealed::Sealed + fmt::Debug + 'static {}
/// The states in which receives may be posted.
pub trait Receives: QueuePairState {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! states {
    ($($state:ty),*; receives: $($receives:ty),*) => {
        $(impl sealed::Sealed for $state {} impl QueuePairState for $state {})*
        $(impl Receives for $receives {})*
    };
}
states!(Reset, Init, ReadyToReceive, ReadyToSend, Errored; receives: Init, ReadyToReceive, ReadyToSend);

/// A queue pair of the kind `T` in the state `S`. The device can also move it to its error state by itself. A failed completion shows
/// that; the type does not.
///
/// Drop the windows that are bound to a queue pair before the queue pair: some devices (rxe) take a minute to destroy
/// a queue pair with a bound window, and leave the window open.
///
/// Posts before the right state do not compile:
///
/// ```compile_fail
/// # use transfer_verbs::{QueuePair, ReadyToReceive, SendList};
/// fn too_early(pair: &mut QueuePair<ReadyToReceive>, list: &mut SendList) {
///     pair.post_send(list);
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::{QueuePair, ReceiveList, Reset};
/// fn too_early(pair: &mut QueuePair<Reset>, list: &mut ReceiveList) {
///     pair.post_receive(list);
/// }
/// ```
///
/// No state can be skipped, and a former state is gone:
///
/// ```compile_fail
/// # use transfer_verbs::{QueuePair, Reset, SendAttributes};
/// fn leap(pair: QueuePair<Reset>, attributes: &SendAttributes) {
///     pair.ready_to_send(attributes);
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::{InitAttributes, QueuePair, Reset};
/// fn twice(pair: QueuePair<Reset>, attributes: &InitAttributes) {
///     pair.init(attributes);
///     pair.init(attributes);
/// }
/// ```
///
/// One thread posts at a time, and there is one owner:
///
/// ```compile_fail
/// # use transfer_verbs::{QueuePair, ReadyToSend, SendList};
/// fn shared(pair: &QueuePair<ReadyToSend>, list: &mut SendList) {
///     pair.post_send(list);
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::{QueuePair, ReadyToSend};
/// fn copied(pair: &QueuePair<ReadyToSend>) -> QueuePair<ReadyToSend> {
///     pair.clone()
/// }
/// ```
///
/// A list of another kind is refused, and so is a step that a kind does not have:
///
/// ```compile_fail
/// # use transfer_verbs::{QueuePair, ReadyToSend, SendList, Unreliable};
/// fn of_another_kind(pair: &mut QueuePair<ReadyToSend, Unreliable>, list: &mut SendList) {
///     pair.post_send(list);
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::{Datagram, Init, QueuePair, ReceiveAttributes};
/// fn connected(pair: QueuePair<Init, Datagram>, attributes: &ReceiveAttributes) {
///     pair.ready_to_receive(attributes);
/// }
/// ```
///
/// Allowed:
///
/// ```
/// # use transfer_verbs::{PostError, QueuePair, ReadyToSend, ReceiveList, SendList};
/// fn in_time(
///     pair: &mut QueuePair<ReadyToSend>,
///     receives: &mut ReceiveList,
///     sends: &mut SendList,
/// ) -> Result<(), PostError> {
///     pair.post_receive(receives)?;
///     pair.post_send(sends)
/// }
///
/// # use transfer_verbs::{Datagram, Init, ModifyError};
/// fn for_datagrams(
///     pair: QueuePair<Init, Datagram>,
///     sends: &mut SendList<Datagram>,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let mut pair = pair.ready_to_receive()?.ready_to_send(0)?;
///     Ok(pair.post_send(sends)?)
/// }
/// ```
pub struct QueuePair<S: QueuePairState, T: Transport = Reliable> {
    inner: Box<QueuePairInner>,
    types: PhantomData<(S, T)>,
}

/// A queue pair that did not change its state, and the reason.
#[derive(Debug)]
pub struct Refused<S: QueuePairState, T: Transport = Reliable> {
    /// The unchanged queue pair.
    pub queue_pair: QueuePair<S, T>,
    /// The reason.
    pub error: Box<ModifyError>,
}

impl<S: QueuePairState, T: Transport> From<Refused<S, T>> for ModifyError {
    fn from(refused: Refused<S, T>) -> Self {
        *refused.error
    }
}

impl<S: QueuePairState, T: Transport> fmt::Display for Refused<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S: QueuePairState, T: Transport> std::error::Error for Refused<S, T> {}

impl<S: QueuePairState, T: Transport> fmt::Debug for QueuePair<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |name: &'static str| name.rsplit(':').next().unwrap_or_default();
        let (kind, state) = (word(std::any::type_name::<T>()), word(std::any::type_name::<S>()));
        write!(f, "queue pair {} ({kind}, {state})", self.inner.number)
    }
}

impl<S: QueuePairState, T: Transport> QueuePair<S, T> {
    /// Its number, which the peer needs, and which its completions carry.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Returns the number of inline bytes of a work request: the requested number, or more.
    pub fn max_inline(&self) -> u32 {
        self.inner.max_inline
    }

    /// Stops the queue pair: requests in flight are flushed, and nothing arrives after the return.
    pub fn into_error(self) -> Result<QueuePair<Errored, T>, Refused<S, T>> {
        self.step(Step::error())
    }

    /// Takes a step that ends in the state `N`.
    fn step<N: QueuePairState>(mut self, step: Result<Step, Wrong>) -> Result<QueuePair<N, T>, Refused<S, T>> {
        match self.inner.modify(step) {
            Ok(()) => Ok(QueuePair { inner: self.inner, types: PhantomData }),
            Err(error) => Err(Refused { queue_pair: self, error: Box::new(error) }),
        }
    }
}

impl<T: Transport> QueuePair<Reset, T> {
    /// Makes a queue pair of the kind `T`. All objects in `options` must be of the same device.
    pub fn of_kind(domain: &ProtectionDomain, options: &QueuePairOptions) -> Result<Self, VerbsError> {
        Ok(Self { inner: Box::new(QueuePairInner::create::<T>(domain, options)?), types: PhantomData })
    }
}

impl<T: Connected> QueuePair<Reset, T> {
    /// Moves from RESET to INIT.
    pub fn init(self, attributes: &InitAttributes) -> Result<QueuePair<Init, T>, Refused<Reset, T>> {
        let step = Step::init(attributes, self.inner.domain.context());
        self.step(step)
    }
}

impl QueuePair<Reset> {
    /// Makes a reliable queue pair. All objects in `options` must be of the same device.
    pub fn create(domain: &ProtectionDomain, options: &QueuePairOptions) -> Result<Self, VerbsError> {
        Self::of_kind(domain, options)
    }

    /// Moves from RESET to INIT, as a connection of librdmacm requires.
    pub fn init_by(self, attributes: &cm::Attributes<Init>) -> Result<QueuePair<Init>, Refused<Reset>> {
        self.step(Step::by(Transition::ResetToInit, attributes))
    }
}

impl QueuePair<Init> {
    /// Moves from INIT to RTR.
    pub fn ready_to_receive(self, attributes: &ReceiveAttributes) -> Result<QueuePair<ReadyToReceive>, Refused<Init>> {
        let step = Step::ready_to_receive(attributes, self.inner.domain.context(), self.inner.port);
        self.step(step)
    }

    /// Moves from INIT to RTR, as a connection of librdmacm requires.
    pub fn ready_to_receive_by(
        self,
        attributes: &cm::Attributes<ReadyToReceive>,
    ) -> Result<QueuePair<ReadyToReceive>, Refused<Init>> {
        self.step(Step::by(Transition::InitToReadyToReceive, attributes))
    }
}

impl QueuePair<ReadyToReceive> {
    /// Moves from RTR to RTS.
    pub fn ready_to_send(self, attributes: &SendAttributes) -> Result<QueuePair<ReadyToSend>, Refused<ReadyToReceive>> {
        let step = Step::ready_to_send(attributes, self.inner.domain.context());
        self.step(step)
    }

    /// Moves from RTR to RTS, as a connection of librdmacm requires.
    pub fn ready_to_send_by(
        self,
        attributes: &cm::Attributes<ReadyToSend>,
    ) -> Result<QueuePair<ReadyToSend>, Refused<ReadyToReceive>> {
        self.step(Step::by(Transition::ReadyToReceiveToReadyToSend, attributes))
    }
}

impl<S: Receives, T: Transport> QueuePair<S, T> {
    /// Posts the receives and empties the list, even if not all were accepted.
    pub fn post_receive(&mut self, list: &mut ReceiveList) -> Result<(), PostError> {
        self.inner.post_receive(list)
    }
}

impl<T: Transport> QueuePair<ReadyToSend, T> {
    /// Posts the work requests, in order and with one call, and empties the list, even if not all were accepted.
    pub fn post_send(&mut self, list: &mut SendList<T>) -> Result<(), PostError> {
        self.inner.post_send(list)
    }
}
