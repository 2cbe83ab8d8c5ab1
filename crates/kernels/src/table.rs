//! What a table of kernels is: one per instruction set (`choice.rs` has them all).
//!
//! An entry is a plain function compiled with the features of its instruction set; calling it is
//! sound only where these exist, which the owner of a table has checked ([`choose`](crate::choice::choose)).
//! All tables give the same bits for every operation (`lanes.rs`, `quantised.rs` say why), so the
//! choice is a matter of speed.

use crate::activations::{IntegerKey, Packing};
use crate::generic::attention::{AttentionTask, BlockTask, MergeTask};
use crate::generic::delta::DeltaTask;
use crate::generic::elementwise::ConvolutionTask;
use crate::task::{FloatTask, IntegerTask};

#[allow(clippy::type_complexity, reason = "the signatures are the documentation")]
/// The kernels of one instruction set. Every field is unsafe to call unless the instruction set is
/// available; further conditions are at the function of the same name in `generic/`.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Packing of 16-bit activations for weights of the given width.
    pub(crate) packing: fn(bits: u8) -> Packing,
    /// Packing of 16-bit activations for blocks.
    pub(crate) block_packing: Packing,
    pub(crate) prepare: unsafe fn(&[f32], IntegerKey, &mut [u8], &mut [f32], &mut [f32]),
    pub(crate) quantised_rows: unsafe fn(&IntegerTask<'_>),
    pub(crate) block_rows: unsafe fn(&IntegerTask<'_>),
    /// Of 4-bit floats in planes; without it their rows become blocks first.
    pub(crate) plane_rows: Option<unsafe fn(&IntegerTask<'_>)>,
    /// Of 4-bit floats in groups of 16, in planes.
    pub(crate) nvfp4_rows: unsafe fn(&IntegerTask<'_>),
    pub(crate) float_rows: unsafe fn(&FloatTask<'_>),
    pub(crate) rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(crate) gated_rms_norm: unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]),
    pub(crate) swiglu: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(crate) geglu: unsafe fn(&[f32], &[f32], &mut [f32]),
    pub(crate) scale_by_sigmoid: unsafe fn(&mut [f32], &[f32]),
    pub(crate) add_scaled: unsafe fn(&mut [f32], &[f32], f32),
    pub(crate) rotate: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub(crate) exp_shifted: unsafe fn(&[f32], f32, &mut [f32]) -> f32,
    pub(crate) convolution: unsafe fn(&ConvolutionTask),
    pub(crate) attend: unsafe fn(&mut AttentionTask<'_>),
    pub(crate) attend_block: unsafe fn(&mut BlockTask<'_>),
    pub(crate) attend_merge: unsafe fn(&mut MergeTask<'_>),
    pub(crate) delta_step: unsafe fn(&mut DeltaTask<'_>),
    pub(crate) delta_chunked: unsafe fn(&mut DeltaTask<'_>),
}

/// Defines `TABLE` with the generic kernels compiled for some lanes and target features.
macro_rules! table {
    ($name:literal, $lanes:ty, [$(#[$feature:meta])*], $packing:expr, $quantised:expr,
        $block_packing:expr, $blocks:expr, $planes:expr, $nvfp4:expr) => {
        mod instances {
            use super::*;
            use $crate::generic;
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                prepare::prepare(x: &[f32], key: $crate::activations::IntegerKey,
                    values: &mut [u8], scales: &mut [f32], sums: &mut [f32]));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                float_product::float_rows(task: &$crate::task::FloatTask<'_>));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::gated_rms_norm(x: &[f32], weight: &[f32], gate: &[f32], eps: f32,
                    out: &mut [f32]));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::swiglu(gate: &[f32], up: &[f32], out: &mut [f32]));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::geglu(gate: &[f32], up: &[f32], out: &mut [f32]));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::scale_by_sigmoid(x: &mut [f32], gate: &[f32]));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::add_scaled(x: &mut [f32], y: &[f32], factor: f32));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::rotate(head: &mut [f32], cos: &[f32], sin: &[f32]));
            $(#[$feature])*
            pub(super) unsafe fn exp_shifted(x: &[f32], shift: f32, out: &mut [f32]) -> f32 {
                // SAFETY: the features of this function are those of the lanes.
                unsafe { generic::elementwise::exp_shifted::<$lanes>(x, shift, out) }
            }
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                elementwise::convolution(task: &generic::elementwise::ConvolutionTask));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                attention::attend(task: &mut generic::attention::AttentionTask<'_>));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                attention::attend_block(task: &mut generic::attention::BlockTask<'_>));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                attention::merge(task: &mut generic::attention::MergeTask<'_>));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                delta::step(task: &mut generic::delta::DeltaTask<'_>));
            $crate::table::table!(@instance [$(#[$feature])*] $lanes,
                delta::chunked(task: &mut generic::delta::DeltaTask<'_>));
        }

        /// The kernels of this instruction set.
        pub(crate) static TABLE: $crate::table::Table = $crate::table::Table {
            name: $name,
            packing: $packing,
            block_packing: $block_packing,
            prepare: instances::prepare,
            quantised_rows: $quantised,
            block_rows: $blocks,
            plane_rows: $planes,
            nvfp4_rows: $nvfp4,
            float_rows: instances::float_rows,
            rms_norm: instances::rms_norm,
            gated_rms_norm: instances::gated_rms_norm,
            swiglu: instances::swiglu,
            geglu: instances::geglu,
            scale_by_sigmoid: instances::scale_by_sigmoid,
            add_scaled: instances::add_scaled,
            rotate: instances::rotate,
            exp_shifted: instances::exp_shifted,
            convolution: instances::convolution,
            attend: instances::attend,
            attend_block: instances::attend_block,
            attend_merge: instances::merge,
            delta_step: instances::step,
            delta_chunked: instances::chunked,
        };
    };
    (@instance [$(#[$feature:meta])*] $lanes:ty,
        $module:ident::$name:ident($($argument:ident: $type:ty),* $(,)?)) => {
        $(#[$feature])*
        pub(super) unsafe fn $name($($argument: $type),*) {
            // SAFETY: the features of this function are those of the lanes.
            unsafe { generic::$module::$name::<$lanes>($($argument),*) }
        }
    };
}
pub(crate) use table;
