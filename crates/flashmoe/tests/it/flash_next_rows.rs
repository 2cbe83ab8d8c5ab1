//! Qwen3.8-Flash-Next as MLX and the publisher quantise it: rows of n-grams in groups of four bits, which lie in three
//! places, and in 8-bit floats with one scale. Each file gives the bits of one whose table has the same values in
//! binary32, whichever way its norms are stored.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Scored, distance, flashmoe, golden, run};

use crate::quantised::{Stored, floats, in_tiles, nvfp4, read, values_of_codes, write};
use crate::support;

const CASE: &str = "flash-next-calm-hf";
/// Values of a row: four times those of the golden net, a group of MLX.
const COLUMNS: usize = 32;

fn is_table(name: &str) -> bool {
    name.contains(".ngram_embedding.")
}

/// The values of a tensor in bfloat16.
fn values(tensor: &Stored) -> Vec<f32> {
    assert_eq!(tensor.dtype, "BF16", "{}", tensor.name);
    let pairs = tensor.bytes.as_chunks().0.iter();
    pairs.map(|[low, high]| f32::from_bits(u32::from_le_bytes([0, 0, *low, *high]))).collect()
}

/// The golden net with rows of [`COLUMNS`] values: its tensors, and its configuration.
fn widened() -> (Vec<Stored>, Value) {
    let model = golden().join(CASE).join("model");
    let mut tensors = read(&model.join("model.safetensors"));
    tensors.retain(|tensor| !tensor.name.starts_with("mtp.") && !tensor.name.contains("visual"));
    for tensor in &mut tensors {
        let row = tensor.shape.last().map_or(0, |columns| 2 * columns);
        if is_table(&tensor.name) {
            // Four rows one after the other are one, in an order of its own for each.
            let rows: Vec<&[u8]> = tensor.bytes.chunks(row).collect();
            let wide = (0..rows.len())
                .flat_map(|at| [0, 7, 11, 31].map(|step| rows[(at + step) % rows.len()]).concat());
            tensor.bytes = wide.collect();
            tensor.shape[1] = COLUMNS;
        }
        if tensor.name.ends_with("ple.key_proj.weight")
            || tensor.name.ends_with("ple.value_proj.weight")
        {
            tensor.bytes = tensor.bytes.chunks(row).flat_map(|row| row.repeat(4)).collect();
            tensor.shape[1] *= 4;
        }
    }
    let config = fs::read(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["text_config"]["ple_embed_dim"] = json!(4 * COLUMNS);
    (tensors, config)
}

/// Writes a model into a folder of its own.
fn model(folder: &Path, name: &str, tensors: &[Stored], config: &Value) -> PathBuf {
    let model = folder.join(name);
    support::copy_folder(&golden().join(CASE).join("model"), &model);
    write(&model.join("model.safetensors"), tensors);
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    model
}

fn score(model: &Path, options: &[&str]) -> Scored {
    Scored::with_ids_of(CASE, model, options)
}

/// The line of a refusal.
fn refusal(model: &Path) -> String {
    let output = flashmoe(&["inspect", model.to_str().unwrap()]);
    assert!(!output.status.success(), "was accepted");
    String::from_utf8(output.stderr).unwrap()
}

fn stored(name: String, dtype: &'static str, shape: Vec<usize>, bytes: Vec<u8>) -> Stored {
    Stored { name, dtype, shape, bytes }
}

/// The upper half of a number's bits: itself, where it is one of bfloat16.
fn bf16(value: f32) -> [u8; 2] {
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}

/// A part of the table in groups of `bits`, a row each: values, scales, biases; and its values.
fn in_groups(tensor: &Stored, bits: u32) -> ([Stored; 3], Stored) {
    let (mut words, mut scales, mut biases, mut exact) = (vec![], vec![], vec![], vec![]);
    let cut = |value: f32| f32::from_bits(value.to_bits() & 0xffff_0000);
    for row in values(tensor).chunks(COLUMNS) {
        let (low, high) = row.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        let scale = cut((high - low) / ((1 << bits) - 1) as f32).max(1e-3_f32.max(cut(1e-3)));
        let scale = cut(scale);
        scales.extend(bf16(scale));
        biases.extend(bf16(low));
        let mut packed = vec![0_u8; COLUMNS * bits as usize / 8];
        for (at, value) in row.iter().enumerate() {
            let code = ((value - low) / scale).round().clamp(0.0, ((1 << bits) - 1) as f32);
            exact.push(code * scale + low);
            let place = at * bits as usize;
            packed[place / 8] |= (code as u8) << (place % 8);
        }
        words.extend(packed);
    }
    let stem = tensor.name.strip_suffix("weight").unwrap();
    let rows = tensor.shape[0];
    let planes = [
        stored(tensor.name.clone(), "U32", vec![rows, COLUMNS * bits as usize / 32], words),
        stored(format!("{stem}scales"), "BF16", vec![rows, 1], scales),
        stored(format!("{stem}biases"), "BF16", vec![rows, 1], biases),
    ];
    (planes, stored(tensor.name.clone(), "F32", vec![rows, COLUMNS], floats(&exact)))
}

/// The name and form that MLX has of a tensor. `one` is added to norms.
fn as_mlx(tensor: Stored, one: f32) -> Vec<Stored> {
    let Stored { name, dtype, mut shape, bytes } = tensor;
    let name = match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("language_model.model.{rest}"),
        None => format!("language_model.{name}"),
    };
    let norm = name.contains("norm") && !name.contains("linear_attn.norm");
    if norm && one != 0.0 {
        let own = stored(name.clone(), dtype, shape.clone(), bytes);
        let bytes = values(&own).iter().flat_map(|value| bf16(value + one)).collect();
        return vec![stored(name, dtype, shape, bytes)];
    }
    if name.ends_with("conv1d.weight") {
        shape.swap(1, 2);
    }
    if let Some(stem) = name.strip_suffix("experts.gate_up_proj") {
        let [count, both, columns] = shape[..] else { panic!("{name}") };
        let half = both / 2 * columns * 2;
        let part = |part: usize, of: &str| {
            let bytes = bytes.chunks(half).skip(part).step_by(2).flatten().copied().collect();
            stored(
                format!("{stem}switch_mlp.{of}.weight"),
                dtype,
                vec![count, both / 2, columns],
                bytes,
            )
        };
        return vec![part(0, "gate_proj"), part(1, "up_proj")];
    }
    let name = match name.strip_suffix("experts.down_proj") {
        Some(stem) => format!("{stem}switch_mlp.down_proj.weight"),
        None => name,
    };
    vec![stored(name, dtype, shape, bytes)]
}

/// The net as MLX writes it, its table in groups of `bits`, and with the table's values in binary32. Norms are around
/// `one`; parts are called as `rename` has it.
fn mlx(folder: &Path, bits: u32, one: f32, rename: (&str, &str)) -> [PathBuf; 2] {
    let (tensors, mut config) = widened();
    let (mut grouped, mut exact) = (Vec::new(), Vec::new());
    for tensor in tensors {
        if is_table(&tensor.name) {
            let (planes, values) = in_groups(&tensor, bits);
            grouped.extend(planes.into_iter().flat_map(|it| as_mlx(it, 0.0)));
            exact.extend(as_mlx(values, 0.0));
            continue;
        }
        for to in [&mut grouped, &mut exact] {
            let Stored { name, dtype, shape, bytes } = &tensor;
            let own = stored(name.clone(), dtype, shape.clone(), bytes.clone());
            to.extend(as_mlx(own, one));
        }
    }
    for tensor in grouped.iter_mut().chain(&mut exact) {
        tensor.name = tensor.name.replace(rename.0, rename.1);
    }
    config["quantization"] = json!({"bits": bits, "group_size": 32});
    [("grouped", grouped), ("exact", exact)].map(|(name, mut tensors)| {
        // The planes of a part do not lie together.
        tensors.sort_by_key(|tensor| tensor.name.rsplit('.').next().map(str::to_owned));
        model(folder, &format!("{name}-{bits}-{one}-{}", rename.1), &tensors, &config)
    })
}

const SAME: (&str, &str) = (".shard_", ".shard_");

#[test]
fn rows_in_groups_have_the_bits_of_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let (tensors, config) = widened();
    let plain = score(&model(folder.path(), "plain", &tensors, &config), &[]);
    for (bits, rename) in [(4, SAME), (8, (".shard_", ".shards."))] {
        let [grouped, exact] = mlx(folder.path(), bits, 0.0, rename);
        let expected = score(&exact, &[]);
        let apart = distance(&expected, &plain);
        assert!(apart > if bits == 4 { 1e-3 } else { 1e-5 }, "{bits} bits: {apart:e}");
        for options in [
            &[][..],
            &["--prefill-chunk", "1"],
            &["--prefill-chunk", "13", "--threads", "1"],
            &["--storage", "mmap", "--threads", "3"],
            &["--storage", "resident", "--prefill-chunk", "7"],
        ] {
            assert!(score(&grouped, options) == expected, "{bits} bits, {options:?}");
        }
        let path = grouped.to_str().unwrap();
        let found: Value = serde_json::from_str(&run(&["inspect", path, "--json"])).unwrap();
        let row = COLUMNS * bits as usize / 8 + 4;
        assert_eq!(found["row_table_bytes"].as_u64(), Some(120 * row as u64));
    }
}

/// Files of this family have norms around zero or around one, and nothing but the norms says which.
#[test]
fn norms_around_zero_and_around_one_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, _] = mlx(folder.path(), 4, 0.0, SAME);
    let [one, _] = mlx(folder.path(), 4, 1.0, SAME);
    assert!(score(&zero, &[]) == score(&one, &[]));
    let [between, _] = mlx(folder.path(), 4, 0.5, SAME);
    let line = refusal(&between);
    assert!(line.contains("hc_norm") && line.contains("neither around zero nor one"), "{line}");
}

#[test]
fn planes_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [grouped, _] = mlx(folder.path(), 4, 0.0, SAME);
    let path = grouped.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for (from, to) in [("shard_1.scales", "shard_7.scales"), ("shard_1.biases", "shard_x.biases")] {
        let mut changed = bytes.clone();
        let at = changed.windows(from.len()).position(|it| it == from.as_bytes()).unwrap();
        changed[at..at + from.len()].copy_from_slice(to.as_bytes());
        assert_ne!(text(&changed[..at + 20]), text(&bytes[..at + 20]));
        fs::write(&path, changed).unwrap();
        let line = refusal(&grouped);
        assert!(line.contains("ngram_embedding"), "{from} as {to}: {line}");
    }
    fs::write(&path, &bytes).unwrap();
    let config = grouped.join("config.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    json["quantization"]["group_size"] = json!(64);
    fs::write(&config, json.to_string()).unwrap();
    let line = refusal(&grouped);
    assert!(line.contains("ngram_embedding") && line.contains("contradict"), "{line}");
}

/// How the experts of a release are stored.
#[derive(Clone, Copy, PartialEq)]
enum Experts {
    Tiles,
    Nvfp4,
}

/// The net as released in 8-bit floats: experts in tiles, or in 4-bit floats by ModelOpt, rows with the table's scale;
/// and with these values in binary32.
fn released(folder: &Path, experts: Experts) -> [PathBuf; 2] {
    let (tensors, mut config) = widened();
    let (mut low, mut exact) = (Vec::new(), Vec::new());
    let codes = values_of_codes();
    let scale = 2.0_f32.powi(-7) * 1.625;
    let mut prefix = String::new();
    for tensor in tensors {
        let Stored { name, dtype, shape, bytes } = &tensor;
        if is_table(name) {
            let stem = name.split_once("ngram_embedding.").unwrap().0;
            prefix = format!("{stem}ngram_embedding.");
            let nearest = |value: f32| {
                let distance = |of: f32| (of * scale - value).abs();
                *codes.iter().min_by(|a, b| distance(a.1).total_cmp(&distance(b.1))).unwrap()
            };
            let rounded: Vec<(u8, f32)> = values(&tensor).into_iter().map(nearest).collect();
            let bytes = rounded.iter().map(|it| it.0).collect();
            low.push(stored(name.clone(), "F8_E4M3", shape.clone(), bytes));
            let values: Vec<f32> = rounded.iter().map(|it| it.1 * scale).collect();
            exact.push(stored(name.clone(), "F32", shape.clone(), floats(&values)));
            continue;
        }
        let parts: &[&str] = match name.rsplit('.').next() {
            Some("gate_up_proj") => &["gate_proj", "up_proj"],
            Some("down_proj") if shape.len() == 3 => &["down_proj"],
            _ => {
                for to in [&mut low, &mut exact] {
                    to.push(stored(name.clone(), dtype, shape.clone(), bytes.clone()));
                }
                continue;
            }
        };
        let stem = &name[..name.rfind('.').unwrap()];
        let rows = shape[1] / parts.len();
        let matrices = values(&tensor);
        for (index, matrix) in matrices.chunks(rows * shape[2]).enumerate() {
            let (expert, part) = (index / parts.len(), parts[index % parts.len()]);
            let stem = format!("{stem}.{expert}.{part}.");
            let made = match experts {
                Experts::Tiles => in_tiles(&stem, [rows, shape[2]], matrix, false),
                Experts::Nvfp4 => nvfp4(&stem, [rows, shape[2]], matrix, false),
            };
            low.extend(made.tensors);
            exact.push(stored(
                format!("{stem}weight"),
                "F32",
                vec![rows, shape[2]],
                floats(&made.exact),
            ));
        }
    }
    low.push(stored(format!("{prefix}weight_scale"), "BF16", vec![1], bf16(scale).to_vec()));
    let plain = config.clone();
    config["quantization_config"] = match experts {
        Experts::Tiles => json!({
            "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        }),
        // The table is among what is ignored, and in 8 bits even so.
        Experts::Nvfp4 => json!({
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.ple.*"],
        }),
    };
    [model(folder, "low", &low, &config), model(folder, "exact", &exact, &plain)]
}

#[test]
fn releases_with_rows_of_8_bits_have_the_answers_of_their_values() {
    for experts in [Experts::Tiles, Experts::Nvfp4] {
        let folder = tempfile::tempdir().unwrap();
        let [low, exact] = released(folder.path(), experts);
        let expected = score(&exact, &[]);
        let found = score(&low, &[]);
        let error = distance(&found, &expected);
        assert!(error < 1e-5, "{error:e}");
        assert!(score(&low, &["--prefill-chunk", "5", "--threads", "1"]) == found);
        let path = low.to_str().unwrap();
        let inspected: Value = serde_json::from_str(&run(&["inspect", path, "--json"])).unwrap();
        assert_eq!(inspected["row_table_bytes"].as_u64(), Some(120 * COLUMNS as u64));
    }
}

/// A scale for something else than all rows, one that is no number, and one of rows that need none.
#[test]
fn scales_of_rows_that_are_wrong_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [low, exact] = released(folder.path(), Experts::Tiles);
    let path = low.join("model.safetensors");
    let scaled = |change: &dyn Fn(&mut Stored)| {
        let mut header = fs::read(&path).unwrap();
        let length = u64::from_le_bytes(header[..8].try_into().unwrap()) as usize;
        let json: Value = serde_json::from_slice(&header[8..8 + length]).unwrap();
        let (name, entry) = json
            .as_object()
            .unwrap()
            .iter()
            .find(|it| it.0.ends_with("ngram_embedding.weight_scale"))
            .unwrap();
        let offset = entry["data_offsets"][0].as_u64().unwrap() as usize + 8 + length;
        let mut scale = stored(name.clone(), "BF16", vec![1], header[offset..offset + 2].to_vec());
        change(&mut scale);
        header[offset..offset + 2].copy_from_slice(&scale.bytes);
        fs::write(&path, header).unwrap();
        refusal(&low)
    };
    let line = scaled(&|scale| scale.bytes = bf16(f32::INFINITY).to_vec());
    assert!(line.contains("ngram_embedding.weight_scale") && line.contains("inf"), "{line}");
    let mut tensors = read(&exact.join("model.safetensors"));
    let stem = tensors.iter().find(|it| is_table(&it.name)).unwrap().name.clone();
    let name =
        format!("{}ngram_embedding.weight_scale", stem.split_once("ngram_embedding").unwrap().0);
    for (shape, words) in [(vec![1], "a scale of rows that have none"), (vec![2], "not one number")]
    {
        let bytes = bf16(0.5).repeat(shape.len().max(shape[0]));
        tensors.retain(|it| it.name != name);
        tensors.push(stored(name.clone(), "BF16", shape, bytes));
        write(&exact.join("model.safetensors"), &tensors);
        let line = refusal(&exact);
        assert!(line.contains(words), "{line}");
    }
}

/// Rows of a pack are whole in one page each: values, scales and biases of MLX one after the other, the scale of 8-bit
/// floats in the manifest. Rows of 36 bytes take two pages, with zeros behind the 113 of the first.
#[test]
fn packs_give_the_bits_of_their_sources() {
    let folder = tempfile::tempdir().unwrap();
    let [four, _] = mlx(folder.path(), 4, 0.0, SAME);
    let [eight, _] = mlx(folder.path(), 8, 0.0, SAME);
    let [low, _] = released(folder.path(), Experts::Tiles);
    let golden = golden().join(CASE).join("model");
    for (source, row, encoding, [pages, last]) in [
        (&four, 20, "affine:4:32:bf16", [1, 119 * 20]),
        (&eight, 36, "affine:8:32:bf16", [2, 4096 + 6 * 36]),
        (&low, 32, "fp8:whole:bf16", [1, 119 * 32]),
        (&golden, 16, "bf16", [1, 119 * 16]),
    ] {
        let pack = folder.path().join(format!("pack-{row}"));
        let [from, to] = [source, &pack].map(|path| path.to_str().unwrap());
        let said = run(&["pack", from, to, "--dry-run"]);
        assert!(said.contains(&format!("rows of n-grams {}.00 KiB", 4 * pages)), "{said}");
        run(&["pack", from, to]);
        let expected = score(source, &[]);
        for options in [&[][..], &["--check-reads"], &["--prefill-chunk", "7", "--threads", "1"]] {
            assert!(score(&pack, options) == expected, "{encoding}: {options:?}");
        }
        assert!(run(&["verify", to]).contains("all intact"));
        let said = run(&["inspect", to]);
        let words = format!("120 of {row} bytes in layers.1.ple.ple_embedding.ngram_embedding");
        assert!(said.contains(&words) && said.contains("in pages of whole rows"), "{said}");
        assert!(said.contains(encoding), "{said}");
        let found: Value = serde_json::from_str(&run(&["inspect", to, "--json"])).unwrap();
        assert_eq!(found["row_table_bytes"].as_u64(), Some(120 * row));
        assert!(run(&["plan", to, "--device", "cpu"]).contains("rows of n-grams"));
        let rows = pack.join("rows_001.bin");
        let bytes = fs::read(&rows).unwrap();
        let mut damaged = bytes.clone();
        damaged[last] ^= 1;
        fs::write(&rows, damaged).unwrap();
        let output = flashmoe(&["verify", to]);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(!output.status.success() && said.contains("rows from 0 on"), "{said}");
        fs::write(&rows, &bytes[..bytes.len() - 1]).unwrap();
        assert!(refusal(&pack).contains("rows_001.bin"), "a file that was cut");
    }
}

/// Numbers that are none are found in rows, and no pack vouches for them.
#[test]
fn rows_that_are_no_numbers_are_found_and_not_packed() {
    let folder = tempfile::tempdir().unwrap();
    let [grouped, _] = mlx(folder.path(), 4, 0.0, SAME);
    let path = grouped.join("model.safetensors");
    let mut tensors = read(&path);
    let scales = tensors.iter_mut().find(|it| it.name.ends_with("shard_1.scales")).unwrap();
    scales.bytes[10..12].copy_from_slice(&bf16(f32::INFINITY));
    write(&path, &tensors);
    let pack = folder.path().join("pack");
    let [from, to] = [&grouped, &pack].map(|path| path.to_str().unwrap());
    for arguments in [&["verify", from][..], &["pack", from, to]] {
        let output = flashmoe(arguments);
        assert!(!output.status.success(), "{arguments:?} was accepted");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let words = ["ngram_embedding", "a value that is not finite"];
        assert!(words.iter().all(|words| said.contains(words)), "{arguments:?}: {said}");
    }
    assert!(!pack.exists());
}
