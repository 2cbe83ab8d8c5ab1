//! `plan --machine`: a machine that one does not have, as sizes and speeds.

use std::str::FromStr;

use super::ByteSize;

/// What a plan for another machine assumes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AssumedMachine {
    /// RAM, bytes.
    pub(crate) ram: u64,
    /// Bytes a second of random reads of records.
    pub(crate) disk: f64,
    /// Bytes a second of the memory that computes: the GPU's where there is one, else RAM.
    pub(crate) memory: f64,
    /// The GPU's memory and the bytes a second that reach it from RAM.
    pub(crate) gpu: Option<(u64, f64)>,
    /// Operations a second of products of many tokens on the processor, where they are not this machine's.
    pub(crate) compute: Option<f64>,
}

/// For messages.
const FORM: &str = "ram=48G,disk=7,memory=60 or ram=64G,disk=7,memory=900,vram=24G,bus=25: sizes as everywhere, speeds \
                    in GB/s, and compute=N in billions of operations a second";

impl FromStr for AssumedMachine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut sizes, mut speeds) = ([None; 2], [None; 4]);
        for pair in text.split(',') {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| format!("\"{pair}\" has no value; {FORM}"))?;
            let place = |names: &[&str]| names.iter().position(|known| *known == name);
            let twice = if let Some(place) = place(&["ram", "vram"]) {
                sizes[place].replace(super::memory_size(value)?.0).is_some()
            } else if let Some(place) = place(&["disk", "memory", "bus", "compute"]) {
                let speed = value.parse().ok().filter(|speed| (1e-3..1e6).contains(speed));
                let speed: f64 =
                    speed.ok_or_else(|| format!("{name}={value} is no speed; {FORM}"))?;
                speeds[place].replace(speed * 1e9).is_some()
            } else {
                return Err(format!("\"{name}\" is not known; {FORM}"));
            };
            if twice {
                return Err(format!("{name} is given twice"));
            }
        }
        let missing = |name: &str| format!("{name}= is missing; {FORM}");
        let [ram, vram] = sizes;
        let [disk, memory, bus, compute] = speeds;
        let gpu = match (vram, bus) {
            (Some(vram), Some(bus)) => Some((vram, bus)),
            (None, None) => None,
            (None, Some(_)) => return Err(missing("vram")),
            (Some(_), None) => return Err(missing("bus")),
        };
        Ok(Self {
            ram: ram.ok_or_else(|| missing("ram"))?,
            disk: disk.ok_or_else(|| missing("disk"))?,
            memory: memory.ok_or_else(|| missing("memory"))?,
            gpu,
            compute,
        })
    }
}

impl AssumedMachine {
    /// The GPU's name in a plan.
    pub(crate) fn gpu_name(vram: u64) -> String {
        format!("a GPU of {}", ByteSize(vram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_whole_or_refused_by_name() {
        let card: AssumedMachine = "ram=64G,disk=7,memory=936,vram=24G,bus=25".parse().unwrap();
        assert_eq!((card.ram, card.gpu), (64 << 30, Some((24 << 30, 25e9))));
        assert_eq!((card.disk, card.memory, card.compute), (7e9, 936e9, None));
        let board: AssumedMachine = "memory=60,disk=3.5,ram=32G,compute=900".parse().unwrap();
        assert_eq!((board.gpu, board.compute), (None, Some(900e9)));
        for (text, named) in [
            ("", "no value"),
            ("ram=64G", "disk="),
            ("ram=64G,disk=7,memory=60,vram=24G", "bus="),
            ("ram=64G,disk=7,memory=60,bus=25", "vram="),
            ("ram=64G,ram=32G,disk=7,memory=60", "twice"),
            ("ram=64G,disk=fast,memory=60", "disk=fast"),
            ("ram=64G,disk=-1,memory=60", "disk=-1"),
            ("ram=64,disk=1,memory=60", "64G?"),
            ("ram=64G,disk=7,memory=60,cores=8", "cores"),
        ] {
            let error = text.parse::<AssumedMachine>().unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
