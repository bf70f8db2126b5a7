//! The data plane: the engine with its fabrics, and what measures beside it.

use super::memory::Memory;
use super::{StartError, fabrics};
use crate::config::Config;
use crate::engine::ControlRequest;
use crate::observe::{self, Records};
use crate::peering::Identity;
use crate::poll;
use crate::security::Security;
use tokio::sync::mpsc;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::NodeConfig;
use transfer_fabric::engine::{BoxedFabric, Engine, EngineConfig, PollStrategy};
use transfer_fabric::verbs::datagrams::Datagrams;

/// The running data plane.
pub(super) struct DataPlane {
    pub(super) engine: Engine,
    /// The requests of the engine to the control plane.
    pub(super) requests: mpsc::UnboundedReceiver<ControlRequest>,
    pub(super) records: Records,
    pub(super) poll: PollStrategy,
    /// The queue pair for datagrams, or the reason why there is none.
    pub(super) datagrams: Result<Datagrams, String>,
}

impl DataPlane {
    pub(super) fn start(
        config: &Config,
        me: &Identity,
        fabrics: Vec<BoxedFabric>,
        security: &Security,
        memory: &Memory,
    ) -> Result<DataPlane, StartError> {
        let datagrams = datagrams(config, me);
        let mut node = NodeConfig::new(config.node.clone(), me.incarnation);
        node.require = config.require;
        node.tenants = security.tenancy().tenants().clone();
        node.limits = config.limits.all().node;
        node.base_bytes = config.limits.base_bytes.0;
        node.fan_out = config.limits.fan_out;
        node.chunk_bytes = config.limits.chunk_bytes.0;
        node.timed = !config.watch.no_timings;
        node.spill = config.spill.node();
        let poll = poll::configured(config.poll);
        // The channel is unbounded, because the engine must not wait. The engine's waiting workers bound its requests.
        let (tell, requests) = mpsc::unbounded_channel();
        // A control plane that has ended needs no news.
        let sink = Box::new(move |request| drop(tell.send(request)));
        let (trace, records) = observe::start_spans(&config.watch.otlp, &config.node, me.incarnation)
            .map_err(|source| StartError::System { what: "starting what writes spans down, and sends them", source })?;
        let engine = EngineConfig {
            node,
            fabrics,
            poll,
            disk: config.spill.folder.clone(),
            trace: Some(trace),
            budget: memory.budget.clone(),
            segment: memory.granted.pool,
        };
        let engine = Engine::start(engine, sink)?;
        Ok(DataPlane { engine, requests, records, poll, datagrams })
    }
}

/// Makes the queue pair for datagrams if there is RDMA. Nothing but `transferctl ping --ud` needs it, so a failure is
/// logged, and the start continues.
fn datagrams(config: &Config, me: &Identity) -> Result<Datagrams, String> {
    if !me.fabrics.contains(&FabricKind::Verbs) {
        return Err(me.lacks(FabricKind::Verbs));
    }
    fabrics::datagrams(config).map_err(|why| {
        tracing::warn!(why, "datagrams are not answered here");
        format!("node {} has no queue pair for datagrams: {why}", me.node)
    })
}
