//! Goal: no value of a key of a GGUF file is misread in silence, whatever the architecture. Method: a file of
//! every architecture that is read, as the reference's converter writes it but for the data
//! (gguf_architectures.txt), is given every key that any of them has, and those that change the computation
//! elsewhere, in every type and range.
//!
//! Each value must be refused in one line, or leave the model exactly what it was, or be another model where the key
//! is declared to say what nothing else does, and then the configuration must have that very value. What a key means
//! beyond its number, and what its absence means, is listed here.
//!
//! The ordinary run tries a part of the values, another part for each key; `FLASHMOE_CAMPAIGN=1` tries all and says how
//! many there were.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use serde_json::Value;
use store::format::config::keys::{self, Effect, Place};
use store::format::{Checkpoint, open};
use store::synthetic::gguf::{F32, GgufFile, GgufTensor, GgufValue, Q8_0};

use crate::configuration::{LINE_BYTES_MAX, meaning};
use crate::long::is_campaign;

/// Of how many values one is tried in the ordinary run.
const PART: usize = 32;

/// Keys that change what is computed where an architecture has them, after its name.
const FURTHER: [&str; 20] = [
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.causal",
    "attention.temperature_scale",
    "attention.recurrent_layers",
    "attn_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "interleave_moe_layer_step",
    "use_parallel_residual",
    "vocab_size",
    "general.type",
    "adapter.type",
];

/// Keys whose value the configuration has in another form: architecture, key, and which.
const DERIVED: [(&str, &str, &str); 16] = [
    ("qwen3next", "rope.dimension_count", "a share of a head"),
    ("qwen35moe", "rope.dimension_count", "a share of a head"),
    ("glm4moe", "rope.dimension_count", "a share of a head"),
    ("qwen4exp", "rope.dimension_count", "a share of a head"),
    ("qwen3moe", "rope.dimension_count", "a share of a head"),
    ("gpt-oss", "rope.dimension_count", "a share of a head"),
    ("qwen3next", "full_attention_interval", "a kind for each layer"),
    ("qwen35moe", "full_attention_interval", "a kind for each layer"),
    ("qwen4exp", "full_attention_interval", "a kind for each layer"),
    ("gpt-oss", "rope.scaling.type", "an object, or none"),
    ("deepseek4", "rope.scaling.type", "an object, or none"),
    ("deepseek2", "rope.scaling.yarn_log_multiplier", "ten times as much"),
    ("deepseek32", "rope.scaling.yarn_log_multiplier", "ten times as much"),
    ("glm-dsa", "rope.scaling.yarn_log_multiplier", "ten times as much"),
    ("gemma4", "rope.freq_base", "an object for each kind of layer"),
    ("gemma4", "rope.freq_base_swa", "an object for each kind of layer"),
];

/// Keys for which zero is as good as absent.
const ZERO: [&str; 4] = [
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_scale",
    "final_logit_softcapping",
];

/// Keys whose absence is another model than the file's value: architecture, key, and what it means.
const ABSENT: [(&str, &str, &str); 14] = [
    ("every", "context_length", "as long as the family's models"),
    ("deepseek2", "expert_weights_norm", "weights are not divided by their sum"),
    ("glm4moe", "expert_weights_norm", "weights are not divided by their sum"),
    ("deepseek2", "expert_weights_scale", "weights as they are"),
    ("glm4moe", "expert_weights_scale", "weights as they are"),
    ("deepseek2", "expert_group_used_count", "one group"),
    ("glm-dsa", "expert_weights_norm", "weights are not divided by their sum"),
    ("glm-dsa", "expert_weights_scale", "weights as they are"),
    ("glm-dsa", "expert_group_used_count", "one group"),
    ("deepseek32", "expert_weights_norm", "weights are not divided by their sum"),
    ("deepseek32", "expert_weights_scale", "weights as they are"),
    ("deepseek32", "expert_group_used_count", "one group"),
    ("gemma4", "final_logit_softcapping", "logits as they are"),
    ("kimi-linear", "expert_weights_scale", "weights as they are"),
];

fn entry(kind: &str, text: &str) -> GgufValue {
    let list = |id: u32, bytes: Vec<u8>| {
        let count = text.split(',').count() as u64;
        GgufValue::Raw(9, [&id.to_le_bytes()[..], &count.to_le_bytes(), &bytes].concat())
    };
    match kind {
        "u32" => GgufValue::U32(text.parse().unwrap()),
        "f32" => GgufValue::F32(text.parse().unwrap()),
        "bool" => GgufValue::Bool(text.parse().unwrap()),
        "text" => GgufValue::Text(text.to_owned()),
        "i32s" => GgufValue::I32s(text.split(',').map(|it| it.parse().unwrap()).collect()),
        "u64s" => {
            let bytes = text.split(',').flat_map(|it| it.parse::<u64>().unwrap().to_le_bytes());
            list(10, bytes.collect())
        }
        "bools" => GgufValue::Bools(text.split(',').map(|it| it.parse().unwrap()).collect()),
        "f32s" => {
            let bytes = text.split(',').flat_map(|it| it.parse::<f32>().unwrap().to_le_bytes());
            list(6, bytes.collect())
        }
        other => panic!("{other}"),
    }
}

/// The tensors of a line: one, or one for each of its layers.
fn tensors(kind: &str, name: &str, sizes: &str) -> Vec<GgufTensor> {
    let sizes: Vec<u64> = sizes.split('x').map(|size| size.parse().unwrap()).collect();
    let values = sizes.iter().product::<u64>() as usize;
    let (type_id, bytes) = match kind {
        "F32" => (F32, 4 * values),
        "I32" => (26, 4 * values),
        "Q8_0" => (Q8_0, values / 32 * 34),
        other => panic!("{other}"),
    };
    let tensor = |name: String| GgufTensor {
        name,
        sizes: sizes.clone(),
        type_id,
        data: vec![0; bytes],
        offset: None,
    };
    let Some((layers, rest)) = name.strip_prefix("blk.").and_then(|name| name.split_once('.'))
    else {
        return vec![tensor(name.to_owned())];
    };
    layers.split(',').map(|layer| tensor(format!("blk.{layer}.{rest}"))).collect()
}

/// A file of each architecture.
fn architectures() -> Vec<(String, GgufFile)> {
    let mut all: Vec<(String, GgufFile)> = Vec::new();
    for line in include_str!("gguf_architectures.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["architecture", name] => {
                let mut file = GgufFile::tiny(F32);
                file.tensors.clear();
                file.keys.retain(|(key, _)| !key.starts_with("qwen3moe."));
                file.set("general.architecture", GgufValue::Text(name.to_owned()));
                all.push((name.to_owned(), file));
            }
            [kind, name, value] if kind == kind.to_lowercase() => {
                let (architecture, file) = all.last_mut().unwrap();
                file.set(&format!("{architecture}.{name}"), entry(kind, value));
            }
            [kind, name, sizes] => {
                all.last_mut().unwrap().1.tensors.extend(tensors(kind, name, sizes));
            }
            _ => {}
        }
    }
    for (_, file) in &mut all {
        if let Some(tensor) = file.tensors.iter_mut().find(|it| it.name == "rope_freqs.weight") {
            // A quarter of the pairs turns.
            let turning = tensor.data.len() / 16;
            for (number, factor) in tensor.data.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *factor = (if number < turning { 1.0_f32 } else { 1e30 }).to_le_bytes();
            }
        }
    }
    all
}

/// Writes what is not zero.
fn write(path: &Path, file: &GgufFile) {
    let mut out = File::create(path).unwrap();
    let header = file.header();
    out.write_all(&header).unwrap();
    let mut at = (header.len() as u64).next_multiple_of(file.alignment);
    for tensor in &file.tensors {
        if tensor.name == "rope_freqs.weight" {
            out.seek(SeekFrom::Start(at)).unwrap();
            out.write_all(&tensor.data).unwrap();
        }
        at = (at + tensor.data.len() as u64).next_multiple_of(file.alignment);
    }
    out.set_len(at).unwrap();
}

/// Values of every type, and numbers at the ends of ranges and next to the right one.
fn values(right: Option<&GgufValue>) -> Vec<GgufValue> {
    let counts = [0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 128, 264, 1 << 20, u32::MAX];
    let floats = [0.0, -0.0, 1.0, 0.5, 2.0, 4.0, 1e-5, 1e-13, 1e4, 1e30, -1.0];
    let texts = ["", "4", "none", "yarn", "linear", "longrope", "adapter", "mmproj", "model"];
    let mut all: Vec<GgufValue> = counts.map(GgufValue::U32).to_vec();
    all.extend([0, 1, 4, u64::MAX].map(GgufValue::U64));
    all.extend([-1, 0, 2, i32::MIN].map(GgufValue::I32));
    all.extend(floats.map(GgufValue::F32));
    all.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(GgufValue::F32));
    all.extend([true, false].map(GgufValue::Bool));
    all.extend(texts.map(|text| GgufValue::Text(text.to_owned())));
    all.extend([vec![], vec![2, 2], vec![1, 2], vec![4, 4, 4, 4]].map(GgufValue::I32s));
    all.extend([GgufValue::Texts(vec![]), GgufValue::Bools(vec![true, false]), GgufValue::U16(3)]);
    // Wider types, by their numbers: a 64-bit float, a 64-bit integer, a type that there is not.
    all.push(GgufValue::Raw(12, 2.0_f64.to_le_bytes().to_vec()));
    all.push(GgufValue::Raw(11, (-4_i64).to_le_bytes().to_vec()));
    all.push(GgufValue::Raw(13, vec![0; 8]));
    match right {
        Some(GgufValue::U32(value)) => {
            all.extend(
                [value.wrapping_sub(1), value + 1, 2 * value, value / 2].map(GgufValue::U32),
            );
            all.push(GgufValue::F32(*value as f32));
            all.push(GgufValue::I32s(vec![*value as i32; 4]));
        }
        Some(GgufValue::F32(value)) => {
            all.extend([2.0 * value, value / 2.0, -value, value * 1.001].map(GgufValue::F32));
            all.push(GgufValue::Raw(12, f64::from(*value).to_le_bytes().to_vec()));
        }
        Some(GgufValue::I32s(list)) => {
            let mut reversed = list.clone();
            reversed.reverse();
            all.extend([reversed, list[1..].to_vec(), vec![0; list.len()]].map(GgufValue::I32s));
        }
        Some(GgufValue::Bools(list)) => {
            let other = list.iter().map(|it| !it).collect();
            all.extend([other, list[1..].to_vec(), vec![true; list.len()]].map(GgufValue::Bools));
        }
        _ => {}
    }
    all
}

/// A number or a truth value as it is written.
fn plain(value: &GgufValue) -> Option<f64> {
    Some(match value {
        GgufValue::U32(it) => f64::from(*it),
        GgufValue::I32(it) => f64::from(*it),
        GgufValue::F32(it) => f64::from(*it),
        GgufValue::U64(it) => *it as f64,
        GgufValue::U16(it) => f64::from(*it),
        GgufValue::Bool(it) => f64::from(*it),
        GgufValue::Raw(12, bytes) => f64::from_le_bytes(bytes[..].try_into().ok()?),
        GgufValue::Raw(11, bytes) => i64::from_le_bytes(bytes[..].try_into().ok()?) as f64,
        _ => return None,
    })
}

/// What the configuration has under a name, wherever it is.
fn entered(checkpoint: &Checkpoint, ours: &str) -> Vec<Value> {
    let places = [Place::Root, Place::Text, Place::Rope, Place::FullRope];
    let objects = places.into_iter().flat_map(|place| checkpoint.config.places(place));
    objects.filter_map(|(_, object)| object.get(ours).cloned()).collect()
}

/// Why an accepted value that makes another model is not what the key is declared to say.
fn complaint(path: &Path, architecture: &str, name: &str, value: &GgufValue) -> Option<String> {
    let checkpoint = open(path).unwrap();
    let names = checkpoint.config.names().filter(|(_, theirs)| *theirs == name);
    let ours: Vec<&str> = names.map(|(ours, _)| ours).collect();
    let short = name.split_once('.').map_or(name, |(_, short)| short);
    let is_answer = |ours: &str| {
        keys::all().iter().any(|key| key.name() == ours && key.effect() == Effect::Answer)
    };
    let is_derived = |(of, key, _): &(&str, &str, &str)| *of == architecture && *key == short;
    if DERIVED.iter().any(is_derived) || (ZERO.contains(&short) && plain(value) == Some(0.0)) {
        return None;
    }
    if !ours.iter().any(|ours| is_answer(ours)) {
        return Some(format!("means something else; it became {ours:?}"));
    }
    let wanted = plain(value)?;
    let same = |found: &Value| {
        let number = found.as_f64().or_else(|| found.as_bool().map(f64::from));
        // Decimal forms of binary32 are the shortest ones.
        number.is_some_and(|number| number == wanted || number as f32 == wanted as f32)
    };
    let found: Vec<Value> = ours.iter().flat_map(|ours| entered(&checkpoint, ours)).collect();
    if found.iter().any(same) { None } else { Some(format!("was taken for {found:?}")) }
}

#[derive(Default)]
struct Tried {
    refused: usize,
    unchanged: usize,
    declared: usize,
    wrong: Vec<String>,
}

fn try_every_value(architecture: &str, tiny: &GgufFile, names: &BTreeSet<String>) -> Tried {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let of = |file: &GgufFile| {
        write(&path, file);
        meaning(&path)
    };
    let right = of(tiny).unwrap_or_else(|error| panic!("{architecture}: {error}"));
    let mut tried = Tried::default();
    let header = GgufFile { tensors: Vec::new(), ..tiny.clone() };
    for (number, name) in names.iter().enumerate() {
        let known = header.keys.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let values = values(known).into_iter().map(Some).chain([None]).enumerate();
        let part = |index: usize| is_campaign() || index % PART == number % PART;
        for (_, value) in values.filter(|(index, value)| value.is_none() || part(*index)) {
            let mut file = tiny.clone();
            match &value {
                Some(value) => file.set(name, value.clone()),
                None => file.remove(name),
            }
            let short = name.split_once('.').map_or(name.as_str(), |(_, short)| short);
            let wrong = match (of(&file), &value) {
                (Err(line), _) => {
                    let fits = line.len() < LINE_BYTES_MAX && !line.chars().any(char::is_control);
                    tried.refused += usize::from(fits);
                    (!fits).then_some(line)
                }
                (Ok(meaning), _) if meaning == right => {
                    tried.unchanged += 1;
                    None
                }
                (Ok(_), Some(value)) => {
                    let wrong = complaint(&path, architecture, name, value);
                    tried.declared += usize::from(wrong.is_none());
                    wrong
                }
                (Ok(_), None) => {
                    let known = ABSENT.iter().any(|(of, key, _)| {
                        (*of == architecture || *of == "every") && *key == short
                    });
                    tried.declared += usize::from(known);
                    (!known).then(|| "its absence means something else".to_owned())
                }
            };
            tried.wrong.extend(wrong.map(|wrong| format!("{name} = {value:?}: {wrong}")));
        }
    }
    tried
}

#[test]
fn no_value_of_a_gguf_key_is_taken_for_something_else() {
    let all = architectures();
    assert_eq!(all.len(), 13, "one of each architecture that is read");
    let mut shorts: BTreeSet<String> = FURTHER.iter().map(|&key| key.to_owned()).collect();
    for (architecture, file) in &all {
        let own = file.keys.iter().filter_map(|(key, _)| key.strip_prefix(architecture.as_str()));
        shorts.extend(own.filter_map(|key| key.strip_prefix('.')).map(str::to_owned));
    }
    let found: Vec<Tried> = std::thread::scope(|scope| {
        let running = all.iter().map(|(architecture, file)| {
            let whole =
                |key: &String| match key.starts_with("general.") || key.starts_with("adapter.") {
                    true => key.clone(),
                    false => format!("{architecture}.{key}"),
                };
            let names: BTreeSet<String> = shorts.iter().map(whole).collect();
            scope.spawn(move || try_every_value(architecture, file, &names))
        });
        let running: Vec<_> = running.collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    let sum = |part: fn(&Tried) -> usize| found.iter().map(part).sum::<usize>();
    let counts = format!(
        "{} keys in {} architectures: {} refused, {} without effect, {} declared, {} wrong",
        shorts.len(),
        all.len(),
        sum(|it| it.refused),
        sum(|it| it.unchanged),
        sum(|it| it.declared),
        sum(|it| it.wrong.len())
    );
    if is_campaign() {
        Write::write_all(&mut std::io::stderr(), format!("GGUF: {counts}\n").as_bytes()).unwrap();
    }
    let wrong: Vec<&str> = found.iter().flat_map(|it| &it.wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{counts}\n{}", wrong.join("\n"));
    assert!(sum(|it| it.refused) > 500 && sum(|it| it.declared) > 20, "{counts}");
}
