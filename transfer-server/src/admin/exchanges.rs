//! The pages of exchanges.

use super::{AdminState, of_tenant, paging, unavailable};
use crate::events::nanos;
use crate::exchanges::{self, Exchange};
use tonic::Status;
use transfer_core::exchange::ExchangeId;
use transfer_proto::v1;

/// The most exchanges of one page, and of one with the bytes of each partition: a message has less than 4 MiB.
const PAGE_SIZES: (usize, usize) = (100, 64);

/// The prefix of a page token.
const TOKEN_PREFIX: &str = "after:";

impl AdminState {
    /// Returns a page of exchanges. It begins after the name and the identity in the token.
    pub(super) async fn exchanges(
        &self,
        only: &str,
        request: v1::ExchangesRequest,
    ) -> Result<v1::ExchangesResponse, Status> {
        let v1::ExchangesRequest { prefix, page_size, page_token, partition_bytes } = request;
        let after = place_in(&page_token)?;
        let size = paging::size(page_size).min(if partition_bytes { PAGE_SIZES.1 } else { PAGE_SIZES.0 });
        let wanted = |tenant: &_| of_tenant(only, tenant);
        let all = exchanges::look(&self.engine, &prefix, partition_bytes, wanted).await.map_err(unavailable)?;
        let mut rest = all.into_iter().filter(|exchange| after.is_none_or(|after| exchange.place() > after)).peekable();
        let (mut page, mut last) = (Vec::new(), String::new());
        // Two tenants may claim the same identity, by ill will. They stay in one page.
        while let Some(exchange) = rest.next_if(|next| page.len() < size || token_of(next) == last) {
            last = token_of(&exchange);
            page.push(message(exchange));
        }
        let next_page_token = if rest.peek().is_some() { last } else { String::new() };
        Ok(v1::ExchangesResponse { exchanges: page, next_page_token })
    }
}

fn token_of(exchange: &Exchange) -> String {
    let (name, id) = exchange.place();
    format!("{TOKEN_PREFIX}{id}:{name}")
}

/// Returns the name and the identity in a token. `None` for the first page.
fn place_in(token: &str) -> Result<Option<(&str, ExchangeId)>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let place = token.strip_prefix(TOKEN_PREFIX).and_then(|place| {
        let (id, name) = place.split_once(':')?;
        Some((name, ExchangeId::parse(id)?))
    });
    place.map(Some).ok_or_else(|| paging::wrong_token(token))
}

fn message(exchange: Exchange) -> v1::Exchange {
    let skew = exchange.skew();
    let Exchange { status, largest, reads_waiting, waits } = exchange;
    let waits = waits.into_iter().map(|wait| v1::ExchangeWait {
        operation: wait.operation.to_owned(),
        worker: wait.worker.to_string(),
        task: wait.task,
        attempt: wait.attempt,
        count: wait.count,
        age_ns: nanos(wait.age),
        waits_for: wait.waits_for,
    });
    v1::Exchange {
        name: status.name,
        id: status.id.to_string(),
        tenant: status.tenant.to_string(),
        opened_here: status.is_opener,
        partitions: status.partitions,
        tasks: status.tasks,
        committed: status.committed,
        rows: status.rows,
        bytes: status.bytes,
        largest_partition: largest.map(|(partition, _)| partition),
        largest_bytes: largest.map(|(_, bytes)| bytes),
        skew,
        memory_bytes: status.memory,
        spilled_bytes: status.spilled,
        reads_waiting,
        writers_waiting: status.writers_waiting,
        waits: waits.collect(),
        partition_bytes: status.lengths,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_back_and_bad_ones_are_refused() {
        let id = ExchangeId([0x1f; 16]);
        assert_eq!(place_in("").unwrap(), None);
        assert_eq!(place_in(&format!("after:{id}:a:b/c")).unwrap(), Some(("a:b/c", id)));
        for token in ["7", "after:", "after:x", "behind:x", "after:1f:x"] {
            assert!(place_in(token).unwrap_err().message().contains("page_token"), "{token}");
        }
    }
}
