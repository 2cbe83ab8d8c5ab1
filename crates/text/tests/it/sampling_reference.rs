//! The sampler against a plain one: a full sort, probabilities in f64, every step spelled out.
//!
//! The plain sampler gives the set of tokens that may be drawn and their probabilities; draws must stay in the set
//! and follow the probabilities (chi-square with fixed seeds).

use serde_json::json;
use text::sampling::{Sampler, SamplingError, SamplingOptions, Xoshiro256};

fn row(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Xoshiro256::new(seed);
    (0..len).map(|_| (random.next_u64() % 4000) as f32 / 400.0 - 5.0).collect()
}

/// Tokens that may be drawn, most likely first, with their probabilities.
fn plain(logits: &[f32], history: &[u32], prompt: usize, o: &SamplingOptions) -> Vec<(u32, f64)> {
    let mut logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    let start = o.penalty_window.map_or(0, |window| history.len().saturating_sub(window));
    for (id, logit) in logits.iter_mut().enumerate() {
        let places: Vec<usize> =
            (start..history.len()).filter(|&at| history[at] as usize == id).collect();
        if places.is_empty() {
            continue;
        }
        let penalty = f64::from(o.repetition_penalty);
        *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        let answer = places.iter().filter(|&&at| at >= prompt).count();
        if answer > 0 {
            *logit -=
                answer as f64 * f64::from(o.frequency_penalty) + f64::from(o.presence_penalty);
        }
    }
    for &(id, bias) in &o.logit_bias {
        logits[id as usize] += f64::from(bias);
    }
    let mut ranked: Vec<(u32, f64)> = (0..).zip(logits.iter().copied()).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if o.temperature == 0.0 {
        return vec![(ranked[0].0, 1.0)];
    }
    let largest = ranked[0].1;
    for entry in &mut ranked {
        entry.1 = ((entry.1 - largest) / f64::from(o.temperature)).exp();
    }
    if o.top_k > 0 {
        ranked.truncate(o.top_k);
    }
    let total: f64 = ranked.iter().map(|entry| entry.1).sum();
    let mut held = 0.0;
    let mut kept = 0;
    while kept < ranked.len() && (kept == 0 || held < f64::from(o.top_p) * total) {
        held += ranked[kept].1;
        kept += 1;
    }
    ranked.truncate(kept);
    ranked.retain(|entry| entry.1 >= f64::from(o.min_p));
    let total: f64 = ranked.iter().map(|entry| entry.1).sum();
    ranked.iter().map(|&(id, weight)| (id, weight / total)).collect()
}

fn settings() -> Vec<SamplingOptions> {
    let base = SamplingOptions { seed: 7, ..SamplingOptions::default() };
    let penalties = SamplingOptions {
        repetition_penalty: 1.3,
        presence_penalty: 0.7,
        frequency_penalty: 0.2,
        ..base.clone()
    };
    vec![
        SamplingOptions::greedy(),
        base.clone(),
        SamplingOptions { temperature: 0.3, ..base.clone() },
        SamplingOptions { temperature: 3.0, min_p: 0.2, ..base.clone() },
        SamplingOptions { top_k: 20, top_p: 0.95, temperature: 0.6, ..base.clone() },
        SamplingOptions { top_k: 5, ..base.clone() },
        SamplingOptions { top_p: 0.8, ..base.clone() },
        SamplingOptions { top_p: 0.9, min_p: 0.05, temperature: 1.5, ..base.clone() },
        SamplingOptions { penalty_window: Some(3), top_k: 9, ..penalties.clone() },
        SamplingOptions { logit_bias: vec![(3, 4.0), (9, f32::NEG_INFINITY)], ..penalties },
    ]
}

#[test]
fn draws_follow_the_plain_distribution() {
    const DRAWS: usize = 6_000;
    let history = [1, 5, 5, 9, 3, 700, 2];
    for (index, options) in settings().into_iter().enumerate() {
        for len in [12, 700, 1500] {
            let logits = row(len, index as u64);
            let history: Vec<u32> =
                history.iter().copied().filter(|&id| (id as usize) < len).collect();
            let expected = plain(&logits, &history, 2, &options);
            let mut sampler = Sampler::new(options.clone(), len).unwrap();
            sampler.set_prompt_tokens(2);
            let mut counts = vec![0usize; len];
            let mut scratch = logits.clone();
            for _ in 0..DRAWS {
                scratch.copy_from_slice(&logits);
                counts[sampler.sample(&mut scratch, &history).unwrap().token as usize] += 1;
            }
            let inside: usize = expected.iter().map(|&(id, _)| counts[id as usize]).sum();
            assert_eq!(inside, DRAWS, "{options:?}, {len} tokens: a draw outside the set");
            // Cells with at least 10 expected draws; the others together are one cell.
            let (mut statistic, mut cells) = (0.0, 0.0f64);
            let (mut rest_expected, mut rest_drawn) = (0.0, 0.0);
            for &(id, probability) in &expected {
                let (mean, drawn) = (probability * DRAWS as f64, counts[id as usize] as f64);
                if mean >= 10.0 {
                    statistic += (drawn - mean).powi(2) / mean;
                    cells += 1.0;
                } else {
                    rest_expected += mean;
                    rest_drawn += drawn;
                }
            }
            if rest_expected > 0.0 {
                statistic += (rest_drawn - rest_expected).powi(2) / rest_expected.max(1.0);
                cells += 1.0;
            }
            // Mean of chi-square is its degrees of freedom; 5 standard deviations above.
            let bound = cells + 5.0 * (2.0 * cells).sqrt() + 5.0;
            assert!(statistic < bound, "{options:?}, {len} tokens: {statistic} >= {bound}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_tokens_forever() {
    let options = SamplingOptions { seed: 42, temperature: 0.8, ..SamplingOptions::default() };
    let mut sampler = Sampler::new(options, 1000).unwrap();
    let drawn: Vec<u32> =
        (0..8).map(|step| sampler.sample(&mut row(1000, step), &[]).unwrap().token).collect();
    let again = {
        let options = sampler.options().clone();
        let mut sampler = Sampler::new(options, 1000).unwrap();
        (0..8)
            .map(|step| sampler.sample(&mut row(1000, step), &[]).unwrap().token)
            .collect::<Vec<_>>()
    };
    assert_eq!(drawn, again);
}

#[test]
fn log_probabilities_are_the_models_own() {
    let logits = row(5000, 3);
    let exact = |id: u32| {
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        f64::from(logits[id as usize]) - sum.ln()
    };
    let options = SamplingOptions {
        logprobs: Some(5),
        logit_bias: vec![(77, 50.0)],
        repetition_penalty: 1.5,
        ..SamplingOptions::greedy()
    };
    let mut sampler = Sampler::new(options, 5000).unwrap();
    let sampled = sampler.sample(&mut logits.clone(), &[77]).unwrap();
    assert_eq!(sampled.token, 77, "the bias decides");
    assert!((f64::from(sampled.logprob.unwrap()) - exact(77)).abs() < 1e-5);
    let top = sampler.top_logprobs();
    assert_eq!(top.len(), 5);
    for pair in top.windows(2) {
        assert!(pair[0].logprob >= pair[1].logprob);
    }
    for entry in top {
        assert!((f64::from(entry.logprob) - exact(entry.token)).abs() < 1e-5);
    }
}

#[test]
fn what_is_out_of_range_is_refused_by_name() {
    let base = SamplingOptions::default;
    let cases = [
        ("temperature", SamplingOptions { temperature: f32::NAN, ..base() }),
        ("temperature", SamplingOptions { temperature: -0.1, ..base() }),
        ("top_p", SamplingOptions { top_p: 0.0, ..base() }),
        ("top_p", SamplingOptions { top_p: 1.1, ..base() }),
        ("min_p", SamplingOptions { min_p: -0.1, ..base() }),
        ("repetition_penalty", SamplingOptions { repetition_penalty: 0.0, ..base() }),
        ("presence_penalty", SamplingOptions { presence_penalty: f32::INFINITY, ..base() }),
        ("frequency_penalty", SamplingOptions { frequency_penalty: f32::NAN, ..base() }),
        ("logit_bias", SamplingOptions { logit_bias: vec![(0, f32::NAN)], ..base() }),
        ("logit_bias", SamplingOptions { logit_bias: vec![(10, 1.0)], ..base() }),
        ("top_logprobs", SamplingOptions { logprobs: Some(21), ..base() }),
    ];
    for (name, options) in cases {
        let error = Sampler::new(options, 10).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    let mut sampler = Sampler::new(base(), 3).unwrap();
    let bad = sampler.sample(&mut [0.0, f32::NAN, 0.0], &[]);
    assert!(matches!(bad, Err(SamplingError::BadLogit { id: 1, .. })));
    let masked = sampler.sample(&mut [f32::NEG_INFINITY; 3], &[]);
    assert_eq!(masked, Err(SamplingError::NothingLeft));
    let short = sampler.sample(&mut [0.0; 2], &[]);
    assert!(matches!(short, Err(SamplingError::WrongLength { given: 2, vocabulary: 3 })));
}

#[test]
fn recommended_options_are_read() {
    let config =
        json!({ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null });
    let options = SamplingOptions::from_generation_config(&config).unwrap();
    assert_eq!((options.temperature, options.top_k, options.top_p), (0.6, 20, 0.95));
    let greedy = json!({ "do_sample": false, "temperature": 0.6, "top_k": -1 });
    let options = SamplingOptions::from_generation_config(&greedy).unwrap();
    assert_eq!((options.temperature, options.top_k), (0.0, 0));
    for bad in [json!({ "top_k": -2 }), json!({ "top_p": "x" }), json!({ "temperature": -1 })] {
        assert!(SamplingOptions::from_generation_config(&bad).is_err(), "{bad}");
    }
}
