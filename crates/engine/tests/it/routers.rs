//! Choices and weights of routers whose scores are sigmoids, against transformers (tests/reference/router_goldens.py).

use std::path::Path;

use engine::model::router::{Groups, Router, Score};
use kernels::{Arithmetic, Compute, ComputeOptions, Isa};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f32> {
    let rows = value.as_array().unwrap().iter();
    rows.flat_map(|row| match row {
        Value::Array(_) => numbers(row),
        number => vec![number.as_f64().unwrap() as f32],
    })
    .collect()
}

fn compute() -> Compute {
    let options = ComputeOptions { threads: 1, arithmetic: Arithmetic::F32, isa: Isa::Auto };
    Compute::new(options).unwrap()
}

#[test]
fn sigmoids_with_groups_and_biases_choose_as_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/routers.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let compute = compute();
    for case in cases.as_array().unwrap() {
        let size = |name: &str| case[name].as_u64().unwrap() as usize;
        let (experts, k) = (size("experts"), size("k"));
        let groups = Groups { count: size("groups"), kept: size("kept") };
        let scale = case["scale"].as_f64().unwrap() as f32;
        let normalise = case["normalise"].as_bool().unwrap();
        let router = Router { score: Score::Sigmoid { groups, scale }, bias: true, normalise };
        let (mut logits, bias) = (numbers(&case["logits"]), numbers(&case["bias"]));
        let tokens = logits.len() / experts;
        let (mut ids, mut weights) = (vec![0; tokens * k], vec![0.0; tokens * k]);
        let of = (&mut logits[..], Some(&bias[..]));
        router.choose(&compute, of, (experts, k), &mut ids, &mut weights);
        let expected: Vec<u16> = numbers(&case["ids"]).into_iter().map(|id| id as u16).collect();
        assert_eq!(ids, expected, "{groups:?}");
        for (found, expected) in weights.iter().zip(numbers(&case["weights"])) {
            assert!((found - expected).abs() <= 2e-6 * expected.abs(), "{found} {expected}");
        }
    }
}

#[test]
fn equal_scores_take_the_lowest_and_what_is_no_number_stays_visible() {
    let groups = Groups { count: 2, kept: 1 };
    let score = Score::Sigmoid { groups, scale: 1.0 };
    let router = Router { score, bias: false, normalise: true };
    let choose = |mut logits: [f32; 4]| {
        let (mut ids, mut weights) = ([9; 2], [0.0; 2]);
        router.choose(&compute(), (&mut logits, None), (4, 2), &mut ids, &mut weights);
        (ids, weights)
    };
    assert_eq!(choose([0.0; 4]), ([0, 1], [0.5, 0.5]));
    assert_eq!(choose([-1.0, 0.0, 2.0, 2.0]), ([2, 3], [0.5, 0.5]));
    assert_eq!(choose([f32::NEG_INFINITY, 1.0, 0.0, 0.0]).0, [2, 3]);
    let (ids, weights) = choose([1.0, f32::NAN, 0.0, 0.5]);
    assert!(ids[0] != ids[1] && ids.iter().all(|&id| id < 4), "{ids:?}");
    assert!(weights.iter().all(|weight| weight.is_nan()));
}
