//! Arguments that say what of a GPU's driver `--device gpu` uses beside plain wgpu. Answers are the same with each.

use clap::{Args, ValueEnum};
use engine::backend::gpu::{DriverOptions, Import, Wait};

/// What of the driver is used.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DriverArguments {
    /// With `--device gpu`: whether it reads experts that have no slot in RAM itself, without a copy by the host
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = "GPU")]
    gpu_import: ImportChoice,
    /// With `--device gpu` on macOS 15 or newer: keep weights and slots resident by Metal's residency sets
    #[arg(long, value_name = "WHEN", default_value = "off", help_heading = "GPU")]
    gpu_residency: ResidencyChoice,
    /// With `--device gpu`: how the host waits for it
    #[arg(long, value_name = "HOW", default_value = "driver", help_heading = "GPU")]
    gpu_wait: WaitChoice,
}

/// `--gpu-import`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImportChoice {
    /// Where a Vulkan driver can and RAM holds all experts; not on Metal, where it has not been run yet
    Auto,
    /// Also where RAM holds a part of them; or end with the reason why not
    On,
    /// Never: the host copies
    Off,
}

/// `--gpu-residency`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResidencyChoice {
    /// The driver finds out at every hand-over what it needs
    Off,
    /// Or end with the reason why not
    On,
}

/// `--gpu-wait`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WaitChoice {
    /// Asleep, until the driver says that work is done
    Driver,
    /// Asleep, for a shared event of Metal
    Event,
    /// Awake for 20 ms, which takes a core, then as `driver`
    Spin,
}

impl DriverArguments {
    /// As the backend takes them.
    pub(crate) fn options(&self) -> DriverOptions {
        DriverOptions {
            import: match self.gpu_import {
                ImportChoice::Auto => Import::Auto,
                ImportChoice::On => Import::On,
                ImportChoice::Off => Import::Off,
            },
            residency: self.gpu_residency == ResidencyChoice::On,
            wait: match self.gpu_wait {
                WaitChoice::Driver => Wait::Driver,
                WaitChoice::Event => Wait::Event,
                WaitChoice::Spin => Wait::Spin,
            },
        }
    }

    /// The first that is not the usual one: it means nothing but with `--device gpu`.
    pub(crate) fn first(&self) -> Option<&'static str> {
        let (given, usual) = (self.options(), DriverOptions::default());
        let given = [
            (given.import != usual.import, "--gpu-import"),
            (given.residency != usual.residency, "--gpu-residency"),
            (given.wait != usual.wait, "--gpu-wait"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }
}
