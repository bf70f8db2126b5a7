//! A job of two workers: pushes, fetches, a counter and a barrier, in one program.

use super::exchange::check;
use super::{Agent, work};
use crate::WAIT_LIMIT;
use crate::order::{Change, CountOrder, JobOrder, MeetOrder, Trouble};
use crate::pattern;
use std::time::Instant;
use transfer_client::DType;

impl Agent {
    /// Does the rounds. Returns the time of each round, in microseconds.
    pub(super) fn job(&self, order: &JobOrder) -> Result<Vec<u64>, Trouble> {
        let round = |round| {
            let started = Instant::now();
            self.job_round(order, round)?;
            Ok(started.elapsed().as_micros() as u64)
        };
        (order.first..order.first + order.rounds).map(round).collect()
    }

    fn job_round(&self, order: &JobOrder, round: u64) -> Result<(), Trouble> {
        let JobOrder { name, to, lens, .. } = order;
        let there = |at: usize| format!("{name}/there/{at}");
        let back = |at: usize| format!("{name}/back/{at}");
        // Each key has bytes of its own, which differ for the two directions.
        let seed = |at: usize, is_back: bool| round * 64 + 2 * at as u64 + u64::from(is_back);
        let leads = to.is_some();
        for (at, len) in lens.iter().enumerate() {
            if leads {
                self.job_push(&there(at), *len, round, seed(at, false), to.as_deref())?;
            } else {
                self.job_fetch(&there(at), *len, round, seed(at, false))?;
                self.job_push(&back(at), *len, round, seed(at, true), None)?;
            }
        }
        if leads {
            for (at, len) in lens.iter().enumerate() {
                self.job_fetch(&back(at), *len, round, seed(at, true))?;
            }
        }
        let (name, timeout) = (name.clone(), WAIT_LIMIT);
        let add = CountOrder { name: name.clone(), change: Change::Add(1), times: 1, timeout };
        self.count(&add).map_err(|e| work::trouble(&e))?;
        let meet = MeetOrder { name: name.clone(), members: 2, times: 1, timeout };
        self.meet(&meet).map_err(|e| work::trouble(&e))?;
        // Both workers have counted in each round, and one of them may have begun the next.
        let look = CountOrder { name, change: Change::Get, times: 1, timeout };
        let counted = self.count(&look).map_err(|e| work::trouble(&e))?.old;
        if !(2 * round..=2 * round + 1).contains(&counted) {
            let text = format!("in round {round} the counter is {counted}");
            return Err(Trouble { kind: "WrongCount".into(), fault: "Nobody".into(), can_retry: false, text });
        }
        Ok(())
    }

    fn job_push(&self, key: &str, len: u64, version: u64, seed: u64, to: Option<&str>) -> Result<(), Trouble> {
        let filled = self.client.allocate_wait(DType::U8, [len]).timeout(WAIT_LIMIT).call();
        let mut tensor = filled.map_err(|e| work::trouble(&e))?;
        pattern::fill(tensor.as_mut_bytes(), DType::U8, seed);
        let push = self.client.push_tensor(key, tensor).version(version).timeout(WAIT_LIMIT);
        let push = if let Some(to) = to { push.to(to) } else { push };
        push.call().map_err(|e| work::trouble(e.error()))?;
        Ok(())
    }

    fn job_fetch(&self, key: &str, len: u64, version: u64, seed: u64) -> Result<(), Trouble> {
        let fetched = self.client.fetch(key).exactly(version).timeout(WAIT_LIMIT).call();
        check(&fetched.map_err(|e| work::trouble(&e))?, len, seed)
    }
}
