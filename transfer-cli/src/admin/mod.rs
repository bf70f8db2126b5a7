//! The client of the Admin gRPC service.
//!
//! # Layout
//! - [`address`]: the address of a sidecar. [`tls`]: its certificates.
//! - [`status`]: the overview. [`directory`]: its hosts. [`lists`]: the lists.
//! - `pages`: the pages of lists. `cluster`: lists over all nodes.
//! - [`changes`], [`drain`], [`poll`]: what an operator can change.
//! - [`ping`]: round trips to another node.
//! - [`events`]: the events. [`watch`]: a list, refreshed periodically. [`top`]: a live screen.

pub mod address;
pub mod changes;
pub(crate) mod cluster;
pub mod directory;
pub mod drain;
pub mod events;
pub mod lists;
mod pages;
pub mod ping;
pub mod poll;
pub mod status;
pub mod tls;
pub mod top;
pub mod watch;

use crate::error::Error;
use address::Address;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tls::TlsOptions;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use transfer_proto::v1::admin_client::AdminClient;
use transfer_proto::v1::{DType, Fabric, Link, LinksRequest, StatusRequest, StatusResponse, TensorDescriptor};

/// The time-out of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time-out of an answer. A sidecar answers in milliseconds; a stopped one never does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The sidecar of a command.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    /// The address of the sidecar's gRPC services: http://HOST:PORT or https://HOST:PORT of its --listen, or the path
    /// of its --admin-socket
    #[arg(
        long,
        help_heading = "Connection",
        env = "TRANSFER_ADMIN",
        value_name = "URL|PATH",
        default_value = "/run/transfer/admin.sock"
    )]
    pub admin: Address,

    /// Certificates.
    #[command(flatten)]
    pub tls: TlsOptions,
}

impl Target {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn connect(&self) -> Result<AdminClient<Channel>, Error> {
        self.connect_within(Some(ANSWER_TIMEOUT)).await
    }

    /// Connects for a call with an unlimited answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub(crate) async fn connect_for_long(&self) -> Result<AdminClient<Channel>, Error> {
        self.connect_within(None).await
    }

    async fn connect_within(&self, answer: Option<Duration>) -> Result<AdminClient<Channel>, Error> {
        let patient = |endpoint: Endpoint| {
            let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT);
            match answer {
                Some(answer) => endpoint.timeout(answer),
                // Pings detect a sidecar that is dead or cut off.
                None => endpoint.http2_keep_alive_interval(CONNECT_TIMEOUT).keep_alive_timeout(CONNECT_TIMEOUT),
            }
        };
        let unreachable = |source| Error::Unreachable { address: self.admin.clone(), source };
        let channel = match &self.admin {
            Address::Tcp(url) => {
                let mut endpoint = Endpoint::from_shared(url.clone()).map_err(unreachable)?;
                if url.starts_with("https://") {
                    endpoint = endpoint.tls_config(self.tls.for_address(url)?).map_err(unreachable)?;
                }
                patient(endpoint).connect().await
            }
            Address::Unix(path) => {
                let path = path.clone();
                // The name is not looked up: the connector knows the path.
                let endpoint = patient(Endpoint::from_static("http://sidecar"));
                let connector = tower::service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
        };
        // A page of 1000 keys of 512 bytes is far below gRPC's limit of 4 MiB.
        Ok(AdminClient::new(channel.map_err(unreachable)?))
    }

    /// Connects, and requests the status.
    pub(crate) async fn status(&self) -> Result<StatusResponse, Error> {
        let mut admin = self.connect().await?;
        Ok(admin.status(StatusRequest {}).await.map_err(|e| self.answered(e))?.into_inner())
    }

    /// The links of one page.
    pub(crate) async fn links(&self) -> Result<Vec<Link>, Error> {
        let mut admin = self.connect().await?;
        let request = LinksRequest { page_size: 1000, ..LinksRequest::default() };
        Ok(admin.links(request).await.map_err(|e| self.answered(e))?.into_inner().links)
    }

    pub(crate) fn answered(&self, source: tonic::Status) -> Error {
        Error::Admin { address: self.admin.clone(), source: Box::new(source) }
    }
}

/// A fabric's name, as the command lines spell it.
pub(crate) fn fabric_name(number: i32) -> String {
    match Fabric::try_from(number) {
        Ok(Fabric::Unspecified) => "any".to_owned(),
        Ok(fabric) => fabric.as_str_name().trim_start_matches("FABRIC_").to_lowercase(),
        Err(_) => format!("fabric {number}"),
    }
}

/// `f32[64, 128]`
pub(crate) fn tensor_name(tensor: Option<&TensorDescriptor>) -> String {
    let Some(tensor) = tensor else { return "?".to_owned() };
    format!("{}{:?}", dtype_name(tensor.dtype), tensor.shape)
}

/// An element type's name, as the command lines spell it.
pub(crate) fn dtype_name(number: i32) -> String {
    match DType::try_from(number) {
        Ok(dtype) => dtype.as_str_name().trim_start_matches("DTYPE_").to_lowercase(),
        Err(_) => format!("dtype {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_library() {
        use transfer_core::fabric::FabricKind;
        for dtype in transfer_core::tensor::DType::ALL {
            let tensor = TensorDescriptor { dtype: i32::from(dtype as u8), ..TensorDescriptor::default() };
            assert_eq!(dtype_name(tensor.dtype), dtype.name());
            assert_eq!(serde_json::to_value(&tensor).unwrap()["dtype"], dtype.name());
        }
        for kind in FabricKind::ALL {
            assert_eq!(fabric_name(i32::from(kind as u8)), kind.name());
        }
    }
}
