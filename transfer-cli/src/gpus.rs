//! The GPUs of this host, and what a worker can do with them, for `devices` and `doctor`.

use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use transfer_cuda::{CudaError, DeviceReport};
use transfer_terminal::units::bytes;

/// The file by which programs reach the driver in the kernel.
const CONTROL_FILE: &str = "/dev/nvidiactl";

/// The GPUs, and what there is of their driver.
#[derive(Debug, Clone)]
pub(crate) struct Gpus {
    /// The GPUs that this process sees, or the reason why there is none.
    pub(crate) found: Result<Vec<DeviceReport>, CudaError>,
    /// The highest version of CUDA that the driver supports.
    pub(crate) driver: Option<String>,
    /// Whether the kernel has the driver.
    pub(crate) in_kernel: bool,
}

impl Gpus {
    /// Asks the driver.
    pub(crate) fn look() -> Gpus {
        Gpus {
            found: transfer_cuda::devices(),
            driver: transfer_cuda::driver_version().ok().map(|version| version.to_string()),
            in_kernel: Path::new(CONTROL_FILE).exists(),
        }
    }

    /// For `devices --json`.
    pub(crate) fn json(&self) -> Value {
        json!({
            "gpus": self.found.as_deref().unwrap_or_default(),
            "why_no_gpus": self.found.as_ref().err().map(ToString::to_string),
            "cuda_driver": self.driver,
        })
    }

    /// For `devices`.
    pub(crate) fn text(&self) -> String {
        let gpus = match &self.found {
            Ok(gpus) => gpus,
            Err(why) => return format!("no GPU: {why}\n"),
        };
        let mut text = String::new();
        for gpu in gpus {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "GPU {}", gpu.ordinal);
            let mut line = |name: &str, value: String| {
                let _ = writeln!(text, "    {name:<16} {value}");
            };
            line("name", gpu.name.clone());
            line("PCI address", gpu.pci_address.clone());
            line("memory", bytes(gpu.memory_bytes));
            line("compute", format!("{}.{}", gpu.compute_capability.0, gpu.compute_capability.1));
            line("host memory", registration(gpu).to_owned());
            let export = if gpu.posix_descriptor_export { "by descriptor" } else { "not by descriptor" };
            line("export", export.to_owned());
        }
        if let Some(driver) = &self.driver {
            let _ = writeln!(text, "the driver supports CUDA {driver}");
        }
        text
    }
}

/// What a GPU does with the memory of tensors, in words.
pub(crate) fn registration(gpu: &DeviceReport) -> &'static str {
    match (gpu.host_registration, gpu.read_only_host_registration) {
        (true, true) => "is registered, mapped read-only too",
        (true, false) => "is registered, but not if it is mapped read-only",
        (false, _) => "is not registered",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpu() -> DeviceReport {
        DeviceReport {
            ordinal: 0,
            name: "NVIDIA H100 80GB HBM3".into(),
            pci_address: "0000:1B:00.0".into(),
            memory_bytes: 80 << 30,
            compute_capability: (9, 0),
            host_registration: true,
            read_only_host_registration: true,
            posix_descriptor_export: true,
        }
    }

    #[test]
    fn gpus_are_shown_with_what_is_possible() {
        let mut second = gpu();
        (second.ordinal, second.read_only_host_registration, second.posix_descriptor_export) = (1, false, false);
        let gpus = Gpus { found: Ok(vec![gpu(), second]), driver: Some("13.0".into()), in_kernel: true };
        let text = gpus.text();
        for line in [
            "GPU 0\n    name             NVIDIA H100 80GB HBM3\n    PCI address      0000:1B:00.0\n",
            "    memory           80 GiB\n    compute          9.0\n    host memory      is registered, mapped read-only too\n",
            "    export           by descriptor\nGPU 1\n",
            "    host memory      is registered, but not if it is mapped read-only\n    export           not by descriptor\n",
            "the driver supports CUDA 13.0\n",
        ] {
            assert!(text.contains(line), "{line:?}: {text}");
        }
        let json = gpus.json();
        assert_eq!((json["gpus"][1]["ordinal"].as_u64(), json["why_no_gpus"].is_null()), (Some(1), true), "{json}");
    }

    #[test]
    fn a_host_without_gpus_says_why() {
        let gpus = Gpus { found: Err(CudaError::NoGpu), driver: None, in_kernel: false };
        assert!(gpus.text().starts_with("no GPU: the CUDA driver shows no GPU"), "{}", gpus.text());
        let json = gpus.json();
        assert!(json["gpus"].as_array().is_some_and(Vec::is_empty), "{json}");
        assert!(json["why_no_gpus"].as_str().is_some_and(|why| why.contains("nvidia-smi")), "{json}");
    }
}
