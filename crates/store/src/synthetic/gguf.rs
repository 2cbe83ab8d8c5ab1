//! GGUF files made key by key and tensor by tensor, right or wrong, for tests and fuzzing.
//!
//! [`GgufFile::tiny`] is a whole Qwen3-MoE of a few kilobytes, tokenizer included. What a test wants to be wrong it
//! changes in the lists before [`GgufFile::to_bytes`], or in the bytes after it.

use crate::split_mix::SplitMix64;

/// Alignment of tensors in files that do not give another.
const ALIGNMENT: u64 = 32;
/// Numbers of tensor types.
pub const F32: u32 = 0;
/// Blocks of 32 values: a scale in binary16 and signed bytes.
pub const Q8_0: u32 = 8;

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// Number 4.
    U32(u32),
    /// Number 5.
    I32(i32),
    /// Number 6.
    F32(f32),
    /// Number 7.
    Bool(bool),
    /// Number 8.
    Text(String),
    /// Number 10.
    U64(u64),
    /// Number 2.
    U16(u16),
    /// A list of number 8.
    Texts(Vec<String>),
    /// A list of number 5.
    I32s(Vec<i32>),
    /// A list of number 7.
    Bools(Vec<bool>),
    /// A type's number and bytes as they are.
    Raw(u32, Vec<u8>),
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Its sizes, innermost first.
    pub sizes: Vec<u64>,
    /// Its type's number.
    pub type_id: u32,
    /// Its bytes.
    pub data: Vec<u8>,
    /// An offset in the place of the one that follows from the tensors before.
    pub offset: Option<u64>,
}

/// A file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufFile {
    /// Version in the header.
    pub version: u32,
    /// Keys in file order.
    pub keys: Vec<(String, GgufValue)>,
    /// Tensors in file order.
    pub tensors: Vec<GgufTensor>,
    /// Alignment of tensors; a file says so by a key of its own.
    pub alignment: u64,
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl GgufValue {
    fn write(&self, bytes: &mut Vec<u8>) {
        let number = |bytes: &mut Vec<u8>, id: u32| bytes.extend(id.to_le_bytes());
        let list = |bytes: &mut Vec<u8>, id: u32, count: usize| {
            number(bytes, 9);
            number(bytes, id);
            bytes.extend((count as u64).to_le_bytes());
        };
        match self {
            Self::U16(value) => {
                number(bytes, 2);
                bytes.extend(value.to_le_bytes());
            }
            Self::U32(value) => {
                number(bytes, 4);
                bytes.extend(value.to_le_bytes());
            }
            Self::I32(value) => {
                number(bytes, 5);
                bytes.extend(value.to_le_bytes());
            }
            Self::F32(value) => {
                number(bytes, 6);
                bytes.extend(value.to_le_bytes());
            }
            Self::Bool(value) => {
                number(bytes, 7);
                bytes.push((*value).into());
            }
            Self::Text(value) => {
                number(bytes, 8);
                text(bytes, value);
            }
            Self::U64(value) => {
                number(bytes, 10);
                bytes.extend(value.to_le_bytes());
            }
            Self::Texts(values) => {
                list(bytes, 8, values.len());
                values.iter().for_each(|value| text(bytes, value));
            }
            Self::I32s(values) => {
                list(bytes, 5, values.len());
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::Bools(values) => {
                list(bytes, 7, values.len());
                bytes.extend(values.iter().map(|&value| u8::from(value)));
            }
            Self::Raw(id, raw) => {
                number(bytes, *id);
                bytes.extend(raw);
            }
        }
    }
}

impl GgufFile {
    /// A file without keys and tensors.
    pub fn new() -> Self {
        Self { version: 3, keys: Vec::new(), tensors: Vec::new(), alignment: ALIGNMENT }
    }

    /// Sets a key, in its place where it is there already.
    pub fn set(&mut self, key: &str, value: GgufValue) {
        match self.keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, place)) => *place = value,
            None => self.keys.push((key.to_owned(), value)),
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(known, _)| known != key);
    }

    /// A tensor by its name.
    ///
    /// # Panics
    /// Where there is none.
    pub fn tensor(&mut self, name: &str) -> &mut GgufTensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.expect("a tensor of the file")
    }

    /// Adds a tensor of noise, of a type that this module has a number of.
    pub fn add(&mut self, name: &str, sizes: &[u64], type_id: u32) {
        let seed = name.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
        let mut random = SplitMix64(seed);
        let values = sizes.iter().product::<u64>() as usize;
        let spread = 1.0 / (sizes[0] as f32).sqrt();
        let mut data = Vec::new();
        if type_id == Q8_0 {
            for _ in 0..values / 32 {
                // 2^-9 and 2^-10 in binary16.
                data.extend((0x1800 - 0x400 * (random.next_u64() & 1) as u16).to_le_bytes());
                data.extend((0..32).map(|_| random.next_u64() as u8));
            }
        } else {
            data.extend((0..values).flat_map(|_| (random.normal() * spread).to_le_bytes()));
        }
        let (name, sizes) = (name.to_owned(), sizes.to_vec());
        self.tensors.push(GgufTensor { name, sizes, type_id, data, offset: None });
    }

    /// The bytes of keys and tensors' descriptions, without the padding behind them.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut bytes, key);
            value.write(&mut bytes);
        }
        let mut end = 0;
        for tensor in &self.tensors {
            text(&mut bytes, &tensor.name);
            bytes.extend((tensor.sizes.len() as u32).to_le_bytes());
            bytes.extend(tensor.sizes.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(tensor.type_id.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(end).to_le_bytes());
            end = (end + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        bytes
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        let align = |bytes: &mut Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(self.alignment as usize), 0);
        };
        align(&mut bytes);
        for tensor in &self.tensors {
            bytes.extend(&tensor.data);
            align(&mut bytes);
        }
        bytes
    }

    /// A Qwen3-MoE of two layers whose matrices have the type `type_id`, with a tokenizer of bytes.
    pub fn tiny(type_id: u32) -> Self {
        let (hidden, width, experts, head, vocabulary) = (64, 32, 4, 32, 264);
        let mut file = Self::new();
        file.set("general.architecture", GgufValue::Text("qwen3moe".to_owned()));
        for (key, value) in [
            ("block_count", 2),
            ("context_length", 512),
            ("embedding_length", hidden),
            ("expert_count", experts),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", width),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", head),
            ("attention.value_length", head),
        ] {
            file.set(&format!("qwen3moe.{key}"), GgufValue::U32(value as u32));
        }
        file.set("qwen3moe.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-6));
        file.set("qwen3moe.rope.freq_base", GgufValue::F32(1e6));
        file.add_tokenizer(vocabulary);
        file.add("token_embd.weight", &[hidden, vocabulary as u64], type_id);
        file.add("output_norm.weight", &[hidden], F32);
        file.add("output.weight", &[hidden, vocabulary as u64], type_id);
        for layer in 0..2 {
            let mut add = |name: &str, sizes: &[u64], type_id: u32| {
                file.add(&format!("blk.{layer}.{name}.weight"), sizes, type_id);
            };
            add("attn_norm", &[hidden], F32);
            add("attn_q", &[hidden, 2 * head], type_id);
            add("attn_k", &[hidden, head], type_id);
            add("attn_v", &[hidden, head], type_id);
            add("attn_output", &[2 * head, hidden], type_id);
            add("attn_q_norm", &[head], F32);
            add("attn_k_norm", &[head], F32);
            add("ffn_norm", &[hidden], F32);
            add("ffn_gate_inp", &[hidden, experts], F32);
            add("ffn_gate_exps", &[hidden, width, experts], type_id);
            add("ffn_up_exps", &[hidden, width, experts], type_id);
            add("ffn_down_exps", &[width, hidden, experts], type_id);
        }
        file
    }

    /// Tokens for all bytes, one merge, two control tokens and unused ids up to `vocabulary`.
    fn add_tokenizer(&mut self, vocabulary: usize) {
        let mut tokens: Vec<String> = (0..=255).map(|byte| spelled(byte).to_string()).collect();
        tokens.extend(["he", "<|im_start|>", "<|im_end|>", "<think>"].map(str::to_owned));
        let mut types = vec![1; 257];
        types.extend([3, 3, 4]);
        while tokens.len() < vocabulary {
            tokens.push(format!("[PAD{}]", tokens.len()));
            types.push(5);
        }
        self.set("tokenizer.ggml.model", GgufValue::Text("gpt2".to_owned()));
        self.set("tokenizer.ggml.pre", GgufValue::Text("qwen2".to_owned()));
        self.set("tokenizer.ggml.tokens", GgufValue::Texts(tokens));
        self.set("tokenizer.ggml.token_type", GgufValue::I32s(types));
        self.set("tokenizer.ggml.merges", GgufValue::Texts(vec!["h e".to_owned()]));
        self.set("tokenizer.ggml.eos_token_id", GgufValue::U32(258));
        self.set("tokenizer.ggml.add_bos_token", GgufValue::Bool(false));
        let template =
            "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}";
        self.set("tokenizer.chat_template", GgufValue::Text(template.to_owned()));
    }
}

impl Default for GgufFile {
    fn default() -> Self {
        Self::new()
    }
}

/// How byte-level vocabularies spell a byte: printable ones as themselves, the others from U+0100 on.
fn spelled(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("a letter of Latin Extended-A")
}
