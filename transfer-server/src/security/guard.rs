//! Checks before each call whether the caller has the right to make it.

use super::{Caller, Security, roles};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};
use transfer_core::protocol::Tenant;

/// The one tenant to which a caller is limited; `None`: no limit. It is an extension of each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope(pub(crate) Option<Tenant>);

/// Puts a [`Guard`] before services.
#[derive(Debug, Clone)]
pub(crate) struct GuardLayer(pub(crate) Security);

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { security: self.0.clone(), inner }
    }
}

/// The guard; see the module.
#[derive(Debug, Clone)]
pub(crate) struct Guard<S> {
    security: Security,
    inner: S,
}

impl<S> Guard<S> {
    /// Checks whether the caller may make the call. Returns the tenant to which the caller is limited.
    fn check(&self, request: &Request<Body>) -> Result<Scope, Status> {
        let path = request.uri().path();
        // Every listener of this crate sets the caller.
        let unknown = || Status::unauthenticated("who calls is not known");
        let caller = request.extensions().get::<Caller>().ok_or_else(unknown)?;
        let Some(need) = roles::need(path) else {
            let path = crate::text::printable(path, 128);
            return Err(Status::unimplemented(format!("this version of transferd serves no call {path:?}")));
        };
        let checked = self.security.policy().scope(caller, need, self.security.tenancy());
        if let Err(why) = &checked {
            tracing::warn!(%caller, path, why = why.message(), "a call was refused");
        } else if matches!(need, roles::Need::Administer | roles::Need::AdministerOfTenant) {
            tracing::info!(%caller, path, "an administrator's call");
        }
        checked.map(Scope)
    }
}

type Answer = Result<Response<Body>, Infallible>;

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.extensions_mut().insert(self.security.policy());
        match self.check(&request) {
            Ok(scope) => {
                request.extensions_mut().insert(scope);
                Box::pin(self.inner.call(request))
            }
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}
