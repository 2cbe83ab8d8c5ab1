//! Tiny checkpoints for tests, written with a safetensors writer of a few lines, so that every byte of
//! them, right or wrong, is under the test's control. Weights are seeded noise.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use store::format::{Checkpoint, Extent};
use store::pack::PackProgress;

/// Deterministic noise (SplitMix64).
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(count).collect()
    }

    /// Finite values of about unit size in the given type.
    pub(crate) fn floats(&mut self, dtype: &str, count: usize) -> Vec<u8> {
        let value = |noise: &mut Self| (noise.next() % 4001) as f32 / 1000.0 - 2.0;
        let mut bytes = Vec::new();
        for _ in 0..count {
            let value = value(self);
            match dtype {
                "F32" => bytes.extend(value.to_le_bytes()),
                "BF16" => bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
                // 1.0 to 2.0 in steps of 1/1024, either sign: any such bit pattern is a half.
                "F16" => {
                    let bits = 0x3C00 | (self.next() & 0x83FF) as u16;
                    bytes.extend(bits.to_le_bytes());
                }
                other => panic!("no floats of type {other}"),
            }
        }
        bytes
    }
}

/// One tensor to write.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

/// Size of an element.
pub(crate) fn dtype_bytes(dtype: &str) -> usize {
    match dtype {
        "F32" | "U32" | "I32" => 4,
        "F16" | "BF16" => 2,
        "F64" | "I64" => 8,
        _ => 1,
    }
}

/// A list of tensors, in file order.
#[derive(Clone, Default)]
pub(crate) struct Tensors(pub(crate) Vec<Entry>);

impl Tensors {
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        dtype: &str,
        shape: &[usize],
        data: Vec<u8>,
    ) {
        let expected = shape.iter().product::<usize>() * dtype_bytes(dtype);
        assert_eq!(data.len(), expected);
        let entry =
            Entry { name: name.into(), dtype: dtype.to_owned(), shape: shape.to_vec(), data };
        self.0.push(entry);
    }

    pub(crate) fn floats(
        &mut self,
        noise: &mut Noise,
        name: impl Into<String>,
        dtype: &str,
        shape: &[usize],
    ) {
        let data = noise.floats(dtype, shape.iter().product());
        self.add(name, dtype, shape, data);
    }

    pub(crate) fn affine(
        &mut self,
        noise: &mut Noise,
        name: &str,
        shape: &[usize],
        (bits, group, scale): (usize, usize, &str),
    ) {
        let (outer, columns) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        let with = |last: usize| outer.iter().copied().chain([last]).collect::<Vec<_>>();
        let words = with(columns * bits / 32);
        let data = noise.bytes(words.iter().product::<usize>() * 4);
        self.add(format!("{name}.weight"), "U32", &words, data);
        for part in ["scales", "biases"] {
            self.floats(noise, format!("{name}.{part}"), scale, &with(columns / group));
        }
    }

    pub(crate) fn find(&mut self, name: &str) -> &mut Entry {
        let entry = self.0.iter_mut().find(|entry| entry.name == name);
        entry.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// The header's JSON with offsets in list order.
    pub(crate) fn header(&self) -> Map<String, Value> {
        let mut header = Map::new();
        let mut at = 0;
        for entry in &self.0 {
            let end = at + entry.data.len();
            let offsets = [at, end];
            let value =
                json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets});
            header.insert(entry.name.clone(), value);
            at = end;
        }
        header
    }

    pub(crate) fn data(&self) -> Vec<u8> {
        self.0.iter().flat_map(|entry| entry.data.iter().copied()).collect()
    }

    /// A whole file. MLX leaves the header unpadded, so tensors begin at any address.
    pub(crate) fn file(&self, format: &str) -> Vec<u8> {
        let mut header = self.header();
        header.insert("__metadata__".to_owned(), json!({"format": format}));
        file_of(&Value::Object(header).to_string(), &self.data())
    }
}

/// A safetensors file from any header text.
pub(crate) fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// Shape of a tiny Qwen3.5-MoE model.
#[derive(Clone, Copy)]
pub(crate) struct Tiny {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) experts: usize,
    pub(crate) vocabulary: usize,
}

pub(crate) const TINY: Tiny =
    Tiny { layers: 4, hidden: 128, intermediate: 64, experts: 4, vocabulary: 96 };

impl Tiny {
    pub(crate) fn text_config(&self) -> Value {
        json!({
            "model_type": "qwen3_5_moe_text", "hidden_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 64, "vocab_size": self.vocabulary, "rms_norm_eps": 1e-6,
            "num_experts": self.experts, "num_experts_per_tok": 2,
            "moe_intermediate_size": self.intermediate,
            "shared_expert_intermediate_size": self.intermediate, "full_attention_interval": 4,
            "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
            "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "tie_word_embeddings": false,
        })
    }

    pub(crate) fn config(&self) -> Value {
        json!({"model_type": "qwen3_5_moe", "text_config": self.text_config()})
    }

    /// Float matrices of a layer outside the experts: (name, shape).
    fn matrices(&self, layer: usize) -> Vec<(String, Vec<usize>)> {
        let (h, ff) = (self.hidden, self.intermediate);
        let mut list = vec![
            ("mlp.gate", vec![self.experts, h]),
            ("mlp.shared_expert.gate_proj", vec![ff, h]),
            ("mlp.shared_expert.up_proj", vec![ff, h]),
            ("mlp.shared_expert.down_proj", vec![h, ff]),
            ("mlp.shared_expert_gate", vec![1, h]),
        ];
        if layer % 4 == 3 {
            list.extend([
                ("self_attn.q_proj", vec![256, h]),
                ("self_attn.k_proj", vec![64, h]),
                ("self_attn.v_proj", vec![64, h]),
                ("self_attn.o_proj", vec![h, 128]),
            ]);
        } else {
            list.extend([
                ("linear_attn.in_proj_qkv", vec![256, h]),
                ("linear_attn.in_proj_z", vec![128, h]),
                ("linear_attn.in_proj_a", vec![4, h]),
                ("linear_attn.in_proj_b", vec![4, h]),
                ("linear_attn.out_proj", vec![h, 128]),
            ]);
        }
        list.into_iter().map(|(name, shape)| (format!("layers.{layer}.{name}"), shape)).collect()
    }

    /// Vectors and convolution kernels, never quantised: (full name, type, shape).
    fn vectors(&self, layer: usize, mlx: bool) -> Vec<(String, &'static str, Vec<usize>)> {
        let h = self.hidden;
        let mut list = vec![
            ("input_layernorm.weight", "BF16", vec![h]),
            ("post_attention_layernorm.weight", "BF16", vec![h]),
        ];
        if layer % 4 == 3 {
            list.push(("self_attn.q_norm.weight", "BF16", vec![64]));
            list.push(("self_attn.k_norm.weight", "BF16", vec![64]));
        } else {
            let kernel = if mlx { vec![256, 4, 1] } else { vec![256, 1, 4] };
            list.push(("linear_attn.conv1d.weight", "BF16", kernel));
            list.push(("linear_attn.A_log", "F32", vec![4]));
            list.push(("linear_attn.dt_bias", "BF16", vec![4]));
            list.push(("linear_attn.norm.weight", "F32", vec![32]));
        }
        let named = |(name, dtype, shape)| (format!("layers.{layer}.{name}"), dtype, shape);
        list.into_iter().map(named).collect()
    }

    /// MLX, everything but vectors quantised in one scheme.
    pub(crate) fn mlx(&self, scheme: (usize, usize, &str)) -> (Value, Tensors) {
        let mut noise = Noise(1);
        let mut tensors = Tensors::default();
        let (h, ff) = (self.hidden, self.intermediate);
        for layer in (0..self.layers).rev() {
            let prefix = "language_model.model.";
            for (name, shape) in self.matrices(layer) {
                tensors.affine(&mut noise, &format!("{prefix}{name}"), &shape, scheme);
            }
            for (name, dtype, shape) in self.vectors(layer, true) {
                tensors.floats(&mut noise, format!("{prefix}{name}"), dtype, &shape);
            }
            for (name, rows, columns) in
                [("down_proj", h, ff), ("gate_proj", ff, h), ("up_proj", ff, h)]
            {
                let name = format!("{prefix}layers.{layer}.mlp.switch_mlp.{name}");
                tensors.affine(&mut noise, &name, &[self.experts, rows, columns], scheme);
            }
        }
        for name in ["language_model.model.embed_tokens", "language_model.lm_head"] {
            tensors.affine(&mut noise, name, &[self.vocabulary, h], scheme);
        }
        tensors.floats(&mut noise, "language_model.model.norm.weight", "BF16", &[h]);
        let mut config = self.config();
        let quantization = json!({"group_size": scheme.1, "bits": scheme.0, "mode": "affine"});
        config["quantization"] = quantization.clone();
        config["quantization_config"] = quantization;
        (config, tensors)
    }

    /// Hugging Face in bf16, experts fused or one by one, with vision and multi-token prediction.
    pub(crate) fn hugging_face(&self, fused: bool) -> (Value, Tensors) {
        let mut noise = Noise(2);
        let mut tensors = Tensors::default();
        let (h, ff, e) = (self.hidden, self.intermediate, self.experts);
        let prefix = "model.language_model.";
        for layer in 0..self.layers {
            for (name, shape) in self.matrices(layer) {
                tensors.floats(&mut noise, format!("{prefix}{name}.weight"), "BF16", &shape);
            }
            for (name, dtype, shape) in self.vectors(layer, false) {
                tensors.floats(&mut noise, format!("{prefix}{name}"), dtype, &shape);
            }
            let experts = format!("{prefix}layers.{layer}.mlp.experts");
            if fused {
                tensors.floats(
                    &mut noise,
                    format!("{experts}.gate_up_proj"),
                    "BF16",
                    &[e, 2 * ff, h],
                );
                tensors.floats(&mut noise, format!("{experts}.down_proj"), "BF16", &[e, h, ff]);
                continue;
            }
            for expert in 0..e {
                for (name, rows, columns) in
                    [("gate_proj", ff, h), ("up_proj", ff, h), ("down_proj", h, ff)]
                {
                    let name = format!("{experts}.{expert}.{name}.weight");
                    tensors.floats(&mut noise, name, "BF16", &[rows, columns]);
                }
            }
        }
        for (name, shape) in [
            (format!("{prefix}embed_tokens.weight"), vec![self.vocabulary, h]),
            ("lm_head.weight".to_owned(), vec![self.vocabulary, h]),
            (format!("{prefix}norm.weight"), vec![h]),
            ("model.visual.patch_embed.proj.weight".to_owned(), vec![8, 3, 2, 4, 4]),
            ("mtp.fc.weight".to_owned(), vec![h, 2 * h]),
        ] {
            tensors.floats(&mut noise, name, "BF16", &shape);
        }
        (self.config(), tensors)
    }
}

/// A folder that goes away with the test.
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// config.json and one model.safetensors.
    pub(crate) fn checkpoint(config: &Value, tensors: &Tensors, format: &str) -> Self {
        let folder = Self::new();
        folder.write("config.json", config.to_string());
        folder.write("model.safetensors", tensors.file(format));
        folder
    }

    pub(crate) fn mlx() -> Self {
        let (config, tensors) = TINY.mlx((4, 64, "BF16"));
        Self::checkpoint(&config, &tensors, "mlx")
    }

    pub(crate) fn hugging_face(fused: bool) -> Self {
        let (config, tensors) = TINY.hugging_face(fused);
        Self::checkpoint(&config, &tensors, "pt")
    }
}

/// Goes on, whatever the progress.
pub(crate) fn go(_: PackProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The bytes of an extent.
pub(crate) fn bytes(checkpoint: &Checkpoint, extent: Extent) -> Vec<u8> {
    let file = fs::read(&checkpoint.files[extent.file.0 as usize].path).unwrap();
    file[extent.offset as usize..][..extent.length as usize].to_vec()
}
