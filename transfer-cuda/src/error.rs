//! Errors.

use std::fmt;

/// The reason why a GPU cannot be used, or a copy not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is missing, or too old.
    #[error(
        "no CUDA driver: {library} cannot be used: {why}. The NVIDIA driver installs it (on Debian libcuda1); a container needs it from its \
         host, and LD_LIBRARY_PATH or ldconfig must name its folder"
    )]
    NoDriver {
        /// The library that was looked for.
        library: &'static str,
        /// The loader's error.
        why: String,
    },
    /// The driver works, and shows no GPU to this process.
    #[error(
        "the CUDA driver shows no GPU to this process: nvidia-smi lists them, and CUDA_VISIBLE_DEVICES may hide them"
    )]
    NoGpu,
    /// There is no GPU of this number.
    #[error("there is no GPU {asked}: this process sees {}", Numbers(*count))]
    NoSuchDevice {
        /// The number asked for, from 0.
        asked: u32,
        /// The number of GPUs that this process sees.
        count: u32,
    },
    /// The GPU has no room.
    #[error("GPU {device} has no room for {wanted_bytes} bytes: {free_bytes} of {total_bytes} are free")]
    OutOfMemory {
        /// The GPU's number.
        device: u32,
        /// The requested length, in bytes.
        wanted_bytes: u64,
        /// The free length, in bytes, after the request had failed.
        free_bytes: u64,
        /// The size of the GPU's memory, in bytes.
        total_bytes: u64,
    },
    /// The two ends of a copy differ in length.
    #[error("{host_bytes} bytes of the host's memory and {device_bytes} of the GPU's do not fit")]
    WrongLength {
        /// The length in the host's memory, in bytes.
        host_bytes: u64,
        /// The length in the GPU's memory, in bytes.
        device_bytes: u64,
    },
    /// Memory and stream belong to different GPUs.
    #[error("the memory is GPU {memory}'s, and the stream GPU {stream}'s")]
    OtherDevice {
        /// The number of the memory's GPU.
        memory: u32,
        /// The number of the stream's GPU.
        stream: u32,
    },
    /// The stream is being captured into a graph. A graph may be run again when the host's memory is another tensor's.
    #[error(
        "the stream is being captured into a CUDA graph, and a graph cannot contain this copy: copy before the capture"
    )]
    Capturing,
    /// The driver was initialised by this process's parent. CUDA does not survive a fork.
    #[error(
        "this process was forked from one that used CUDA, which does not survive a fork: use GPUs only in the child, or spawn it"
    )]
    Forked,
    /// A copy was asked again for what it had returned.
    #[error("the copy has ended already, and what it owned was taken")]
    Ended,
    /// Another failure of the driver.
    #[error("{call} failed: {name} ({status}), {text}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// `CUresult`, as a number.
        status: i32,
        /// Its name in cuda.h.
        name: String,
        /// The driver's explanation.
        text: String,
    },
}

impl CudaError {
    /// Whether the same call may succeed later without a change by the caller.
    #[must_use]
    pub fn can_retry(&self) -> bool {
        matches!(self, CudaError::OutOfMemory { .. })
    }

    /// Whether something is missing that only an operator can install or repair: the driver, or a GPU.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, CudaError::NoDriver { .. } | CudaError::NoGpu)
    }
}

/// The numbers of so many GPUs, in words.
struct Numbers(u32);

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            1 => f.write_str("one, number 0"),
            count => write!(f, "{count}, numbers 0 to {}", count - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CudaError;

    #[test]
    fn a_wrong_number_is_told_with_the_right_ones() {
        let text = |count| CudaError::NoSuchDevice { asked: 7, count }.to_string();
        assert_eq!(text(1), "there is no GPU 7: this process sees one, number 0");
        assert_eq!(text(4), "there is no GPU 7: this process sees 4, numbers 0 to 3");
    }

    #[test]
    fn only_a_lack_of_memory_passes() {
        let full = CudaError::OutOfMemory { device: 0, wanted_bytes: 9, free_bytes: 5, total_bytes: 8 };
        assert!(full.can_retry() && !full.is_missing());
        assert!(!CudaError::NoGpu.can_retry() && CudaError::NoGpu.is_missing());
        assert_eq!(full.to_string(), "GPU 0 has no room for 9 bytes: 5 of 8 are free");
    }
}
