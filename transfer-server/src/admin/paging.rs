//! Pages of the admin calls, gathered from parts that the data plane returns.

use super::unavailable;
use crate::engine::{Answer, EngineClient, Listing, PageFrom};
use std::time::{Duration, Instant};
use tonic::Status;
use transfer_core::protocol::Page;
use transfer_core::tensor::Name;

/// The default page size, and the largest.
const PAGE_SIZES: (usize, usize) = (100, 1000);

/// The time within which one call collects entries that match its filter.
const PAGE_TIME: Duration = Duration::from_millis(5);

/// A caller's request for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRequest {
    pub(super) size: usize,
    place: u64,
}

impl PageRequest {
    pub(super) fn new(page_size: u32, page_token: &str) -> Result<PageRequest, Status> {
        let size = size(page_size);
        let place = match page_token {
            "" => 0,
            token => u64::from_str_radix(token, 16).map_err(|_| wrong_token(token))?,
        };
        Ok(PageRequest { size, place })
    }

    /// Gathers a page: asks for parts until the page is full, nothing is left, or the time is up. `show` returns `None`
    /// for an entry that does not match.
    pub(super) async fn gather<T, S>(
        self,
        engine: &EngineClient,
        list: impl Fn(Answer<Page<T>>) -> Listing + Send,
        show: impl Fn(T) -> Option<S> + Send,
    ) -> Result<(Vec<S>, String), Status>
    where
        T: Send + 'static,
        S: Send,
    {
        self.gather_within(PAGE_TIME, engine, list, show).await
    }

    async fn gather_within<T, S>(
        self,
        time: Duration,
        engine: &EngineClient,
        list: impl Fn(Answer<Page<T>>) -> Listing + Send,
        show: impl Fn(T) -> Option<S> + Send,
    ) -> Result<(Vec<S>, String), Status>
    where
        T: Send + 'static,
        S: Send,
    {
        let (mut entries, mut place, begun) = (Vec::new(), self.place, Instant::now());
        loop {
            let limit = self.size - entries.len();
            let page = engine.list(PageFrom { place, limit }, &list).await.map_err(unavailable)?;
            entries.extend(page.entries.into_iter().filter_map(&show));
            let Some(next) = page.next else { return Ok((entries, String::new())) };
            place = next;
            if entries.len() >= self.size || begun.elapsed() >= time {
                return Ok((entries, format!("{place:x}")));
            }
        }
    }
}

pub(crate) fn size(page_size: u32) -> usize {
    match page_size as usize {
        0 => PAGE_SIZES.0,
        n => n.min(PAGE_SIZES.1),
    }
}

/// The prefix of a page token that contains a name.
const TOKEN_PREFIX: &str = "behind:";

/// Returns the token of the page after the entry of that name; empty if the name is empty.
pub(crate) fn token_of(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{TOKEN_PREFIX}{name}") }
}

/// Returns the name in such a token; empty for the first page.
pub(crate) fn name_of(token: &str) -> Result<&str, Status> {
    match (token, token.strip_prefix(TOKEN_PREFIX)) {
        ("", _) => Ok(""),
        (_, Some(name)) if Name::new(name).is_ok() => Ok(name),
        _ => Err(wrong_token(token)),
    }
}

pub(super) fn wrong_token(token: &str) -> Status {
    let token = crate::text::printable(token, 64);
    Status::invalid_argument(format!(
        "page_token {token:?} is not one of this sidecar: give next_page_token of the page before, or nothing for the first page"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineCommand;
    use transfer_core::protocol::{SessionId, SessionStatus, Tenant};
    use transfer_core::tensor::Name;

    #[test]
    fn page_size_is_bounded_and_bad_tokens_are_refused() {
        let asked = |size, token| PageRequest::new(size, token).map(|a| (a.size, a.place));
        assert_eq!(asked(0, "").unwrap(), (100, 0));
        assert_eq!(asked(7, "ff").unwrap(), (7, 255));
        assert_eq!(asked(u32::MAX, "ffffffffffffffff").unwrap(), (1000, u64::MAX));
        for token in ["w/07", "10000000000000000", "-1", " "] {
            assert!(asked(1, token).unwrap_err().message().contains("page_token"), "{token}");
        }
    }

    #[test]
    fn name_tokens_read_back_and_bad_ones_are_refused() {
        for name in ["", "a", "node-7", "behind:b"] {
            assert_eq!(name_of(&token_of(name)).unwrap(), name);
        }
        for token in ["garbage", "behind:", "a", "behin"] {
            let said = name_of(token).unwrap_err();
            assert_eq!(said.code(), tonic::Code::InvalidArgument, "{token:?}");
        }
    }

    #[tokio::test]
    async fn a_page_is_gathered_from_short_and_empty_parts() {
        let engine = EngineClient::new(|command| {
            let EngineCommand::List { from, listing: Listing::Sessions { answer, .. } } = command else { panic!() };
            assert!(from.limit <= 5);
            let status = SessionStatus {
                session: SessionId(from.place),
                name: Name::new("w").unwrap(),
                tenant: Name::of_number(0),
                domain: Tenant::User(0),
                arena_bytes: 0,
                leases: 0,
                operations: 0,
            };
            let entries = if from.place % 2 == 0 { vec![status] } else { Vec::new() };
            answer(Page { entries, next: (from.place < 30).then_some(from.place + 1) });
            Ok(())
        });
        let list = |answer| Listing::Sessions { prefix: String::new(), answer };
        let show = |s: SessionStatus| (s.session.0 != 4).then_some(s.session.0);
        let (entries, token) =
            PageRequest::new(5, "").unwrap().gather_within(Duration::MAX, &engine, list, show).await.unwrap();
        assert_eq!((entries, token.as_str()), (vec![0, 2, 6, 8, 10], "b"));
        let (entries, token) =
            PageRequest::new(5, "1d").unwrap().gather_within(Duration::MAX, &engine, list, show).await.unwrap();
        assert_eq!((entries, token.as_str()), (vec![30], ""));
        // Where the time is up, the page ends after the part that came.
        let first = PageRequest::new(5, "").unwrap().gather_within(Duration::ZERO, &engine, list, show).await.unwrap();
        assert_eq!(first, (vec![0], "1".to_owned()));
    }
}
