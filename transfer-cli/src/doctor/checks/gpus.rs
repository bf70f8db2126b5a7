//! Checks of GPUs, and of what workers can do with them.

use super::{found, ok, warn};
use crate::doctor::facts::Facts;
use crate::doctor::{Finding, Verdict};
use crate::gpus::registration;
use transfer_terminal::units::bytes;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let gpus = match &facts.gpus.found {
        Ok(gpus) => gpus,
        // A host without a GPU is fine.
        Err(why) if !facts.gpus.in_kernel => return ok("GPU", format!("none is used: {why}")),
        Err(why) => {
            let advice = "The kernel has the NVIDIA driver: give this process the driver's libraries and files (in a container: the NVIDIA \
                          container toolkit, `--gpus all`)";
            return warn("GPU", why.to_string(), advice);
        }
    };
    let one = |gpu: &transfer_cuda::DeviceReport| {
        let text = format!(
            "{}: {}, {}, at {}; host memory {}",
            gpu.ordinal,
            gpu.name,
            bytes(gpu.memory_bytes),
            gpu.pci_address,
            registration(gpu)
        );
        let (verdict, advice) = match (gpu.host_registration, gpu.read_only_host_registration) {
            (true, true) => (Verdict::Ok, None),
            (true, false) => (
                Verdict::Warn,
                Some("Fetched tensors are copied to it as pageable memory, which is slower. A newer driver may help"),
            ),
            (false, _) => (Verdict::Warn, Some("Tensors are copied as pageable memory, which is slower")),
        };
        found("GPU", verdict, text, advice)
    };
    gpus.iter().flat_map(one).collect()
}
