//! Targets of the routing traces: binary, table of text, lines of JSON.

use store::trace::{Trace, from_csv, from_jsonl};

use crate::mutate;
use crate::target::Target;

fn small() -> Trace {
    let mut trace = Trace::new(2, 8, 2);
    trace.prompt_tokens = 1;
    trace.ids = vec![0, 7, 3, 1, 5, 2, 4, 6, 1, 0, 2, 3];
    trace.weights = vec![0.5; trace.ids.len()];
    trace
}

/// What was read can be asked for and written, and reads back as it was.
fn hold(trace: &Trace) {
    for token in 0..trace.tokens().min(4) {
        for layer in 0..trace.layers {
            assert_eq!(trace.chosen(token, layer).len(), trace.top_k);
        }
    }
    assert!(
        trace.ids.iter().all(|&id| usize::from(id) < trace.experts),
        "an expert that is not there"
    );
    let mut written = Vec::new();
    if trace.write(&mut written).is_ok() && trace.weights.iter().all(|weight| !weight.is_nan()) {
        let again = Trace::read(&mut &written[..]);
        assert!(again.is_ok_and(|again| again == *trace), "not what was written");
    }
}

pub(crate) fn binary() -> Target {
    let mut whole = Vec::new();
    small().write(&mut whole).expect("memory can be written to");
    let plain = Trace { weights: Vec::new(), ..small() };
    let mut without_weights = Vec::new();
    plain.write(&mut without_weights).expect("memory can be written to");
    Target {
        seeds: vec![whole, without_weights],
        mutate: |random, input| mutate::bytes(random, input, &["fmtrace\x01"]),
        run: Box::new(|mut input| {
            if let Ok(trace) = Trace::read(&mut input) {
                hold(&trace);
            }
        }),
    }
}

pub(crate) fn csv() -> Target {
    Target {
        seeds: vec![
            b"# route_trace v1 n_layer=2 n_expert=8 n_expert_used=2\n\
              turn,phase,step,layer,slot,expert,weight\n\
              0,0,0,0,0,3,0.5\n0,0,0,0,1,4,0.5\n0,0,0,1,0,7,0.5\n0,0,0,1,1,0,0.5\n\
              0,1,1,0,0,1,0.5\n0,1,1,0,1,2,0.5\n0,1,1,1,0,5,0.5\n0,1,1,1,1,6,0.5\n"
                .to_vec(),
        ],
        mutate: |random, input| {
            let words = [
                "\n",
                ",",
                "65535",
                "-1",
                "1e300",
                "nan",
                "0,0,",
                "0,1,2,",
                "# n_layer=",
                "n_expert=",
                "n_expert_used=0",
                "n_layer=99999999999",
                "18446744073709551615",
                "turn",
                "9",
            ];
            mutate::bytes(random, input, &words);
        },
        run: Box::new(|input| {
            if let Ok(trace) = from_csv(input) {
                hold(&trace);
            }
        }),
    }
}

pub(crate) fn jsonl() -> Target {
    Target {
        seeds: vec![
            b"{\"tok\":0,\"layers\":[[1,2],[3,4]]}\n{\"tok\":1,\"layers\":[[5,6],[7,0]]}\n"
                .to_vec(),
        ],
        mutate: |random, input| {
            let words = ["\n", ",", "[", "]", "65535", "-1", "tok", "layers", "{}\n"];
            mutate::bytes(random, input, &words);
        },
        run: Box::new(|input| {
            for experts in [1, 8, 512] {
                if let Ok(trace) = from_jsonl(input, experts) {
                    hold(&trace);
                }
            }
        }),
    }
}
