//! The tables of kernels of all instruction sets, and the one for this machine.

use crate::table::Table;
use crate::{ComputeError, Isa};

/// The reference table.
mod scalar {
    use crate::activations::Packing;
    use crate::blocks::nvfp4::scalar_rows as nvfp4_rows;
    use crate::blocks::product::scalar_rows as block_rows;
    use crate::lanes::ScalarLanes;
    use crate::quantised::scalar_rows;

    crate::table::table!(
        "scalar",
        ScalarLanes,
        [],
        |_| Packing::Natural,
        scalar_rows,
        Packing::Natural,
        block_rows,
        None,
        nvfp4_rows
    );
}

/// The table for an instruction set, if this machine has it.
pub(crate) fn choose(isa: Isa) -> Result<&'static Table, ComputeError> {
    let found = match isa {
        Isa::Scalar => Some(&scalar::TABLE),
        Isa::Auto => {
            let faster = [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Neon].into_iter().find_map(detect);
            faster.or(Some(&scalar::TABLE))
        }
        _ => detect(isa),
    };
    found.ok_or(ComputeError::Unavailable { isa })
}

/// The table of a named vector instruction set, if this machine and build have it.
#[cfg(target_arch = "x86_64")]
fn detect(isa: Isa) -> Option<&'static Table> {
    use crate::x86_64::{amx, avx2, avx512, tables};
    match isa {
        Isa::Avx2 if avx2::available() => Some(&tables::avx2::TABLE),
        Isa::Avx512 if avx512::available() => Some(&tables::avx512::TABLE),
        Isa::Amx if amx::available() => Some(&amx::TABLE),
        _ => None,
    }
}

/// The table of a named vector instruction set, if this machine and build have it.
#[cfg(target_arch = "aarch64")]
fn detect(isa: Isa) -> Option<&'static Table> {
    use crate::aarch64::{neon, tables};
    (isa == Isa::Neon && neon::available()).then_some(&tables::TABLE)
}

/// The table of a named vector instruction set, if this machine and build have it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect(_: Isa) -> Option<&'static Table> {
    None
}
