//! Goal: every kernel that a backend can ask for is a shader that Vulkan and Metal take, as far as can be known without
//! their GPUs. Method: naga as a library: parse, validate, emit; SPIR-V through `spirv-val`, Metal's language by rules
//! and against the committed hashes. No Metal compiler has seen these texts: docs/apple.md.
//!
//! `FLASHMOE_REWRITE_MSL=1` writes the hashes anew, `FLASHMOE_MSL_TEXTS=/FOLDER` all texts to a folder;
//! `FLASHMOE_GPU_TESTS=1` makes the absence of `spirv-val` a failure. By default the first and the last kernel of each
//! group are translated, with `FLASHMOE_LONG_TESTS=1` all; `FLASHMOE_CAMPAIGN=1` shows the validator every kernel in
//! every version of SPIR-V and not in one of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use gpu::op::packing::{Float, Packing, Share};
use gpu::op::{Form, Op, all::all, experts, fused, norm};

use kernels::format::{BlockFormat, FloatType, ScaleType};

mod group;
mod listing;
#[path = "../../../../tests/long.rs"]
mod long;
mod rules;
mod translate;

use long::{is_campaign, is_long};
use translate::{SPIRV, Translated, translate};

/// Those that are tried of kernels: all, or by default the first and the last of each group.
fn tried(ops: Vec<Op>) -> Vec<Op> {
    let ends = listing::ends(&ops);
    let is_tried = |(place, _): &(usize, Op)| is_long() || ends.contains(place);
    ops.into_iter().enumerate().filter(is_tried).map(|(_, op)| op).collect()
}

/// All of [`tried_ops`], translated once for the tests that read them.
static TRANSLATED: LazyLock<Vec<Translated>> =
    LazyLock::new(|| over_all(&tried_ops(), |op| translated(*op)));

/// Whether kernels of a packing are looked at: of integers and 8-bit floats one group and type of scale, as each has a
/// function of its own that the others' texts have too.
fn is_shown(packing: Packing) -> bool {
    match packing {
        Packing::Integer { group, scale, .. } => group == 32 && scale == Float::Bf16,
        Packing::Fp8 { scale: ScaleType::Float(scale), .. } => scale == FloatType::F32,
        _ => true,
    }
}

/// The packing of a kernel that unpacks experts, a matrix or a table.
fn packing_of(op: &Op) -> Option<Packing> {
    match op {
        Op::Experts(spec) => Some(spec.packing),
        Op::TileExperts(spec) => Some(spec.packing),
        Op::Product(spec) => Some(spec.packing),
        Op::Tile(spec) => Some(spec.packing),
        Op::Embed(packing) => Some(*packing),
        _ => None,
    }
}

/// Kernels that are translated: all, but of experts in several slabs one packing, of launches of several operations one
/// group and type of scale, and those that are not shown ([`is_shown`]). Texts of experts repeat the loop of one slab,
/// as `experts_of_several_slabs_repeat_the_loop_of_one` shows for every packing; those of several operations the loop
/// of a product.
fn translated_ops() -> Vec<Op> {
    let one = Packing::Affine { bits: 4, group: 64, scale: Float::Bf16 };
    let common = |packing| match packing {
        Packing::Affine { group, scale, .. } => group == 64 && scale == Float::Bf16,
        // Of scales in other places than every row's, and of a third plane.
        Packing::Integer { bits, zeros, .. } => is_shown(packing) && bits == 4 && zeros,
        Packing::Fp8 { share, .. } => is_shown(packing) && share == Share::Tile,
        Packing::Block(format) => matches!(format, BlockFormat::Q4K | BlockFormat::Q6K),
        Packing::Float(float) => float == Float::F32,
        Packing::Mxfp4 => true,
        Packing::Nvfp4 { .. } => false,
    };
    let covered = |op: &Op| match op {
        op if !packing_of(op).is_none_or(is_shown) => false,
        Op::Experts(spec) if spec.between != experts::Between::SwiGlu => {
            spec.slabs == 1 && (spec.packing == Packing::Mxfp4 || common(spec.packing))
        }
        Op::Experts(spec) => spec.slabs == 1 || spec.packing == one,
        Op::Several { spec, count, .. } => {
            common(spec.packing) && [2, fused::MATRICES as u32].contains(count)
        }
        Op::DeltaInputs { spec, taps } => common(spec.packing) && *taps == 4,
        Op::HeadProduct(spec) => common(spec.packing),
        // Of a sigmoid one packing: the function alone differs.
        Op::GatedProduct { spec, gate: norm::Gate::Sigmoid } => spec.packing == one,
        Op::Gated(spec) | Op::Choose(spec) | Op::Close(spec) | Op::GatedProduct { spec, .. } => {
            common(spec.packing)
        }
        Op::ChosenGateUp(spec) | Op::ChosenDown(spec) => {
            common(spec.packing) && (spec.slabs == 1 || spec.packing == one && spec.slabs == 2)
        }
        op => !op.uses_matrices(),
    };
    all().filter(covered).collect()
}

/// Of [`translated_ops`] those that this run translates.
fn tried_ops() -> Vec<Op> {
    tried(translated_ops())
}

/// Runs `each` over all items on as many threads as there are processors; results keep the items' order.
fn over_all<I: Sync, T: Send>(items: &[I], each: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = each(item);
                    done.lock().expect("no thread panicked with it").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panicked with it");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn translated(op: Op) -> Translated {
    translate(op).unwrap_or_else(|error| panic!("{op:?}:\n{error}"))
}

fn skipped(why: &str) {
    let _ =
        std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {why}\n").as_bytes());
}

/// Where texts of changed groups are written; the folder is emptied.
fn changed_texts() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("msl").join("new");
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn every_kernel_keeps_the_rules_and_its_metal_text_has_the_committed_hash() {
    let kernels = || TRANSLATED.iter();
    let breaches = over_all(&TRANSLATED, rules::breaches);
    let mut hashes = listing::Hashes::of(&translated_ops());
    let mut problems = Vec::new();
    for (kernel, breaches) in kernels().zip(breaches) {
        hashes.add(kernel);
        problems.extend(breaches.iter().map(|breach| format!("{:?}: {breach}", kernel.op)));
    }
    if let Some(folder) = std::env::var_os("FLASHMOE_MSL_TEXTS") {
        listing::write(Path::new(&folder), kernels(), |_| true).expect("FLASHMOE_MSL_TEXTS");
    }
    let changed = listing::changed(&hashes.text());
    if !changed.is_empty() {
        let folder = changed_texts();
        listing::write(&folder, kernels(), |group| changed.contains(group)).expect("target/msl");
        let names: Vec<_> = changed.into_iter().collect();
        problems.push(format!(
            "Metal texts that are not those of tests/shaders/hashes: {}\nThe new ones are in {}. For the old ones run \
             this test on the commit before with FLASHMOE_MSL_TEXTS=/FOLDER, then compare the folders by `diff`. \
             FLASHMOE_REWRITE_MSL=1 accepts the new ones.",
            names.join(", "),
            folder.display()
        ));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_changed_text_is_a_changed_hash_of_its_group_alone() {
    let hashes = |changed: bool| {
        let ops = [Op::Norm, Op::Split, Op::Heads];
        let mut hashes = listing::Hashes::of(&ops);
        for op in ops {
            let mut kernel = translated(op);
            if changed && op == Op::Split {
                kernel.metal[0].push(' ');
            }
            hashes.add(&kernel);
        }
        hashes.text()
    };
    let found = listing::differences(&hashes(false), &hashes(true));
    assert_eq!(found, BTreeSet::from([group::group(Op::Split)]));
    assert!(listing::differences(&hashes(true), &hashes(true)).is_empty());
}

#[test]
fn every_kind_of_kernel_is_translated() {
    let kind = |op: Op| {
        let name = format!("{op:?}");
        let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
        match op {
            Op::Experts(spec) => format!("{name} {:?}", spec.half),
            _ => name,
        }
    };
    let translated: BTreeSet<_> = tried_ops().into_iter().map(kind).collect();
    for op in all().filter(|op| !op.uses_matrices()) {
        assert!(translated.contains(&kind(op)), "no specialisation of {op:?} is translated");
    }
}

/// The rules have to catch what they are for: the texts with wgpu's checks break them.
#[test]
fn the_rules_catch_the_checks_that_wgpu_adds() {
    let (mut caught, ops) =
        (String::new(), [Op::Norm, Op::Split, Op::Router { biased: false }, Op::Heads]);
    for op in ops {
        let text = translate::with_checks(op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        caught.push_str(&rules::in_text(&text).join("\n"));
    }
    for word in ["loop_bound", "naga_div", "naga_mod", "clamps", "size of a buffer", "zeroes"] {
        assert!(caught.contains(word), "no rule caught {word}:\n{caught}");
    }
}

/// The case of a slab in the text for several is the text's for one, with the slab's name.
#[test]
fn experts_of_several_slabs_repeat_the_loop_of_one() {
    let case = |text: &str, slab: usize| {
        let start = text.find(&format!("case {slab}u: {{")).expect("a case for each slab");
        let rest = &text[start..];
        let next = rest["case".len()..].find("case ").map(|at| at + "case".len());
        let end = [next, rest.find("default: ")].into_iter().flatten().min().expect("a case ends");
        rest[..end]
            .replace(&format!("case {slab}u"), "case")
            .replace(&format!("slab{slab}["), "slab[")
    };
    let is_single =
        |op: &Op| matches!(op, Op::Experts(spec) if spec.slabs == 1 && is_shown(spec.packing));
    for op in tried(all().filter(is_single).collect()) {
        let Op::Experts(spec) = op else { continue };
        let one = case(&Op::Experts(spec).text(Form::default()), 0);
        let most = gpu::Slabs::LIMIT as u32;
        let many = Op::Experts(experts::Spec { slabs: most, ..spec }).text(Form::default());
        for slab in 0..most as usize {
            assert_eq!(case(&many, slab), one, "{spec:?}, slab {slab}");
        }
    }
}

/// Of the kernels that are translated those whose text has such sums, one of each kind and packing.
#[test]
fn kernels_of_subgroups_are_valid() {
    let mut ops = tried_ops();
    ops.retain(|op| {
        op.text(Form { subgroups: true }).contains("subgroupShuffleXor")
            && !matches!(op, Op::Experts(spec) if spec.slabs > 1)
    });
    let found = over_all(&ops, |op| match translate::with_subgroups(*op) {
        Err(error) => Some(format!("{op:?}:\n{error}")),
        // Metal's own exchange, and nothing that depends on more than its width.
        Ok((_, metal)) if !metal.contains("simd_shuffle_xor") || metal.contains("simd_sum") => {
            Some(format!("{op:?}: another sum of subgroups in Metal's language"))
        }
        Ok(_) => None,
    });
    let problems: Vec<_> = found.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems[..problems.len().min(3)].join("\n"));
}

#[test]
fn kernels_of_matrices_are_valid_and_fit_the_workgroup_memory_that_they_ask_for() {
    let one = Packing::Affine { bits: 4, group: 64, scale: Float::Bf16 };
    let covered = |op: &Op| match op {
        Op::TileExperts(spec) if spec.between != experts::Between::SwiGlu => {
            spec.slabs == 1 && [one, Packing::Mxfp4].contains(&spec.packing)
        }
        Op::TileExperts(spec) => spec.slabs == 1 || spec.packing == one,
        op => op.uses_matrices(),
    };
    let covered = |op: &Op| covered(op) && packing_of(op).is_none_or(is_shown);
    let ops = tried(all().filter(covered).collect());
    let found = over_all(&ops, |op| match translate::with_matrices(*op) {
        Ok((_, bytes)) if bytes <= 48 << 10 => None,
        Ok((_, bytes)) => Some(format!("{op:?}: {bytes} bytes of workgroup memory")),
        Err(error) => Some(format!("{op:?}:\n{error}")),
    });
    let problems: Vec<_> = found.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems[..problems.len().min(3)].join("\n"));
}

/// Validates a kernel in every version of SPIR-V, or in one alone.
fn validate(folder: &Path, kernel: &Translated, alone: Option<usize>) -> Option<String> {
    let versions = kernel.spirv.iter().zip(SPIRV).enumerate();
    for (_, (words, (version, environment))) in
        versions.filter(|(index, _)| alone.is_none_or(|alone| alone == *index))
    {
        let thread = format!("{:?}", std::thread::current().id());
        let file = folder.join(thread.replace(['(', ')'], ""));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(&file, bytes).expect("the test's folder takes a file");
        let ran = Command::new("spirv-val").args(["--target-env", environment]).arg(&file).output();
        let ran = ran.expect("spirv-val runs");
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            return Some(format!("{:?}, SPIR-V {version:?}: {}", kernel.op, said.trim()));
        }
    }
    None
}

#[test]
fn spirv_val_accepts_every_kernel() {
    if Command::new("spirv-val").arg("--version").output().is_err() {
        assert!(std::env::var_os("FLASHMOE_GPU_TESTS").is_none(), "no spirv-val");
        return skipped("no spirv-val (Debian: apt install spirv-tools)");
    }
    let folder = tempfile::tempdir().expect("a folder for files");
    // Of the delta rule's 256 sizes those that end an eighth: the validator is a process for each module.
    let shown =
        |kernel: &&Translated| !matches!(kernel.op, Op::Delta { key_dim, .. } if key_dim % 8 != 0);
    // By default the first of each group.
    let mut groups = BTreeSet::new();
    let mut tried = |kernel: &&Translated| is_long() || groups.insert(group::group(kernel.op));
    let kernels: Vec<_> = TRANSLATED.iter().filter(shown).filter(&mut tried).enumerate().collect();
    // One of the versions for each kernel, and neighbours, which have much in common, in different ones.
    let found = over_all(&kernels, |(index, kernel)| {
        validate(folder.path(), kernel, (!is_campaign()).then_some(index % SPIRV.len()))
    });
    let refused: Vec<_> = found.into_iter().flatten().collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
