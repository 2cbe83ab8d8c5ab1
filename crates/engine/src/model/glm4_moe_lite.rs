//! GLM-4.7-Flash: the parts of DeepSeek-V3 in other sizes (reference: transformers `modeling_glm4_moe_lite.py`).

use store::format::{Configuration, FormatError};

use super::config::ModelConfig;
use super::deepseek_v3::{self, Defaults};
use super::router::Groups;

/// Reads the shapes.
pub(super) fn config(from: &Configuration) -> Result<ModelConfig, FormatError> {
    let groups = Groups { count: 1, kept: 1 };
    deepseek_v3::read(
        from,
        &Defaults {
            dense_layers: 1,
            rms_epsilon: 1e-5,
            groups,
            scale: 1.8,
            max_positions: 202_752,
        },
    )
}
