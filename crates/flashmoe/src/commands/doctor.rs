//! `flashmoe doctor`: what this machine offers a streaming engine, and what would help.

mod gpu_check;
mod report;

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use engine::EngineError;
use engine::backend::cuda::CudaError;
use engine::backend::gpu as portable;
use serde_json::{Value, json};

use super::table::machine_name;
use crate::arguments::{ByteSize, DoctorArguments};
use crate::failure::Failure;
use crate::gpu_check::Verdicts;
use crate::plan::machine::{Memory, has_nvidia_card};

/// What another system than Linux says of Linux's own settings.
const NOT_HERE: &str = "not on this system";

/// One finding: a fact, and advice where something can be done.
struct Finding {
    name: &'static str,
    value: Value,
    text: String,
    advice: Option<String>,
}

pub(crate) fn doctor(arguments: &DoctorArguments, out: &mut dyn Write) -> Result<()> {
    match (&arguments.gpu_group, arguments.gpu_number) {
        (Some(group), Some(number)) => return gpu_check::run_here(number, group, out),
        _ if arguments.gpu_check => return gpu_check::run(out),
        _ if arguments.report => return report::run(arguments.model.as_deref(), out),
        _ => {}
    }
    let findings = Findings::look(arguments.model.as_deref())?;
    let text = match arguments.json {
        true => format!("{}\n", findings.json()),
        false => findings.text(),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

/// What was found of a machine.
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    /// Looks at the machine, and reads from the disk of a model.
    pub(super) fn look(model: Option<&Path>) -> Result<Self> {
        let mut findings = vec![
            processor(),
            memory(),
            locked_memory(),
            huge_pages(),
            io_uring(),
            gpu(),
            adapters(),
        ];
        #[cfg(windows)]
        findings.push(templates());
        if let Some(model) = model {
            findings.push(disk(model)?);
        }
        Ok(Self(findings))
    }

    /// Values and advice by name.
    pub(super) fn json(&self) -> Value {
        let fields = self.0.iter().map(|finding| {
            let value = json!({"value": finding.value, "advice": finding.advice});
            (machine_name(finding.name), value)
        });
        Value::Object(fields.collect())
    }

    /// A line for each, and one for each piece of advice.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.0 {
            text.push_str(&format!("{:<16} {}\n", finding.name, finding.text));
            if let Some(advice) = &finding.advice {
                text.push_str(&format!("{:<16} -> {advice}\n", ""));
            }
        }
        text
    }
}

fn processor() -> Finding {
    let compute = kernels::Compute::new(kernels::ComputeOptions {
        threads: 1,
        arithmetic: kernels::Arithmetic::Int16,
        isa: kernels::Isa::Auto,
    });
    let isa = compute.map_or("none", |compute| compute.isa_name());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Finding {
        name: "processor",
        value: json!({"kernels": isa, "threads": threads}),
        text: format!("{threads} threads, {isa} kernels"),
        advice: (isa == "scalar")
            .then(|| "no vector kernels fit this processor: expect slow answers".into()),
    }
}

fn memory() -> Finding {
    let memory = Memory::read();
    let group =
        memory.group.as_ref().map(|group| json!({"limit": group.limit, "used": group.used}));
    let mut text =
        format!("{} RAM, {} available", ByteSize(memory.total), ByteSize(memory.available));
    if let Some(group) = &memory.group {
        text.push_str(&format!(", control group limit {}", ByteSize(group.limit)));
    }
    Finding {
        name: "memory",
        value: json!({"total": memory.total, "available": memory.available, "group": group}),
        text,
        advice: None,
    }
}

/// Templates come with models, from strangers.
#[cfg(windows)]
fn templates() -> Finding {
    let bounded = text::memory_is_bounded();
    Finding {
        name: "templates",
        value: json!({"memory_bounded": bounded}),
        text: match bounded {
            true => "the memory of their processes is bounded by a job object",
            false => "the memory of their processes is NOT bounded: the system keeps no such limit",
        }
        .to_owned(),
        advice: (!bounded).then(|| "run only models whose chat template you trust".to_owned()),
    }
}

#[cfg(windows)]
fn locked_memory() -> Finding {
    let text = NOT_HERE.to_owned();
    Finding { name: "locked memory", value: Value::Null, text, advice: None }
}

#[cfg(unix)]
fn locked_memory() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let text = limit.map_or("no limit".to_owned(), |bytes| ByteSize(bytes).to_string());
    Finding {
        name: "locked memory",
        value: json!(limit),
        text,
        advice: limit.is_some_and(|bytes| bytes < 64 << 20).then(|| {
            "raise it (ulimit -l unlimited) so that io_uring can register its buffers".to_owned()
        }),
    }
}

fn huge_pages() -> Finding {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = setting.ok().and_then(|text| {
        let start = text.find('[')? + 1;
        Some(text[start..].split(']').next()?.to_owned())
    });
    Finding {
        name: "huge pages",
        value: json!(chosen),
        text: chosen.clone().unwrap_or_else(|| NOT_HERE.to_owned()),
        advice: (chosen.as_deref() == Some("never")).then(|| {
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: reads into huge pages cost \
             a third of the processor time"
                .to_owned()
        }),
    }
}

fn io_uring() -> Finding {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let value = setting.ok().map(|text| text.trim().to_owned());
    let text = match value.as_deref() {
        Some("0") => "allowed",
        Some(_) => "restricted",
        None => NOT_HERE,
    };
    Finding {
        name: "io_uring",
        value: json!(text),
        text: text.to_owned(),
        advice: (text == "restricted")
            .then(|| "sysctl kernel.io_uring_disabled=0; without it reads use threads".to_owned()),
    }
}

fn gpu() -> Finding {
    match engine::backend::cuda::probe(0) {
        Ok(info) => Finding {
            name: "GPU",
            value: json!({
                "name": info.name,
                "capability": [info.capability.0, info.capability.1],
                "total": info.total_bytes,
                "free": info.free_bytes,
                "driver": [info.driver.0, info.driver.1],
            }),
            text: format!(
                "{}, {} of {} free, compute capability {}.{}, driver for CUDA {}.{}",
                info.name,
                ByteSize(info.free_bytes),
                ByteSize(info.total_bytes),
                info.capability.0,
                info.capability.1,
                info.driver.0,
                info.driver.1
            ),
            advice: None,
        },
        Err(EngineError::Cuda(CudaError::NoDriver)) => {
            let card = has_nvidia_card();
            let text = if card { "an NVIDIA card without its driver" } else { "no NVIDIA GPU" };
            Finding {
                name: "GPU",
                value: Value::Null,
                text: text.to_owned(),
                advice: card.then(|| "install the card's driver, 580 or newer".to_owned()),
            }
        }
        Err(error) => Finding {
            name: "GPU",
            value: Value::Null,
            text: "none".to_owned(),
            advice: Some(error.to_string()),
        },
    }
}

/// What `--device gpu:N` can name.
fn adapters() -> Finding {
    let mut advice = None;
    let (value, text) = match portable::adapters() {
        Ok(found) => {
            let lines: Vec<_> = found.iter().map(with_verdict).collect();
            let none = "none: Vulkan has no device";
            let text = if lines.is_empty() { none.to_owned() } else { lines.join(" | ") };
            (json!(lines), text)
        }
        Err(error) => {
            advice = Some(error.to_string());
            (Value::Null, "none".to_owned())
        }
    };
    let name = if cfg!(target_vendor = "apple") { "GPU by Metal" } else { "GPU by Vulkan" };
    Finding { name, value, text, advice }
}

/// An adapter, and what its checks came to.
fn with_verdict(adapter: &portable::Adapter) -> String {
    let verdict = match Verdicts::of(adapter) {
        _ if adapter.kind == portable::Kind::Software => {
            "software, which --device auto does not take".to_owned()
        }
        None => "not checked yet".to_owned(),
        Some(verdict) => match verdict.refusal() {
            Some(reason) => format!("--device auto does not take it: {reason}"),
            None if verdict.short => format!("{} checks right (short form)", verdict.checks),
            None => format!("{} checks right", verdict.checks),
        },
    };
    format!("{adapter}; {verdict}")
}

/// Five seconds of random reads at the model's record size.
fn disk(model: &Path) -> Result<Finding> {
    let checkpoint = crate::models::open(model)?;
    let record = checkpoint.first_record_bytes().unwrap_or(1 << 20);
    let probe = crate::speed::probe_disk(&checkpoint, record as usize)?;
    let kind = if probe.direct { "direct" } else { "buffered" };
    Ok(Finding {
        name: "disk",
        value: json!({"bytes_per_second": probe.speed, "direct": probe.direct, "record": record}),
        text: format!("{:.2} GB/s at {} records, {kind} reads", probe.speed / 1e9, ByteSize(record)),
        advice: (!probe.direct).then(|| {
            "this file system refuses direct reads; a model on a local ext4 or xfs disk streams faster"
                .to_owned()
        }),
    })
}
