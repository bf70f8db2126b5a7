//! `transferctl tensors --sharded`: the sharded states of which nodes have parts, each as one line.
//!
//! A sidecar lists what ranks have published, and knows no shards. So their keys name the states, and the layout of each is fetched as a
//! worker does it.

use super::{Show, Shown, Tensors};
use crate::admin::cluster;
use crate::error::Error;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;
use transfer_client::{FailureCode, GlobalLayout, ShardedLayout};
use transfer_terminal::units::{bytes, count, counted};

/// How long the layout of a state is waited for. One of which no version is whole has none.
const LAYOUT_TIMEOUT: Duration = Duration::from_secs(2);

/// A state, and the layout of its newest version, or why there is none to be shown.
pub(super) struct State {
    key: String,
    layout: Result<ShardedLayout, String>,
}

/// Why there is no layout where nothing is wrong.
const NOT_WHOLE: &str = "no version is whole";

impl Show for State {
    const WORDS: (&'static str, &'static str) = ("sharded state", "sharded states");

    fn headings() -> String {
        "key | >version | global tensors | >size | >ranks | nodes".to_owned()
    }

    fn row(&self) -> Vec<String> {
        let State { key, layout } = self;
        let layout = match layout {
            Ok(layout) => layout,
            Err(why) => {
                let none = || "-".to_owned();
                return vec![key.clone(), none(), why.clone(), none(), none(), none()];
            }
        };
        let tensors = match &layout.tensors[..] {
            [GlobalLayout { name, meta, .. }] => format!("{name} {meta}"),
            several => counted(several.len() as u64, "tensor", "tensors"),
        };
        let ranks = count(layout.nodes.len() as u64);
        vec![
            key.clone(),
            layout.version.to_string(),
            tensors,
            bytes(len_bytes(layout)),
            ranks,
            nodes(layout).join(", "),
        ]
    }

    fn json(&self) -> Value {
        let State { key, layout } = self;
        let layout = match layout {
            Ok(layout) => layout,
            Err(why) if why == NOT_WHOLE => return json!({ "key": key, "version": null }),
            Err(why) => return json!({ "key": key, "version": null, "error": why }),
        };
        let tensor = |GlobalLayout { name, meta, .. }: &GlobalLayout| json!({ "name": name, "dtype": meta.dtype().name(), "shape": meta.shape().dims() });
        json!({
            "key": key, "version": layout.version, "tensors": layout.tensors.iter().map(tensor).collect::<Vec<_>>(),
            "len_bytes": len_bytes(layout), "ranks": layout.nodes.len(), "nodes": nodes(layout), "unproved": layout.unproved,
        })
    }

    fn bytes(&self) -> Option<u64> {
        self.layout.as_ref().ok().map(len_bytes)
    }
}

/// The length of the global tensors. What several ranks hold counts once.
fn len_bytes(layout: &ShardedLayout) -> u64 {
    layout.tensors.iter().map(|tensor| tensor.meta.len_bytes()).sum()
}

fn nodes(layout: &ShardedLayout) -> Vec<&str> {
    let nodes: BTreeSet<_> = layout.nodes.iter().map(String::as_str).collect();
    nodes.into_iter().collect()
}

/// Lists the states of a node, or of all.
pub(super) async fn run(list: &Tensors) -> Result<(), Error> {
    let mut keys = BTreeSet::new();
    let asked = cluster::list(&list.common.target, list.request(), list.cluster, |_, tensors| {
        keys.extend(tensors.iter().filter_map(|tensor| ShardedLayout::state_of(&tensor.key)).map(str::to_owned));
        ControlFlow::Continue(())
    });
    let asked = asked.await?;
    let mut shown = Shown::new(&list.common);
    if !keys.is_empty() {
        let client = list.worker.connect(0).await?;
        for key in keys {
            if shown.is_full() {
                shown.cut = true;
                break;
            }
            let layout = match client.sharded_layout(&key).timeout(LAYOUT_TIMEOUT).await {
                Ok(layout) => Ok(layout),
                Err(e) if matches!(e.failure_code(), Some(FailureCode::Deadline | FailureCode::UnknownKey)) => {
                    Err(NOT_WHOLE.to_owned())
                }
                // Such as that of another tenant. The others are listed all the same.
                Err(e) if e.failure_code().is_some() || matches!(e, transfer_client::Error::Sharded(_)) => {
                    Err(e.to_string())
                }
                Err(source) => return Err(Error::Call { what: "fetch the layout of", key, source }),
            };
            let _is_cut = shown.add([State { key, layout }]);
        }
    }
    shown.end();
    asked.complete()
}
