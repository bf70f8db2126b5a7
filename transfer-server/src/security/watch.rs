//! Reads the certificates again when their files have changed.

use super::material::Material;
use super::{Files, Present, Security};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often the files are looked at.
const PERIOD: Duration = Duration::from_secs(2);

/// What tells a file from what it was before: device, inode, time of its last change, length.
type Stamp = (u64, u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let m = std::fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.ctime(), m.ctime_nsec(), m.len()))
}

fn stamps(files: &Files) -> [Option<Stamp>; 3] {
    [&files.cert, &files.key, &files.ca].map(|path| stamp(path))
}

/// Looks at the files for ever. New ones are for new connections; those that are there go on. Files that cannot be used, such as a
/// certificate that was replaced a moment before its key, leave the ones before in use until they change again.
pub(crate) async fn watch(security: Security) {
    let Some(first) = security.present() else { return };
    let mut seen = (first.files.clone(), stamps(&first.files));
    drop(first);
    loop {
        tokio::time::sleep(PERIOD).await;
        let Some(present) = security.present() else { return };
        let files = present.files.clone();
        let now = (files.clone(), stamps(&files));
        if now == seen {
            continue;
        }
        seen = now;
        match Material::read(&files, &security.0.node) {
            Ok(material) => {
                if let Some(tls) = &security.0.tls {
                    tls.store(Arc::new(Present { files, material }));
                    tracing::info!("the certificates were read again: new connections use them");
                }
            }
            Err(why) => tracing::error!(%why, "the new certificates cannot be used; those before stay in use"),
        }
    }
}
