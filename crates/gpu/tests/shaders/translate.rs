//! A kernel's text through naga, the translator that wgpu uses, with the options that wgpu gives it for modules that
//! `compile.rs` makes: to SPIR-V and to Metal's language.

use gpu::op::{Form, Op};
use naga::back::{self, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, ShaderStage, StorageAccess};

/// Versions of Metal's language: those of macOS 12 to 15 and 26; wgpu takes the newest that the system has.
pub(crate) const METAL: [(u8, u8); 5] = [(2, 4), (3, 0), (3, 1), (3, 2), (4, 0)];
/// Versions of SPIR-V, and the validator's name for the Vulkan that takes each.
pub(crate) const SPIRV: [((u8, u8), &str); 3] =
    [((1, 3), "vulkan1.1"), ((1, 5), "vulkan1.2"), ((1, 6), "vulkan1.3")];

/// What became of a kernel.
pub(crate) struct Translated {
    pub(crate) op: Op,
    /// By [`versions`], the oldest first.
    pub(crate) metal: Vec<String>,
    /// By [`SPIRV`].
    pub(crate) spirv: Vec<Vec<u32>>,
    /// Buffers that it binds.
    pub(crate) buffers: u32,
    /// Bytes of memory that a workgroup shares.
    pub(crate) workgroup_bytes: u32,
    /// Bytes of its parameters.
    pub(crate) immediate_bytes: u32,
}

/// What a device is asked for: push constants, and to unpack halves, which all of Vulkan and Metal do.
const PLAIN: Capabilities = Capabilities::IMMEDIATES.union(Capabilities::SHADER_FLOAT16_IN_FLOAT32);

fn parsed(text: &str, capabilities: Capabilities) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(text))?;
    Ok((module, info))
}

fn policies(checked: bool) -> BoundsCheckPolicies {
    let policy = if checked { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
    BoundsCheckPolicies {
        index: policy,
        buffer: policy,
        image_load: policy,
        binding_array: BoundsCheckPolicy::Unchecked,
    }
}

/// Bound buffers, and whether each is written.
fn buffers(module: &Module) -> Vec<(ResourceBinding, bool)> {
    let variables = module.global_variables.iter();
    let bound = variables.filter_map(|(_, variable)| {
        let written = match variable.space {
            AddressSpace::Storage { access } => access.contains(StorageAccess::STORE),
            _ => false,
        };
        Some((variable.binding?, written))
    });
    bound.collect()
}

/// Slots as wgpu gives them on Metal: parameters, then the buffers in their order, then their sizes.
fn resources(module: &Module, parameters: bool) -> msl::EntryPointResources {
    let bound = buffers(module);
    let first = u8::from(parameters);
    let slot = |index: usize| first + u8::try_from(index).unwrap_or(u8::MAX - 1);
    let targets = bound.iter().enumerate().map(|(index, (binding, mutable))| {
        let buffer = Some(slot(index));
        (*binding, msl::BindTarget { buffer, mutable: *mutable, ..Default::default() })
    });
    msl::EntryPointResources {
        resources: targets.collect(),
        immediates_buffer: parameters.then_some(0),
        sizes_buffer: Some(slot(bound.len())),
    }
}

fn metal(
    (module, info): (&Module, &ModuleInfo),
    version: (u8, u8),
    checked: bool,
) -> Result<String, String> {
    let parameters =
        module.global_variables.iter().any(|(_, it)| it.space == AddressSpace::Immediate);
    let map = [("main".to_owned(), resources(module, parameters))];
    let options = msl::Options {
        lang_version: version,
        per_entry_point_map: map.into_iter().collect(),
        fake_missing_bindings: false,
        bounds_check_policies: policies(checked),
        zero_initialize_workgroup_memory: checked,
        force_loop_bounding: checked,
        task_dispatch_limits: None,
        mesh_shader_primitive_indices_clamp: checked,
        emit_int_div_checks: checked,
        ray_query_initialization_tracking: checked,
        ..Default::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, "main".to_owned())),
        vertex_pulling_transform: true,
        ..Default::default()
    };
    let written = msl::write_string(module, info, &options, &pipeline);
    let (text, translated) = written.map_err(|error| format!("Metal {version:?}: {error}"))?;
    let failed = translated.entry_point_names.into_iter().find_map(Result::err);
    match failed {
        Some(error) => Err(format!("Metal {version:?}: {error}")),
        None => Ok(text),
    }
}

fn spirv(
    (module, info): (&Module, &ModuleInfo),
    version: (u8, u8),
    capabilities: &[spv::Capability],
) -> Result<Vec<u32>, String> {
    let bound = buffers(module).into_iter().map(|(place, _)| {
        let (descriptor_set, binding) = (place.group, place.binding);
        (place, spv::BindingInfo { descriptor_set, binding, binding_array_size: None })
    });
    let options = spv::Options {
        lang_version: version,
        flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
        binding_map: bound.collect(),
        fake_missing_bindings: false,
        capabilities: Some(capabilities.iter().copied().collect()),
        bounds_check_policies: policies(false),
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        ray_query_initialization_tracking: false,
        task_dispatch_limits: None,
        mesh_shader_primitive_indices_clamp: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".to_owned() };
    spv::write_vec(module, info, &options, Some(&pipeline))
        .map_err(|error| format!("SPIR-V {version:?}: {error}"))
}

/// Versions of Metal's language that a kernel is translated to: oldest and newest, and of one kernel in eight all.
/// The texts differ in the line that names the version alone.
fn versions(text: &str) -> impl Iterator<Item = (u8, u8)> {
    let all = text.len().is_multiple_of(8);
    let ends = [METAL[0], METAL[METAL.len() - 1]];
    METAL.into_iter().filter(move |version| all || ends.contains(version))
}

/// A kernel in all versions, as wgpu has it for us.
pub(crate) fn translate(op: Op) -> Result<Translated, String> {
    let text = op.text(Form::default());
    let (module, info) = parsed(&text, PLAIN)?;
    let overrides = back::pipeline_constants::process_overrides(
        &module,
        &info,
        Some((ShaderStage::Compute, "main")),
        &Default::default(),
    );
    let (module, info) = overrides.map_err(|error| error.to_string())?;
    let of = (module.as_ref(), info.as_ref());
    let bytes = |wanted: AddressSpace| {
        let found = module.global_variables.iter().filter(|(_, it)| it.space == wanted);
        found.map(|(_, it)| module.types[it.ty].inner.size(module.to_ctx())).sum()
    };
    Ok(Translated {
        op,
        metal: versions(&text)
            .map(|version| metal(of, version, false))
            .collect::<Result<_, _>>()?,
        // No subgroups, no narrow types, nothing that a GPU may lack.
        spirv: SPIRV
            .iter()
            .map(|(version, _)| spirv(of, *version, &[spv::Capability::Shader]))
            .collect::<Result<_, _>>()?,
        buffers: buffers(&module).len() as u32,
        workgroup_bytes: bytes(AddressSpace::WorkGroup),
        immediate_bytes: bytes(AddressSpace::Immediate),
    })
}

/// The same with the checks that wgpu adds to texts of strangers: what the rules have to catch.
pub(crate) fn with_checks(op: Op) -> Result<String, String> {
    let (module, info) = parsed(&op.text(Form::default()), PLAIN)?;
    metal((&module, &info), METAL[0], true)
}

/// What sums of subgroups need.
const SUBGROUPS: Capabilities = Capabilities::SUBGROUP;

/// A kernel in the form that adds up within subgroups, as SPIR-V 1.6 and in Metal's language.
pub(crate) fn with_subgroups(op: Op) -> Result<(Vec<u32>, String), String> {
    let (module, info) = parsed(&op.text(Form { subgroups: true }), PLAIN | SUBGROUPS)?;
    use spv::Capability as C;
    let capabilities = [C::Shader, C::GroupNonUniform, C::GroupNonUniformShuffle];
    let spirv = spirv((&module, &info), SPIRV[2].0, &capabilities)?;
    Ok((spirv, metal((&module, &info), METAL[1], false)?))
}

/// A kernel of cooperative matrices, which only Vulkan takes: SPIR-V 1.6 and the bytes of workgroup memory.
pub(crate) fn with_matrices(op: Op) -> Result<(Vec<u32>, u32), String> {
    let form = Form { subgroups: true };
    let more = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
    let (module, info) = parsed(&op.text(form), PLAIN | SUBGROUPS | more)?;
    let shared =
        module.global_variables.iter().filter(|(_, it)| it.space == AddressSpace::WorkGroup);
    let bytes = shared.map(|(_, it)| module.types[it.ty].inner.size(module.to_ctx())).sum();
    use spv::Capability as C;
    let capabilities = [
        C::Shader,
        C::Float16,
        C::StorageBuffer16BitAccess,
        C::UniformAndStorageBuffer16BitAccess,
        C::StorageInputOutput16,
        C::GroupNonUniform,
        C::GroupNonUniformShuffle,
        C::CooperativeMatrixKHR,
        C::VulkanMemoryModel,
    ];
    Ok((spirv((&module, &info), SPIRV[2].0, &capabilities)?, bytes))
}
