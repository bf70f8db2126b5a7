//! The pages of lists. They are requested one after the other.

use super::Target;
use crate::error::Error;
use std::ops::ControlFlow;
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};

/// The entries of one page, and the token of the next one.
type Page<T> = Result<(Vec<T>, String), tonic::Status>;

/// The request for the pages of a list.
pub(crate) trait Pages: Clone + Send + Sync + 'static {
    /// The entries of the list.
    type Entry: Send + 'static;

    /// Asks for the page of this token.
    fn page(
        &self,
        admin: &mut AdminClient<Channel>,
        page_token: String,
    ) -> impl Future<Output = Page<Self::Entry>> + Send;
}

/// The lists of the Admin service: a call with its request, and the entries in its answer.
macro_rules! pages {
    ($($call:ident($request:ident) -> $entries:ident: $entry:ident;)*) => { $(
        impl Pages for v1::$request {
            type Entry = v1::$entry;

            async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Page<v1::$entry> {
                let page = admin.$call(v1::$request { page_token, ..self.clone() }).await?.into_inner();
                Ok((page.$entries, page.next_page_token))
            }
        }
    )* };
}

pages! {
    sessions(SessionsRequest) -> sessions: Session;
    peers(PeersRequest) -> peers: Peer;
    links(LinksRequest) -> links: Link;
    tensors(TensorsRequest) -> tensors: Tensor;
    segments(SegmentsRequest) -> segments: Segment;
    transfers(TransfersRequest) -> transfers: Transfer;
    exchanges(ExchangesRequest) -> exchanges: Exchange;
    quarantine(QuarantineRequest) -> slots: Quarantined;
}

/// The first page of one node, with the client and the token for the others.
pub(super) type First<T> = Result<(AdminClient<Channel>, Vec<T>, String), Error>;

/// Asks for the first page.
pub(super) async fn first<R: Pages>(target: Target, request: R) -> First<R::Entry> {
    let mut admin = target.connect().await?;
    let (entries, page_token) = request.page(&mut admin, String::new()).await.map_err(|e| target.answered(e))?;
    Ok((admin, entries, page_token))
}

/// Passes the first page on, and asks for the others, until `each` breaks.
pub(super) async fn rest<R: Pages>(
    target: &Target,
    request: &R,
    first: First<R::Entry>,
    mut each: impl FnMut(Vec<R::Entry>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    let (mut admin, mut entries, mut page_token) = first?;
    loop {
        if each(entries).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if page_token.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        (entries, page_token) = request.page(&mut admin, page_token).await.map_err(|e| target.answered(e))?;
    }
}
