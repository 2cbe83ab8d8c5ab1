//! A short benchmark: two depths, in all the memory there is and in little of it.

use anyhow::Result;
use serde_json::Value;

use super::Found;
use crate::arguments::{ByteSize, ModelArguments, OutputChoice, VramCaps};
use crate::commands::bench::{Wanted, measure as measure_arms};
use crate::plan::{Plan, Seats};

/// Tokens in the context before a test.
const DEPTHS: [usize; 2] = [0, 1024];
/// Tokens of the tests.
const PROMPT: usize = 128;
const ANSWER: usize = 32;

/// Measures prefill and decode.
pub(super) fn measure(model: &ModelArguments) -> Result<Found> {
    let wanted = Wanted {
        prompt: &[PROMPT],
        generate: &[ANSWER],
        depth: &DEPTHS,
        repetitions: 1,
        seed: 0,
        accept: &[],
        phases: false,
    };
    let mut model = model.clone();
    model.context = Some(wanted.context() as u32);
    let measured = measure_arms(&sizes(&model)?, &wanted)?;
    let [mut table, mut rows] = [Vec::new(), Vec::new()];
    measured.print(OutputChoice::Md, false, &mut table)?;
    measured.print(OutputChoice::Json, true, &mut rows)?;
    let rows: Vec<Value> = serde_json::Deserializer::from_slice(&rows)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| crate::failure::Failure::Run(error.into()))?;
    Ok(Found { markdown: String::from_utf8_lossy(&table).into_owned(), json: rows.into() })
}

/// The model as it is planned, and with less memory where that works: a third of the way from the least that works to
/// what is planned, or to what holds every expert. Beside a GPU it is the GPU's memory that is halved.
fn sizes(model: &ModelArguments) -> Result<Vec<ModelArguments>> {
    let plan = Plan::resolve(model, Seats::CONVERSATION)?;
    let all = ModelArguments { memory: Some(ByteSize(plan.budget)), ..model.clone() };
    let less = match (plan.device(), plan.least_memory) {
        (Some(device), _) => {
            let bytes = ByteSize(device.total_bytes() / 2);
            Some(ModelArguments { vram: Some(VramCaps::each(bytes)), ..all.clone() })
        }
        (None, Some(least)) => {
            let experts = plan.checkpoint.expert_bytes();
            let slots = plan.slots.as_ref().map_or(0, store::cache::StorePlan::bytes);
            let whole = (plan.total_bytes() - slots + experts).min(plan.budget);
            let bytes = least + whole.saturating_sub(least) / 3;
            Some(ModelArguments { memory: Some(ByteSize(bytes)), ..all.clone() })
        }
        (None, None) => None,
    };
    let works = |less: &ModelArguments| Plan::resolve(less, Seats::CONVERSATION).is_ok();
    Ok([Some(all), less.filter(works)].into_iter().flatten().collect())
}
