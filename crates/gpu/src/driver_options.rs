//! What of a driver is used beside plain wgpu: switches of the user, each with a plain way in its place.
//!
//! None of them changes a bit of an answer. What an adapter cannot is refused before it is opened.

use std::time::{Duration, Instant};

use crate::queue::Ask;
use crate::{Adapter, Gpu, GpuError};

/// How long a wait that looks without pause goes on before it sleeps: several answers' time. Others of the host's
/// threads need the processor as well.
const LOOKS: Duration = Duration::from_millis(20);

/// What is used of a driver beside plain wgpu.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverOptions {
    /// Whether the device reads memory of the process in place.
    pub import: Import,
    /// Whether weights and slots are members of Metal's residency sets.
    pub residency: bool,
    /// How the host waits for the device.
    pub wait: Wait,
}

/// Whether the device reads memory of the process in place. The plain way: the host copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Import {
    /// Where Vulkan's driver can. Not on Metal, where it has not been run.
    #[default]
    Auto,
    /// Or it is an error.
    On,
    /// Never.
    Off,
}

/// How the host waits for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// As wgpu does, the plain way: Vulkan's semaphores, on Metal what the driver calls when work is done.
    #[default]
    Driver,
    /// For a shared event of Metal.
    Event,
    /// By looking without pause for a while.
    Spin,
}

impl DriverOptions {
    /// Whether an adapter that can is used to read memory of the process in place.
    pub(crate) fn imports(self) -> bool {
        match self.import {
            Import::Auto => !cfg!(target_vendor = "apple"),
            Import::On => true,
            Import::Off => false,
        }
    }
}

impl Adapter {
    /// This adapter, with these options of its driver.
    ///
    /// # Errors
    /// The first that it cannot, with the option that asks for it.
    pub fn with(mut self, options: DriverOptions) -> Result<Self, GpuError> {
        let lacks = |option: &'static str, reason: &str| {
            let (adapter, reason) = (self.name.clone(), reason.to_owned());
            Err(GpuError::DriverOption { option, adapter, reason })
        };
        if options.import == Import::On && self.host_alignment.is_none() {
            return lacks("--gpu-import on", "its driver does not read memory of the process");
        }
        if let Some(reason) = crate::driver::lacks_sets(&self.raw).filter(|_| options.residency) {
            return lacks("--gpu-residency on", reason);
        }
        let event = options.wait == Wait::Event;
        if let Some(reason) = crate::driver::lacks_events(&self.raw).filter(|_| event) {
            return lacks("--gpu-wait event", reason);
        }
        self.options = options;
        Ok(self)
    }

    /// The options that this adapter has beside the usual ones, each alone: for checks.
    pub fn other_options(&self) -> Vec<DriverOptions> {
        let plain = DriverOptions { import: Import::Off, ..DriverOptions::default() };
        let all = [
            DriverOptions { import: Import::On, ..plain },
            DriverOptions { residency: true, ..plain },
            DriverOptions { import: Import::On, residency: true, ..plain },
            DriverOptions { wait: Wait::Event, ..plain },
            DriverOptions { wait: Wait::Spin, ..plain },
        ];
        all.into_iter().filter(|options| self.clone().with(*options).is_ok()).collect()
    }

    /// Bytes to whose multiples memory has to be aligned that this adapter is to read in place.
    pub(crate) fn imports_at(&self) -> Option<u64> {
        self.host_alignment.filter(|_| self.options.imports())
    }
}

impl Gpu {
    /// Waits for an answer as the user wants it. False where that is to be waited for as wgpu does.
    pub(crate) fn waits_by_itself(&mut self, ask: &Ask) -> Result<bool, GpuError> {
        let begun = Instant::now();
        let looks = match self.adapter().options.wait {
            Wait::Driver => false,
            // It is there, or nearly: wgpu looks itself whether the work was done.
            Wait::Event => self.own.wait(ask.signal()),
            Wait::Spin => true,
        };
        let since = Instant::now();
        let mut arrived = false;
        while looks && !arrived && since.elapsed() < LOOKS {
            arrived = self.has_arrived(ask)?;
            std::hint::spin_loop();
        }
        if arrived {
            self.counts.waits += 1;
            self.counts.waited += begun.elapsed();
        }
        Ok(arrived)
    }
}
