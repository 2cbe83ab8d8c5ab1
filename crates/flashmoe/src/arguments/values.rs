//! Values of arguments that clap does not know: byte sizes and lists of them.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use store::shown::quoted;
use text::OnFull;

/// A number of bytes, written `6G`, `512MiB`, `1.5g` or `4096`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

const UNITS: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.trim().to_ascii_uppercase();
        let number = upper.trim_end_matches("IB").trim_end_matches('B');
        let (number, unit) = UNITS
            .iter()
            .find_map(|(letter, unit)| Some((number.strip_suffix(letter)?, *unit)))
            .unwrap_or((number, 1));
        let value: f64 = number.trim().parse().map_err(|_| {
            format!("{} is not a size; write for example 6G, 512M or 4096", quoted(text))
        })?;
        let bytes = value * unit as f64;
        if !(bytes.is_finite() && bytes >= 0.0 && bytes < (1u64 << 60) as f64) {
            return Err(format!("{} is not a usable size", quoted(text)));
        }
        Ok(Self(bytes as u64))
    }
}

/// What happens at a full context, by its names.
pub(crate) fn on_full() -> impl TypedValueParser<Value = OnFull> {
    PossibleValuesParser::new(OnFull::NAMES).try_map(|name| name.parse::<OnFull>())
}

/// A size of memory. A bare small number was meant in another unit.
pub(crate) fn memory_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if size.0 < SMALLEST_MEMORY && !text.trim().ends_with(|last: char| last.is_alphabetic()) {
        let text = text.trim();
        return Err(format!("that is {} bytes; did you mean {text}G?", size.0));
    }
    Ok(size)
}

/// Less than any model needs.
const SMALLEST_MEMORY: u64 = 1 << 20;

impl ByteSize {
    /// The shortest text that asks for at least so many bytes: `811M`.
    pub(crate) fn typed(self) -> String {
        format!("{}M", self.0.div_ceil(1 << 20))
    }

    /// How much of `total` this is, in the unit of `total`: `12.5 of 24.3 MiB`.
    pub(crate) fn of(self, total: Self) -> String {
        let unit = UNITS.into_iter().find(|&(_, unit)| total.0 >= unit);
        match unit {
            Some((letter, unit)) => {
                let [part, all] = [self, total].map(|size| size.0 as f64 / unit as f64);
                format!("{part:.1} of {all:.1} {letter}iB")
            }
            None => format!("{} of {} B", self.0, total.0),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (letter, unit) in UNITS {
            if self.0 >= unit {
                let value = self.0 as f64 / unit as f64;
                let digits = if value >= 100.0 { 0 } else { 2 };
                return write!(out, "{value:.digits$} {letter}iB");
            }
        }
        write!(out, "{} B", self.0)
    }
}

/// Tokens of an answer; -1 is what the context leaves, as in other programs.
pub(crate) fn token_count(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(u32::MAX as usize),
        Ok(0) => Err("an answer has a token at least".to_owned()),
        Ok(count) => {
            usize::try_from(count).map_err(|_| "write a number of tokens, or -1".to_owned())
        }
        Err(_) => Err(format!("{} is not a number of tokens", quoted(text))),
    }
}

/// A seed; -1 draws one, small enough for programs that compute in doubles.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    if text == "-1" {
        // The standard library's hasher is keyed by the system's random numbers.
        return Ok(RandomState::new().build_hasher().finish() >> 11);
    }
    text.parse()
        .map_err(|_| format!("{} is not a seed; write 0 to {}, or -1", quoted(text), u64::MAX))
}

/// A length of time, written `90m`, `12h` or `7d`; `s` is understood as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

const AGES: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{} is not an age; write for example 90m, 12h or 7d", quoted(text));
        let units =
            AGES.iter().find_map(|(letter, unit)| Some((text.strip_suffix(*letter)?, unit)));
        let (number, unit) = units.ok_or_else(wrong)?;
        let count: u64 = number.trim().parse().map_err(|_| wrong())?;
        count.checked_mul(*unit).map(|seconds| Self(Duration::from_secs(seconds))).ok_or_else(wrong)
    }
}

impl fmt::Display for Age {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        // Whole numbers of the largest unit that fits at least twice.
        let unit = AGES.iter().find(|(_, unit)| seconds >= 2 * unit).unwrap_or(&AGES[3]);
        write!(out, "{} {}", seconds / unit.1, unit.0)
    }
}

/// `--vram`: a cap for each device, or one for each of several, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VramCaps(Vec<ByteSize>);

impl VramCaps {
    /// The same for each.
    pub(crate) fn each(size: ByteSize) -> Self {
        Self(vec![size])
    }

    /// One for each stage; there is one at least.
    pub(crate) fn of_stages(sizes: Vec<ByteSize>) -> Self {
        Self(sizes)
    }

    /// The cap of a device; `None` where fewer were given.
    pub(crate) fn of(&self, stage: usize) -> Option<ByteSize> {
        if let [size] = self.0[..] { Some(size) } else { self.0.get(stage).copied() }
    }

    /// Whether they are those of so many devices.
    pub(crate) fn fits(&self, devices: usize) -> bool {
        self.0.len() == 1 || self.0.len() == devices
    }
}

impl FromStr for VramCaps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(memory_size).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for VramCaps {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.0.iter().map(ByteSize::to_string).collect();
        out.write_str(&sizes.join(","))
    }
}

/// A number of slots, or the fewest that work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotCount {
    /// The experts of one layer for every sequence.
    Floor,
    /// This many.
    Exactly(usize),
}

impl FromStr for SlotCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "floor" {
            return Ok(Self::Floor);
        }
        let wrong = |_| format!("{} is neither a number of slots nor \"floor\"", quoted(text));
        text.parse().map(Self::Exactly).map_err(wrong)
    }
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The first GPU that can be used, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, by the driver's number.
    Cuda(usize),
    /// A GPU of any maker through Vulkan or Metal, by its number; the first that is no software without one.
    Gpu(Option<usize>),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            "gpu" => Ok(Self::Gpu(None)),
            _ => {
                let number = |name| text.strip_prefix(name).and_then(|number| number.parse().ok());
                let cuda = number("cuda:").map(Self::Cuda);
                let device = cuda.or_else(|| number("gpu:").map(|number| Self::Gpu(Some(number))));
                device.ok_or_else(|| match text.split(':').next() {
                    Some("vulkan" | "metal" | "rocm" | "hip" | "sycl" | "mps") => {
                        format!(
                            "{} is called gpu here: any GPU, through Vulkan or Metal",
                            quoted(text)
                        )
                    }
                    _ => {
                        let names = "auto, cpu, cuda, cuda:1, gpu or gpu:1";
                        format!("{} is not a device; write {names}", quoted(text))
                    }
                })
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => write!(out, "auto"),
            Self::Cpu => write!(out, "cpu"),
            Self::Cuda(number) => write!(out, "cuda:{number}"),
            Self::Gpu(None) => write!(out, "gpu"),
            Self::Gpu(Some(number)) => write!(out, "gpu:{number}"),
        }
    }
}

/// `--device`: one, or one for each stage of a model, `cuda:0,cuda:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Devices(Vec<DeviceChoice>);

impl Devices {
    /// What computes; of several the first, which are of one kind.
    pub(crate) fn first(&self) -> DeviceChoice {
        self.0[0]
    }

    /// Those of all stages.
    pub(crate) fn all(&self) -> &[DeviceChoice] {
        &self.0
    }
}

impl From<DeviceChoice> for Devices {
    fn from(one: DeviceChoice) -> Self {
        Self(vec![one])
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let devices = text.split(',').map(str::parse).collect::<Result<Vec<DeviceChoice>, _>>()?;
        let kind = |device: &DeviceChoice| std::mem::discriminant(device);
        if devices.len() > 1 && devices.contains(&DeviceChoice::Auto) {
            return Err("auto chooses one device; name each of several, as in cpu,cpu".to_owned());
        }
        if devices.iter().any(|device| kind(device) != kind(&devices[0])) {
            let reason = "devices of several kinds give answers that depend on where layers are: name devices of one";
            return Err(reason.to_owned());
        }
        Ok(Self(devices))
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(DeviceChoice::to_string).collect();
        out.write_str(&names.join(","))
    }
}

/// `--split`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// As even as layers allow.
    Auto,
    /// Layers of each stage.
    Layers(Vec<usize>),
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let counts = text.split(',').map(str::parse).collect::<Result<Vec<u16>, _>>();
        let wrong = |_| format!("{} is no split; write auto, or layers, as in 20,20", quoted(text));
        Ok(Self::Layers(counts.map_err(wrong)?.into_iter().map(usize::from).collect()))
    }
}

impl fmt::Display for Split {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => write!(out, "auto"),
            Self::Layers(counts) => {
                let counts: Vec<_> = counts.iter().map(usize::to_string).collect();
                out.write_str(&counts.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_numbers() {
        for (text, device) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
            ("gpu", DeviceChoice::Gpu(None)),
            ("gpu:0", DeviceChoice::Gpu(Some(0))),
        ] {
            assert_eq!(text.parse(), Ok(device));
        }
        for text in ["", "gpus", "gpu:", "cuda:", "cuda:-1", "cuda:x"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn several_devices_are_of_one_kind() {
        let devices: Devices = "cuda:0,cuda:2".parse().unwrap();
        assert_eq!(devices.all(), [DeviceChoice::Cuda(0), DeviceChoice::Cuda(2)]);
        assert_eq!(
            (devices.first(), &*devices.to_string()),
            (DeviceChoice::Cuda(0), "cuda:0,cuda:2")
        );
        assert_eq!("cpu".parse::<Devices>().unwrap().all(), [DeviceChoice::Cpu]);
        assert_eq!("cpu,cpu,cpu".parse::<Devices>().unwrap().all().len(), 3);
        for text in ["", "cpu,", "cpu,gpu", "cuda,gpu:0", "auto,auto", "auto,cpu"] {
            assert!(text.parse::<Devices>().is_err(), "{text}");
        }
    }

    #[test]
    fn caps_are_of_each_device_or_of_one_after_the_other() {
        let one: VramCaps = "10G".parse().unwrap();
        assert_eq!((one.of(0), one.of(3)), (Some(ByteSize(10 << 30)), Some(ByteSize(10 << 30))));
        assert!(one.fits(1) && one.fits(4));
        let two: VramCaps = "10G,512M".parse().unwrap();
        assert_eq!((two.of(1), two.of(2)), (Some(ByteSize(512 << 20)), None));
        assert!(two.fits(2) && !two.fits(1) && !two.fits(3));
        assert_eq!(two.to_string(), "10.00 GiB,512 MiB");
        for text in ["", "10G,", "10", "10G,ten"] {
            assert!(text.parse::<VramCaps>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_split_is_a_list_of_layers() {
        for text in ["auto", "20,20", "1,2,3", "7"] {
            assert_eq!(text.parse::<Split>().unwrap().to_string(), text);
        }
        for text in ["", "20,", "a,b", "-1,2", "70000,1"] {
            assert!(text.parse::<Split>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("6G", 6 << 30),
            ("512MiB", 512 << 20),
            ("1.5g", 3 << 29),
            ("4096", 4096),
            ("2kb", 2048),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "six", "-1G", "inf", "1e30", "G"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize(6 << 30).to_string(), "6.00 GiB");
        assert_eq!(ByteSize(512 << 10).of(ByteSize(25 << 20)), "0.5 of 25.0 MiB");
        assert_eq!(ByteSize((810 << 20) + 1).typed(), "811M");
        assert_eq!(ByteSize(3).of(ByteSize(5)), "3 of 5 B");
    }
}
