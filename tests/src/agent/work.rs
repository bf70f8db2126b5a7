//! Carries out the single orders.

use super::{Agent, exchange::Exchange, lock, memory, vandal};
use crate::order::{
    Answer, Change, CountOrder, Counted, FetchOrder, Fetched, MeetOrder, Met, Order, PushMode, PushOrder, Pushed,
    Report, Select, Trouble, Until,
};
use crate::pattern;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::{Error, FabricKind, Tensor};

impl Agent {
    pub(super) fn carry_out(&self, order: Order) -> Result<Answer, Trouble> {
        match order {
            Order::Push(push) => self.push(&push).map(Answer::Pushed),
            Order::Fetch(fetch) => self.fetch(&fetch).map(Answer::Fetched),
            Order::PushBriefly(push, patience) => self.push_briefly(&push, patience),
            Order::FetchBriefly(fetch, patience) => self.fetch_briefly(&fetch, patience),
            Order::HoldBundle(key) => {
                let bundle = self.client.fetch_bundle(&key).call().map_err(|e| trouble(&e))?;
                let (_, tensor) = bundle.iter().next().ok_or_else(|| unknown("tensor in the bundle"))?;
                lock(&self.held).insert(key, tensor.clone());
                Ok(Answer::Done)
            }
            Order::Read(name) => {
                let tensor = lock(&self.held).get(&name).cloned();
                tensor.map(|t| Answer::Sum(pattern::sum(t.as_bytes()))).ok_or_else(|| unknown(&name))
            }
            Order::Release(name) => {
                let tensor = lock(&self.held).remove(&name);
                tensor.map(|_| Answer::Done).ok_or_else(|| unknown(&name))
            }
            Order::Delete(key) => self.client.delete(key).call().map(|()| Answer::Done).map_err(|e| trouble(&e)),
            Order::Open(name) => {
                let counter = self.client.counter(&name).call().map_err(|e| trouble(&e))?;
                let home = counter.home().to_owned();
                lock(&self.counters).insert(name, counter);
                Ok(Answer::Home(home))
            }
            Order::Count(count) => self.count(&count).map(Answer::Counted).map_err(|e| trouble(&e)),
            Order::Meet(meet) => self.meet(&meet).map(Answer::Met).map_err(|e| trouble(&e)),
            Order::ArenaFree => Ok(Answer::Number(self.client.arena_free_bytes())),
            Order::Scribble(seed) => {
                vandal::scribble(seed).expect("this process can write its own memory");
                Ok(Answer::Done)
            }
            Order::LeaveChild => Ok(Answer::Number(vandal::leave_child().expect("a child can be left").into())),
            Order::Fork(socket, key) => Ok(Answer::Number(self.fork(&socket, &key).into())),
            Order::PushStorm(push) => loop {
                self.push(&push)?;
            },
            Order::FetchStorm(fetch) => loop {
                let got = self.fetch(&fetch)?;
                assert!(got.len > 0, "a storm is over tensors");
            },
            Order::TakeBack(key, timeout) => {
                self.client.take_back(key).timeout(timeout).call().map(|_| Answer::Done).map_err(|e| trouble(&e))
            }
            Order::Update(order) => self.update(&order).map(|()| Answer::Done).map_err(|e| trouble(&e)),
            Order::Watch(order) => self.watch(&order).map(Answer::Number).map_err(|e| trouble(&e)),
            Order::Job(order) => self.job(&order).map(Answer::Times),
            Order::Exchange(order) => {
                let exchange = Arc::new(Exchange::new(order));
                *lock(&self.exchange) = Some(exchange.clone());
                exchange.start(self);
                Ok(Answer::Done)
            }
            Order::Shuffle(order) => self.shuffle(order),
            Order::Rounds => self.exchange()?.rounds().map(Answer::Number),
            Order::Hold => self.exchange()?.hold().map(Answer::Number),
            Order::FinishWith(last) => {
                self.exchange()?.finish_with(last);
                Ok(Answer::Done)
            }
            Order::Finished => self.exchange()?.finished().map(Answer::Number),
        }
    }

    fn exchange(&self) -> Result<Arc<Exchange>, Trouble> {
        lock(&self.exchange).clone().ok_or_else(|| unknown("an exchange"))
    }

    pub(super) fn count(&self, order: &CountOrder) -> Result<Counted, Error> {
        let CountOrder { name, change, times, timeout } = order;
        let known = lock(&self.counters).get(name).cloned();
        let counter = match known {
            Some(counter) => counter,
            None => {
                let counter = self.client.counter(name).timeout(*timeout).call()?;
                lock(&self.counters).insert(name.clone(), counter.clone());
                counter
            }
        };
        let mut last = None;
        for _ in 0..*times {
            last = Some(match change {
                Change::Get => counter.get().timeout(*timeout).call().map(|c| (c.old, false, c.report)),
                Change::Add(n) => counter.add(*n).timeout(*timeout).call().map(|c| (c.old, false, c.report)),
                Change::Swap(expected, new) => {
                    counter.compare_swap(*expected, *new).timeout(*timeout).call().map(|c| {
                        let (Ok(old) | Err(old)) = c.result;
                        (old, c.result.is_ok(), c.report)
                    })
                }
            }?);
        }
        let (old, swapped, report) = last.expect("at least once");
        Ok(Counted { old, swapped, path: report.path.name().into(), fabric: report.fabric.name().into() })
    }

    pub(super) fn meet(&self, order: &MeetOrder) -> Result<Met, Error> {
        let MeetOrder { name, members, times, timeout } = order;
        let barrier = self.client.barrier(name, *members);
        let (mut led, mut last) = (0, None);
        for _ in 0..*times {
            let round = barrier.wait().timeout(*timeout).call()?;
            led += u64::from(round.leader);
            last = Some(round);
        }
        let last = last.expect("at least once");
        Ok(Met { round: last.number, led, path: last.report.path.name().into() })
    }

    pub(super) fn push(&self, order: &PushOrder) -> Result<Pushed, Trouble> {
        let PushOrder { key, tensor, way, version, to, timeout, require, keep, takeover, readable_by } = order;
        let dtype = pattern::dtype(&tensor.dtype);
        let mut place = None;
        let (frozen, foreign);
        let filled = || {
            let mut filled = self.client.allocate_wait(dtype, &tensor.shape).timeout(*timeout).call()?;
            pattern::fill(filled.as_mut_bytes(), dtype, tensor.seed);
            Ok(filled)
        };
        let mut push = match way {
            PushMode::Owned => {
                let filled = filled().map_err(|e: Error| trouble(&e))?;
                place = memory::place_of(filled.as_bytes());
                self.client.push_tensor(key, filled)
            }
            PushMode::Frozen => {
                frozen = filled().map_err(|e: Error| trouble(&e))?.freeze();
                place = memory::place_of(frozen.as_bytes());
                self.client.push_frozen(key, &frozen)
            }
            PushMode::Foreign => {
                foreign = pattern::bytes_of(tensor);
                self.client.push_bytes(key, dtype, &tensor.shape, &foreign)
            }
        };
        push = push.timeout(*timeout);
        if let Some(version) = version {
            push = push.version(*version);
        }
        if let Some(to) = to {
            push = push.to(to);
        }
        if let Some(require) = require {
            push = push.require(fabric(require));
        }
        push = push.keep(match keep.until {
            Until::Replaced => transfer_client::Until::Replaced,
            Until::Fetched(n) => transfer_client::Until::Fetched(n.try_into().expect("at least once")),
            Until::Deleted => transfer_client::Until::Deleted,
        });
        if keep.outlives {
            push = push.outlive();
        }
        if *takeover {
            push = push.takeover();
        }
        for tenant in readable_by {
            push = push.readable_by(tenant);
        }
        let pushed = push.call().map_err(|e| trouble(e.error()))?;
        Ok(Pushed { version: pushed.version, report: report(&pushed.report), place })
    }

    pub(super) fn fetch(&self, order: &FetchOrder) -> Result<Fetched, Trouble> {
        let FetchOrder { key, select, timeout, require, hold } = order;
        let fetch = self.client.fetch(key).timeout(*timeout);
        let mut fetch = match select {
            Select::Latest => fetch.latest(),
            Select::Exactly(version) => fetch.exactly(*version),
            Select::AtLeast(version) => fetch.at_least(*version),
        };
        if let Some(require) = require {
            fetch = fetch.require(fabric(require));
        }
        let tensor = fetch.call().map_err(|e| trouble(&e))?;
        let fetched = describe(&tensor);
        if let Some(hold) = hold {
            lock(&self.held).insert(hold.clone(), tensor);
        }
        Ok(fetched)
    }
}

/// Calls that are dropped before they end. The client has to clean up after them.
impl Agent {
    fn push_briefly(&self, order: &PushOrder, patience: Duration) -> Result<Answer, Trouble> {
        let PushOrder { key, tensor, version, to, timeout, .. } = order;
        let (runtime, client) = self.asynchronous.as_ref().ok_or_else(|| unknown("async face"))?;
        let dtype = pattern::dtype(&tensor.dtype);
        let mut filled =
            self.client.allocate_wait(dtype, &tensor.shape).timeout(*timeout).call().map_err(|e| trouble(&e))?;
        pattern::fill(filled.as_mut_bytes(), dtype, tensor.seed);
        let mut push = client.push_tensor(key, filled).timeout(*timeout);
        if let Some(version) = version {
            push = push.version(*version);
        }
        if let Some(to) = to {
            push = push.to(to);
        }
        // The timer needs the runtime, too.
        match runtime.block_on(async { tokio::time::timeout(patience, push.into_future()).await }) {
            Ok(Ok(pushed)) => {
                let (version, report) = (pushed.version, report(&pushed.report));
                Ok(Answer::Pushed(Pushed { version, report, place: None }))
            }
            Ok(Err(error)) => Err(trouble(error.error())),
            Err(_) => Ok(Answer::Done),
        }
    }

    fn fetch_briefly(&self, order: &FetchOrder, patience: Duration) -> Result<Answer, Trouble> {
        let (runtime, client) = self.asynchronous.as_ref().ok_or_else(|| unknown("async face"))?;
        let fetch = client.fetch(&order.key).timeout(order.timeout);
        let fetch = match order.select {
            Select::Latest => fetch.latest(),
            Select::Exactly(version) => fetch.exactly(version),
            Select::AtLeast(version) => fetch.at_least(version),
        };
        match runtime.block_on(async { tokio::time::timeout(patience, fetch.into_future()).await }) {
            Ok(Ok(tensor)) => Ok(Answer::Fetched(describe(&tensor))),
            Ok(Err(error)) => Err(trouble(&error)),
            Err(_) => Ok(Answer::Done),
        }
    }
}

fn describe(tensor: &Tensor) -> Fetched {
    let bytes = tensor.as_bytes();
    Fetched {
        version: tensor.version(),
        dtype: tensor.dtype().name().to_owned(),
        shape: tensor.shape().to_vec(),
        len: bytes.len() as u64,
        sum: pattern::sum(bytes),
        report: report(tensor.report()),
        place: memory::place_of(bytes),
    }
}

fn report(report: &transfer_client::Report) -> Report {
    let transfer_client::Report { fabric, bytes, copied, relayed, .. } = *report;
    Report { fabric: fabric.name().to_owned(), bytes, copied, relayed, text: report.to_string() }
}

fn fabric(name: &str) -> FabricKind {
    FabricKind::from_name(name).unwrap_or_else(|| panic!("{name} is no fabric"))
}

fn unknown(what: &str) -> Trouble {
    let text = format!("this worker has no {what}");
    Trouble { kind: "NoSuchThing".into(), fault: "Caller".into(), can_retry: false, text }
}

/// Returns what a caller sees of an error: its kind, its fault, whether a retry can help, and its text.
pub(crate) fn trouble(error: &Error) -> Trouble {
    let kind = match error.failure_code() {
        Some(code) => format!("{code:?}"),
        None => first_word(format!("{error:?}")),
    };
    let (fault, can_retry) = (format!("{:?}", error.fault()), error.can_retry());
    Trouble { kind, fault, can_retry, text: error.to_string() }
}

/// Returns what a caller sees of an error of an exchange.
pub(super) fn exchange_trouble(error: &transfer_exchange::Error) -> Trouble {
    match error {
        transfer_exchange::Error::Client(error) => trouble(error),
        error => {
            let kind = match error {
                transfer_exchange::Error::Exchange(error) => first_word(format!("{error:?}")),
                error => first_word(format!("{error:?}")),
            };
            let (fault, can_retry) = (format!("{:?}", error.fault()), error.can_retry());
            Trouble { kind, fault, can_retry, text: error.to_string() }
        }
    }
}

/// The first word of what Debug prints: the name of a variant.
fn first_word(text: String) -> String {
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
