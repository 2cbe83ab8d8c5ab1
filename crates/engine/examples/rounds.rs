//! How many tokens rounds take of answers that are known: what suffixes propose, compared with what comes.
//!
//! Standard input has a line for each piece of a text, `given` or `answer` and its tokens (`bench/study/edits.py`).
//! A round runs the last token and up to seven drafts, and takes drafts up to the first that is wrong, and one token
//! more. For each limit of drafts: tokens a round, and how many times as fast an answer is. Arguments `ROWS:STEPS` say
//! how long a round of so many tokens takes; between them it is interpolated. Without any a round takes a step.

#![allow(clippy::print_stdout, reason = "its table is its result")]

use std::io::stdin;

use engine::drafts::suffix::SuffixIndex;

const MOST: usize = 7;

/// Steps that a round of so many tokens takes, by measured ones, ascending.
fn steps(measured: &[(f64, f64)], tokens: usize) -> f64 {
    let tokens = tokens as f64;
    let above = measured.iter().position(|it| it.0 >= tokens).unwrap_or(measured.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (measured[above - 1], measured[above]);
    y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut pieces = Vec::new();
    for line in stdin().lines() {
        let line = line?;
        let (who, tokens) =
            line.split_once(' ').ok_or("a line is `given` or `answer` and tokens")?;
        let tokens = tokens.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        pieces.push((who == "answer", tokens));
    }
    let mut measured = vec![(1.0, 1.0)];
    for argument in std::env::args().skip(1) {
        let (tokens, steps) = argument.split_once(':').ok_or("an argument is ROWS:STEPS")?;
        measured.push((tokens.parse()?, steps.parse()?));
    }
    if measured.len() == 1 {
        measured.push((2.0, 1.0));
    }
    let count =
        |answer| pieces.iter().filter(|it| it.0 == answer).map(|it| it.1.len()).sum::<usize>();
    println!("{} tokens given, {} answered", count(false), count(true));
    println!(
        "| drafts at most | rounds | with drafts | tokens a round | drafts run | accepted | times as fast |"
    );
    println!("|---|---|---|---|---|---|---|");
    for most in [1, 3, MOST] {
        let (mut text, mut index) = (Vec::new(), SuffixIndex::default());
        let (mut rounds, mut drafted, mut run, mut accepted, mut time) = (0, 0, 0, 0, 0.0);
        for (answer, tokens) in &pieces {
            if !answer {
                text.extend(tokens);
                continue;
            }
            let mut at = 0;
            while at < tokens.len() {
                let left = tokens.len() - at - 1;
                let drafts = index.propose(&text, most.min(left));
                let right = drafts.iter().zip(&tokens[at..]).take_while(|(a, b)| a == b).count();
                rounds += 1;
                drafted += usize::from(!drafts.is_empty());
                time += steps(&measured, 1 + drafts.len());
                (run, accepted) = (run + drafts.len(), accepted + right);
                text.extend(&tokens[at..=at + right]);
                at += right + 1;
            }
        }
        let tokens = count(true) as f64 / f64::from(rounds);
        let gain = count(true) as f64 / time;
        let share = 100.0 * accepted as f64 / run.max(1) as f64;
        println!(
            "| {most} | {rounds} | {drafted} | {tokens:.2} | {run} | {share:.0} % | {gain:.2} |"
        );
    }
    Ok(())
}
