//! Several models of one server: their names, their shares of the memory, and how each is loaded.
//!
//! A model's experts fill whatever memory it is given, so the shares are fixed before the first is loaded: equal ones,
//! but for models that work only with more. Models whose shares fit together stay loaded together; others take turns.

use std::sync::Arc;

use anyhow::{Context, Result};
use server::Limits;
use server::registry::{Footprint, Loader, Offer, Sharing};
use server::work::{Loading, Worker};
use store::shown::quoted;

use super::served::{Common, Planned, Served};
use crate::arguments::{ByteSize, VramCaps};
use crate::failure::{Failure, in_words};
use crate::plan::Plan;
use crate::plan::device::DevicePlan;
use crate::plan::language::LanguageBeside;
use crate::progress::say;

/// What a command line names.
pub(super) enum Named {
    One(Box<Served>),
    Several(Vec<Served>),
}

/// The models of a command line.
///
/// # Errors
/// Not as many names as models.
pub(super) fn named(common: &Common) -> Result<Named> {
    let arguments = &common.arguments;
    let served = |(index, path): (usize, &std::path::PathBuf)| {
        let mut model = arguments.model.clone();
        model.model.clone_from(path);
        let of_hub = arguments.hub_names.get(index).cloned().flatten();
        let name = arguments.served_name.get(index).cloned().or(of_hub);
        Served { common: common.clone(), model, name }
    };
    let paths = std::iter::once(&arguments.model.model).chain(&arguments.more);
    let mut all: Vec<Served> = paths.enumerate().map(served).collect();
    let (names, models) = (arguments.served_name.len(), all.len());
    if names > models || names > 0 && names < models {
        let reason = format!(
            "--served-name is given {names} times for {models} models: once for each, in order"
        );
        return Err(Failure::usage(reason).into());
    }
    match all.len() {
        1 if arguments.models_max.is_some() => {
            Err(Failure::usage("--models-max is for a server of several models").into())
        }
        1 => Ok(Named::One(Box::new(all.remove(0)))),
        _ => Ok(Named::Several(all)),
    }
}

/// Several models ready to be served.
pub(super) struct Crew {
    pub(super) offers: Vec<Offer>,
    pub(super) sharing: Sharing,
    pub(super) loader: CrewLoader,
    /// Of requests for all of them.
    pub(super) limits: Limits,
}

/// Loads one model after another.
pub(super) struct CrewLoader(Vec<Served>);

impl Loader for CrewLoader {
    fn load(&mut self, index: usize, loading: &Arc<Loading>) -> Result<Arc<dyn Worker>, String> {
        let model = &self.0[index];
        let load = || {
            // Planned anew: files and memory are what they are now.
            let planned = model.planned()?;
            let language = LanguageBeside::start(&planned.plan)?;
            model.worker(planned, language, loading)
        };
        let worker = load().map_err(|error| in_words(&error))?;
        Ok(worker)
    }
}

impl Crew {
    /// Plans all models, so that what cannot work is refused before the first is loaded.
    ///
    /// # Errors
    /// A model that cannot be served even alone, or two of one name.
    pub(super) fn of(mut models: Vec<Served>) -> Result<Self> {
        let whole = models.iter().map(plan).collect::<Result<Vec<_>>>()?;
        check_names(&whole)?;
        let together = models[0].common.arguments.models_max.map_or(models.len(), usize::from);
        let together = together.min(models.len());
        if whole.len() > 1
            && let Some(spread) = whole.iter().find(|it| it.plan.devices.len() > 1)
        {
            let shown = &spread.plan.arguments.device;
            let reason = format!("--device {shown}: several models share one GPU; name one");
            return Err(Failure::usage(reason).into());
        }
        let memory = whole[0].plan.budget;
        let vram = whole.iter().flat_map(|it| &it.plan.devices).map(|it| it.budget).max();
        let leasts: Vec<u64> = whole.iter().map(|it| it.plan.least_memory.unwrap_or(0)).collect();
        let shares = shares(memory, &leasts, together);
        let mut planned = Vec::new();
        for ((model, whole), share) in models.iter_mut().zip(whole).zip(shares) {
            model.model.memory = Some(ByteSize(share));
            if !whole.plan.devices.is_empty() {
                model.model.vram =
                    vram.map(|vram| VramCaps::each(ByteSize(vram / together as u64)));
            }
            planned.push(match plan(model) {
                Err(error) if is_memory(&error) => {
                    // It works with everything, and then alone.
                    model.model.memory = Some(ByteSize(memory));
                    model.model.vram =
                        whole.plan.device().and(vram).map(|vram| VramCaps::each(ByteSize(vram)));
                    plan(model)?
                }
                planned => planned?,
            });
        }
        let requests = |plan: &Plan| plan.requests.map_or(0, |requests| requests.bytes);
        let largest = planned.iter().max_by_key(|it| requests(&it.plan));
        let (limits, for_requests) = largest.map_or((Limits::default(), 0), |it| {
            (it.plan.requests.map_or_else(Limits::default, |it| it.limits), requests(&it.plan))
        });
        // Requests are planned for once, whichever models are loaded.
        let budget = memory.saturating_sub(for_requests);
        for (model, planned) in models.iter_mut().zip(&mut planned) {
            let own = requests(&planned.plan);
            if planned.plan.total_bytes() - own > budget {
                model.model.memory = Some(ByteSize(memory - (for_requests - own)));
                *planned = plan(model)?;
            }
        }
        for Planned { plan, card } in &planned {
            for line in plan.approximations() {
                say(&format!("{}: {line}", card.id));
            }
        }
        let offer = |Planned { plan, card }: &Planned| {
            let vram = plan.devices.iter().map(DevicePlan::total_bytes).sum();
            let memory = plan.total_bytes() - requests(plan);
            Offer { card: card.clone(), footprint: Footprint { memory, vram } }
        };
        let sharing = Sharing {
            budget: Footprint { memory: budget, vram: vram.unwrap_or(0) },
            loaded_max: together,
            patience: Sharing::PATIENCE,
            pause: Sharing::PAUSE,
            log: models[0].common.log.clone(),
        };
        let offers = planned.iter().map(offer).collect();
        Ok(Self { offers, sharing, loader: CrewLoader(models), limits })
    }
}

fn plan(model: &Served) -> Result<Planned> {
    model.planned().with_context(|| store::shown::path(&model.model.model).to_string())
}

fn is_memory(error: &anyhow::Error) -> bool {
    let failure = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
    matches!(failure, Some(Failure::Memory(_)))
}

/// That each name means one model, however clients write it.
fn check_names(planned: &[Planned]) -> Result<()> {
    for (index, Planned { card, .. }) in planned.iter().enumerate() {
        let same = |other: &Planned| other.card.id.eq_ignore_ascii_case(&card.id);
        if planned[..index].iter().any(same) {
            let name = quoted(&card.id);
            let reason =
                format!("two models have the name {name}: give each a --served-name, in order");
            return Err(Failure::usage(reason).into());
        }
    }
    Ok(())
}

/// How much of `memory` each model gets so that any `together` of them fit: equal shares, and for models that need more
/// what they need. Where that cannot be, each gets an equal share or what it needs, and they take turns.
fn shares(memory: u64, leasts: &[u64], together: usize) -> Vec<u64> {
    let mut largest = leasts.to_vec();
    largest.sort_unstable_by(|one, other| other.cmp(one));
    largest.truncate(together);
    // Those that need more than an equal share of what the ones before them leave.
    let (mut left, mut sharing) = (memory, largest.len() as u64);
    for &least in &largest {
        if least * sharing <= left {
            break;
        }
        left = left.saturating_sub(least);
        sharing -= 1;
    }
    let equal = left.checked_div(sharing).unwrap_or(memory / together as u64);
    leasts.iter().map(|&least| least.max(equal)).collect()
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn any_so_many_models_fit_where_they_can() {
        assert_eq!(shares(16, &[2, 3], 2), [8, 8]);
        assert_eq!(shares(16, &[10, 3], 2), [10, 6]);
        assert_eq!(shares(16, &[3, 10], 2), [6, 10]);
        assert_eq!(shares(16, &[2, 3, 10], 1), [16, 16, 16]);
        // Any two of three.
        assert_eq!(shares(16, &[2, 3, 10], 2), [6, 6, 10]);
        assert_eq!(shares(30, &[2, 12, 11], 3), [7, 12, 11]);
        // Not all at once: they take turns.
        assert_eq!(shares(16, &[12, 9], 2), [12, 9]);
        assert_eq!(shares(14, &[10, 3, 3], 3), [10, 4, 4]);
        for memory in [10, 100, 1000] {
            for leasts in [[1, 1, 1], [1, 2, 3], [3, 3, 3], [1, 1, 8]] {
                for together in 1..=3 {
                    let shares = shares(memory, &leasts, together);
                    let mut largest = shares.clone();
                    largest.sort_unstable_by(|one, other| other.cmp(one));
                    let sum: u64 = largest[..together].iter().sum();
                    assert!(sum <= memory, "{memory} {leasts:?} {together}: {shares:?}");
                }
            }
        }
    }
}
