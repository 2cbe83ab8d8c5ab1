//! Weights handed over a part at a time are the weights loaded at once.

use std::ops::ControlFlow;
use std::path::Path;

use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::weights::Catalog;
use store::trunk::LoadMode;

#[test]
fn parts_are_the_whole() {
    for case in ["qwen35-calm-mlx-mixed", "qwen3next-calm-hf"] {
        check(case);
    }
}

fn check(case: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let folder = golden.join(case).join("model");
    let checkpoint = store::format::open(&folder).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let declare = || {
        let mut catalog = Catalog::new(&checkpoint);
        Model::declare(&config, &mut catalog).unwrap();
        catalog
    };
    let mut goes_on = |_| ControlFlow::Continue(());
    let announced = declare().required_bytes();
    let whole = declare().load(LoadMode::Read, &mut goes_on).unwrap();
    let vectors: usize = declare().vector_lengths().map(|length| 4 * length).sum();
    assert_eq!(whole.resident_bytes() + vectors as u64, announced, "{case}");
    let catalog = declare();
    let mut next = 0;
    let vectors = catalog
        .load_parts(LoadMode::Read, &mut goes_on, &mut |id, part| {
            assert_eq!(id.index(), next);
            next += 1;
            let matrix = whole.matrix(id);
            assert_eq!((part.rows, part.columns), (matrix.rows, matrix.columns));
            assert_eq!(part.weight, matrix.weight);
            assert_eq!((part.scales, part.biases), (matrix.scales, matrix.biases));
            Ok(())
        })
        .unwrap();
    assert_eq!(next, catalog.matrices().count());
    let lengths: Vec<usize> = catalog.vector_lengths().collect();
    assert_eq!(vectors.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
}
