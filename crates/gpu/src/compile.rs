//! Shader modules as wgpu compiles them for us: without the checks that it adds for texts of strangers.

/// The module of a kernel's text ([`crate::op::Op::text`]).
///
/// wgpu would clamp each index, count each loop's rounds and guard each division. The texts come from this crate alone,
/// and their bounds are kept by what launches them.
pub(crate) fn module(device: &wgpu::Device, name: &str, text: String) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(name),
        source: wgpu::ShaderSource::Wgsl(text.into()),
    };
    // SAFETY: without its checks, a text must keep its indices within its buffers, end its loops and divide by no zero.
    // - Indices: rows, tokens, columns and positions are compared with the launch's parameters or clamped to them, and
    //   buffers have the sizes that those parameters are made of. Ids in buffers are tokens below the vocabulary,
    //   experts that the router chose among its logits, whatever those are, and words of the table, which name slots
    //   that there are or are zero, where nothing more is read. Indices into workgroup memory are below its declared
    //   size by the limits that launchers assert (`HEAD_DIM_LIMIT`, `EXPERTS_LIMIT`, `TOP_K_LIMIT`).
    //   docs/hardening.md has the list of all indices that come from data.
    // - Loops count up to a parameter by a constant step, or halve a constant.
    // - Divisors are constants, or shapes of a model, which is refused where one is zero.
    unsafe {
        device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
    }
}

/// wgpu's experimental features, where the adapter has one that is used: cooperative matrices.
pub(crate) fn experiments(adapter: &crate::Adapter) -> wgpu::ExperimentalFeatures {
    if !adapter.matrices {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // SAFETY: what is experimental must be used as its interface is meant to be. Only texts of this crate use
    // matrices: of the shape and types that the adapter reports, in uniform control flow, from workgroup memory of
    // the matrices' own type, at multiples of 16 bytes, within its declared size.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
