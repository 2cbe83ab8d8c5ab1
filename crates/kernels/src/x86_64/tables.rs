//! The tables of AVX2 and AVX-512; AMX changes a few entries of the latter (`amx.rs`).

/// AVX2.
pub(crate) mod avx2 {
    use crate::x86_64::avx2::Avx2Lanes;
    use crate::x86_64::avx2_blocks::{
        PACKING as BLOCK_PACKING, block_rows, nvfp4_rows, plane_rows,
    };
    use crate::x86_64::avx2_quantised::{packing, quantised_rows};

    crate::table::table!(
        "avx2",
        Avx2Lanes,
        [#[target_feature(enable = "avx2,fma,f16c")]],
        packing,
        quantised_rows,
        BLOCK_PACKING,
        block_rows,
        Some(plane_rows),
        nvfp4_rows
    );
}

/// AVX-512 with VNNI.
pub(crate) mod avx512 {
    use crate::activations::Packing;
    use crate::x86_64::avx512::Avx512Lanes;
    use crate::x86_64::avx512_blocks::{block_rows, nvfp4_rows, plane_rows};
    use crate::x86_64::avx512_quantised::{packing, quantised_rows};

    crate::table::table!(
        "avx512",
        Avx512Lanes,
        [#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
         #[target_feature(enable = "gfni,avx2,fma,f16c")]],
        packing,
        quantised_rows,
        Packing::Planes { per_byte: 1 },
        block_rows,
        Some(plane_rows),
        nvfp4_rows
    );
}
