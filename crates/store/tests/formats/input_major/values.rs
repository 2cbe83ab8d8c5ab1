//! Goal: a pack of weights that lie inputs before outputs holds their values to the bit, in every form that is read,
//! and a recipe changes those values, not others. Method: the values that the formulas of the formats give.

use kernels::format::{Encoding, FloatType, Matrix, decode_row};
use serde_json::json;
use store::format::{Checkpoint, Element, Extent, FormatError, SourceKind, open, open_to_pack};
use store::pack::{PackOptions, Precision, Recipe, pack, verify};

use super::{Form, Layout, USUAL, Values, write};
use crate::common::{Folder, Noise, bytes, go};
use crate::malformed::Draft;
use crate::published::{entry, name};

/// Opens a folder to pack it, packs it, and opens the pack.
fn packed(folder: &Folder, options: PackOptions) -> Checkpoint {
    let source = open_to_pack(folder.path()).unwrap();
    assert_eq!(source.kind, SourceKind::HuggingFace);
    assert!(source.norms_are_zero_centred, "scales were taken for those of MLX");
    let target = folder.path().join("pack");
    let report = pack(&source, &target, options, &mut go).unwrap();
    assert!(report.requantised.is_empty() == options.recipe.keeps_all());
    let packed = open(&target).unwrap();
    let verified = verify(&packed, &mut go).unwrap();
    assert!(verified.damaged.is_empty() && verified.checked_bytes > 50_000);
    packed
}

/// Encoding and values of a matrix of a pack.
fn decoded(pack: &Checkpoint, name: &str, [rows, columns]: [usize; 2]) -> (Encoding, Vec<f32>) {
    type Planes = (Extent, Option<(Extent, Extent)>);
    let of_expert = |(layer, rest): (&str, &str)| -> (Encoding, Planes) {
        let (expert, projection) = rest.split_once('.').unwrap();
        let projection =
            ["gate_proj", "up_proj", "down_proj"].iter().position(|it| *it == projection).unwrap();
        let layer: usize = layer.trim_start_matches("layers.").parse().unwrap();
        let experts = pack.experts[layer].as_ref().unwrap();
        let shape = experts.shapes[projection];
        assert_eq!([shape.rows, shape.columns], [rows, columns]);
        let expert = &experts.experts[expert.parse::<usize>().unwrap()];
        (shape.encoding, (expert.weight[projection], expert.scales_biases[projection]))
    };
    let (encoding, (weight, rest)) = match name.split_once(".mlp.experts.") {
        Some(expert) => of_expert(expert),
        None => {
            let tensor = &pack.tensors[name];
            assert_eq!(tensor.shape, [rows, columns], "{name}");
            (tensor.element.encoding().unwrap(), (tensor.weight, tensor.scales_biases))
        }
    };
    let (scales, zeros) = rest
        .map_or_else(Default::default, |(scales, zeros)| (bytes(pack, scales), bytes(pack, zeros)));
    let weight = bytes(pack, weight);
    let matrix = Matrix::new(encoding, rows, columns, &weight, &scales, &zeros).unwrap();
    let mut values = vec![0.0; rows * columns];
    for (row, values) in values.chunks_exact_mut(columns).enumerate() {
        decode_row(&matrix, row, values);
    }
    (encoding, values)
}

/// Compares all matrices with their values, and gives the encodings of a dense one and of an expert's `down_proj`.
fn check(pack: &Checkpoint, values: &Values) -> [Encoding; 2] {
    for (name, (shape, expected)) in values {
        let (_, found) = decoded(pack, name, *shape);
        let wrong = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(wrong, None, "{name}: {:?}", wrong.map(|at| (found[at], expected[at])));
    }
    let experts = values.keys().filter(|name| name.contains(".experts.")).count();
    assert!(experts == 4 * 4 * 3 && values.len() > experts + 8, "dense and routed matrices");
    let name = "layers.1.mlp.shared_expert.up_proj";
    [decoded(pack, name, values[name].0).0, pack.experts[1].as_ref().unwrap().shapes[2].encoding]
}

#[test]
fn packs_hold_the_values_of_every_form_to_the_bit() {
    let layouts = [(Layout::Gptq, 4), (Layout::Gptq, 8), (Layout::GptqV2, 4), (Layout::GptqV2, 8)];
    let kinds = [
        (Some(32), false, "F16"),
        (Some(64), true, "F16"),
        (None, false, "F16"),
        (None, true, "BF16"),
        (Some(32), false, "BF16"),
    ];
    for (layout, bits) in layouts.into_iter().chain([(Layout::Awq, 4)]) {
        for (group, symmetric, scales) in kinds {
            let form = Form { layout, bits, group, symmetric, scales };
            let (draft, values) = form.draft();
            let folder = write(&draft);
            let pack = packed(&folder, PackOptions::default());
            let scale = if scales == "F16" { FloatType::F16 } else { FloatType::Bf16 };
            // `up_proj` has rows of 128, `down_proj` of 64.
            let expected = [group.unwrap_or(128), group.unwrap_or(64)].map(|group| {
                let (bits, group) = (bits as u8, group as u16);
                match symmetric {
                    true => Encoding::Symmetric { bits, group, scale },
                    false => Encoding::Zeroed { bits, group, scale },
                }
            });
            assert_eq!(check(&pack, &values), expected, "{form:?}");
            let router = &pack.tensors["layers.1.mlp.gate"];
            assert_eq!(router.element, Element::Value(Encoding::Float(FloatType::Bf16)));
            let version = if symmetric { 4 } else { 6 };
            assert_eq!(pack.pack.as_ref().unwrap().version, version);
        }
    }
}

#[test]
fn nothing_else_opens_them_and_the_refusal_says_what_does() {
    for layout in [Layout::Gptq, Layout::Awq] {
        let folder = write(&Form { layout, ..USUAL }.draft().0);
        let error = open(folder.path()).unwrap_err();
        assert!(matches!(error, FormatError::ToPack { .. }));
        let message = error.to_string();
        for word in ["model.safetensors: ", ".qweight: ", "flashmoe pack"] {
            assert!(message.contains(word), "{message}");
        }
    }
}

/// The same values as floats.
fn as_floats(mut draft: Draft, values: &Values) -> Draft {
    let ends = [".qweight", ".qzeros", ".scales", ".g_idx"];
    draft.tensors.0.retain(|entry| !ends.iter().any(|end| entry.name.ends_with(end)));
    for (name, (shape, values)) in values {
        let prefix = if name == "lm_head" { "" } else { "model.language_model." };
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        draft.tensors.0.push(entry(format!("{prefix}{name}.weight"), "F32", shape, data));
    }
    draft.config.as_object_mut().unwrap().remove("quantization_config");
    draft
}

/// A matrix of more values than are encoded at a time is read in runs of outputs.
#[test]
fn a_recipe_encodes_the_values_that_floats_would_have() {
    for layout in [Layout::Gptq, Layout::Awq] {
        let form = Form { layout, scales: "BF16", ..USUAL };
        let (mut draft, mut values) = form.draft();
        draft.remove("lm_head.weight");
        let shape = [8192 + 1024 + 8, 128];
        let (tensors, of_head) = form.matrix(&mut Noise(3), "lm_head.", shape);
        draft.tensors.0.extend(tensors);
        values.insert("lm_head".to_owned(), (shape, of_head));
        let (trunk, experts) = (Precision::Bits(6), Precision::Bits(4));
        let recipe = Recipe { experts, trunk, ..Recipe::default() };
        let options = PackOptions { recipe, ..PackOptions::default() };
        let folder = write(&draft);
        let found = packed(&folder, options);
        let kept = Folder::checkpoint(&draft.config, &draft.tensors, "pt");
        check(&packed(&kept, PackOptions::default()), &values);
        let floats = write(&as_floats(draft, &values));
        let expected = packed(&floats, options);
        for (name, (shape, _)) in &values {
            assert!(decoded(&found, name, *shape) == decoded(&expected, name, *shape), "{name}");
        }
    }
}

#[test]
fn what_auto_round_says_of_single_modules_is_kept() {
    let (mut draft, mut values) = Form { symmetric: true, ..USUAL }.draft();
    let other = Form { bits: 8, group: Some(64), ..USUAL };
    let module = "layers.1.mlp.shared_expert.up_proj";
    let stem = name("mlp.shared_expert.up_proj.");
    draft.tensors.0.retain(|entry| !entry.name.starts_with(&stem));
    let (tensors, of_module) = other.matrix(&mut Noise(9), &stem, values[module].0);
    draft.tensors.0.extend(tensors);
    values.get_mut(module).unwrap().1 = of_module;
    draft.config["quantization_config"] = json!({
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
        "group_size": 32, "sym": true, "data_type": "int", "extra_config": {
            stem.trim_end_matches('.'): {"bits": 8, "group_size": 64, "sym": false},
            "model.language_model.layers.1.mlp.gate": {"bits": 16, "data_type": "float"},
            ".*mlp\\.gate.*": {"bits": 16},
        },
    });
    let found = check(&packed(&write(&draft), PackOptions::default()), &values);
    let scale = FloatType::F16;
    assert_eq!(found[0], Encoding::Zeroed { bits: 8, group: 64, scale });
    assert_eq!(found[1], Encoding::Symmetric { bits: 4, group: 32, scale });
}

#[test]
fn groups_that_no_encoding_has_become_several_with_one_scale() {
    let gptq = (Layout::Gptq, "auto_round:auto_gptq");
    let awq = (Layout::Awq, "auto_round:auto_awq");
    let cases = [(gptq, None, 384, 128), (awq, None, 96, 32), (gptq, Some(192), 384, 64)];
    for ((layout, format), group, columns, becomes) in cases {
        let (mut draft, mut values) = Form { layout, ..USUAL }.draft();
        draft.remove("lm_head.weight");
        let (form, shape) = (Form { layout, group, ..USUAL }, [96, columns]);
        let (tensors, of_head) = form.matrix(&mut Noise(5), "lm_head.", shape);
        draft.tensors.0.extend(tensors);
        values.insert("lm_head".to_owned(), (shape, of_head));
        let size = group.map_or(-1, |group: usize| group as i64);
        draft.config["quantization_config"] = json!({
            "quant_method": "auto-round", "packing_format": format, "bits": 4, "group_size": 32,
            "sym": false, "extra_config": {"lm_head": {"group_size": size}},
        });
        let folder = write(&draft);
        let pack = packed(&folder, PackOptions::default());
        check(&pack, &values);
        let expected = Encoding::Zeroed { bits: 4, group: becomes, scale: FloatType::F16 };
        assert_eq!(decoded(&pack, "lm_head", shape).0, expected);
    }
}

#[test]
fn groups_in_order_are_no_act_order_and_other_names_mean_the_same() {
    let (mut draft, values) = USUAL.draft();
    draft.config["quantization_config"]["desc_act"] = json!(true);
    let rule = json!({"bits": 4, "group_size": 32, "sym": false, "mse": 2.4});
    draft.config["quantization_config"]["dynamic"]["+:.*experts.*"] = rule;
    check(&packed(&write(&draft), PackOptions::default()), &values);
    let (mut draft, values) = Form { layout: Layout::GptqV2, ..USUAL }.draft();
    let said = draft.config["quantization_config"].as_object_mut().unwrap();
    let format = said.remove("checkpoint_format").unwrap();
    said.insert("format".to_owned(), format);
    check(&packed(&write(&draft), PackOptions::default()), &values);
    let (mut draft, values) = Form { layout: Layout::Awq, ..USUAL }.draft();
    draft.config["quantization_config"] = json!({
        "quant_method": "awq", "w_bit": 4, "q_group_size": 32, "zero_point": true, "version": "GEMM",
    });
    check(&packed(&write(&draft), PackOptions::default()), &values);
    draft.config["quantization_config"] = json!({
        "quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4,
        "group_size": 32, "sym": false,
    });
    check(&packed(&write(&draft), PackOptions::default()), &values);
}
