//! What can go wrong with a GPU, told so that a user can act on it.

use thiserror::Error;

/// A GPU that cannot be used, or that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GpuError {
    /// Vulkan's library is not there.
    #[error(
        "no Vulkan loader was found: install it (Debian: apt install libvulkan1) and the GPU's driver, or use --device \
         cpu"
    )]
    NoLoader,
    /// Vulkan's library is there, and found no driver.
    #[error(
        "the Vulkan loader found no driver{}: install the GPU's (Debian: apt install mesa-vulkan-drivers for AMD and \
         Intel; NVIDIA's comes with its own), or use --device cpu",
        named.as_ref().map(|named| format!(" by {named}")).unwrap_or_default()
    )]
    NoDriver {
        /// The variable that names the drivers, where one does.
        named: Option<String>,
    },
    /// No GPU is there, or only a driver that computes on the processor.
    #[error(
        "no GPU was found{}: install the GPU's Vulkan driver, or use --device cpu",
        also(others)
    )]
    NoAdapter {
        /// Adapters that are there but are not taken unless they are named.
        others: Vec<String>,
    },
    /// There is no adapter of this number.
    #[error("there is no GPU {index}: {found} found (flashmoe doctor lists them)")]
    NoSuchAdapter {
        /// The number asked for.
        index: usize,
        /// How many there are.
        found: usize,
    },
    /// The adapter lacks what the kernels need.
    #[error("{adapter} lacks {what}, which the kernels need: use --device cpu")]
    Lacks {
        /// The adapter's name.
        adapter: String,
        /// What it lacks.
        what: String,
    },
    /// The driver refused to open the adapter.
    #[error("{adapter} cannot be opened: {reason}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// In the driver's words.
        reason: String,
    },
    /// A way to use the adapter that it does not have.
    #[error("{option}: {adapter}: {reason}")]
    DriverOption {
        /// The option that asks for it.
        option: &'static str,
        /// The adapter's name.
        adapter: String,
        /// What it lacks.
        reason: String,
    },
    /// The device does not read this memory of the process.
    #[error("the GPU does not read RAM in place ({0}): use --gpu-import off, the host then copies")]
    NotInPlace(String),
    /// The device's memory is used up.
    #[error(
        "GPU memory is used up: {asked} bytes more than the {held} held were refused; lower --vram, --context or \
         --prefill-chunk"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes held already.
        held: u64,
    },
    /// Memory that the driver needs for its own work is used up.
    #[error("GPU memory is used up ({0}); lower --vram, --context or --prefill-chunk")]
    Exhausted(String),
    /// More bytes than the device reads at once.
    #[error("{what} is {bytes} bytes, this GPU binds at most {limit} at once: use --device cpu")]
    TooLarge {
        /// What it is.
        what: String,
        /// Its bytes.
        bytes: u64,
        /// The device's limit.
        limit: u64,
    },
    /// The device is gone: it was reset, removed or timed out.
    #[error("the GPU was lost ({0}): start flashmoe again; the system's log says why (dmesg)")]
    Lost(String),
    /// The driver or wgpu refused something: a defect of flashmoe or of the driver.
    #[error(
        "the GPU refused work ({0}): please report it with the output of flashmoe doctor --gpu-check"
    )]
    Refused(String),
}

/// Names adapters that were not taken.
fn also(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(
            " but {}, which computes on the processor (--device gpu:N takes it)",
            others.join(", ")
        ),
    }
}
