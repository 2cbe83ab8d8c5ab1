//! How wide a device's subgroups are, as a kernel finds them in a pipeline of its own. Metal's limits say 4 to 64 on
//! every Mac, whatever the GPU has.

use crate::source::GROUP;

/// Every invocation writes the width of its subgroup and its place there.
const TEXT: &str = "
@group(0) @binding(0) var<storage, read_write> found: array<u32>;
@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_size) width: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    found[2u * index] = width;
    found[2u * index + 1u] = lane;
}";

/// Lanes of a subgroup, where all have as many and are numbered as the workgroup's invocations are; `None` where they
/// are not, or nothing can be found out. The device has to have subgroups.
pub(crate) fn width(device: &wgpu::Device, queue: &wgpu::Queue) -> Option<u32> {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("width of subgroups"),
        source: wgpu::ShaderSource::Wgsl(TEXT.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("width of subgroups"),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let bytes = 8 * u64::from(GROUP);
    let buffer = |usage| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("width of subgroups"),
            size: bytes,
            usage,
            mapped_at_creation: false,
        })
    };
    let found = buffer(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let landing = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: found.as_entire_binding() }],
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }
    encoder.copy_buffer_to_buffer(&found, 0, &landing, 0, bytes);
    let submission = queue.submit([encoder.finish()]);
    landing.slice(..).map_async(wgpu::MapMode::Read, |_| {});
    let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
    device.poll(wait).ok()?;
    let view = landing.slice(..).get_mapped_range().ok()?;
    let words: Vec<u32> = view
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    one_width(&words)
}

/// The width that pairs of width and lane agree on.
fn one_width(pairs: &[u32]) -> Option<u32> {
    let width = *pairs.first().filter(|width| **width > 0)?;
    let agrees = |(index, pair): (usize, &[u32])| pair == [width, index as u32 % width];
    pairs.chunks(2).enumerate().all(agrees).then_some(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_to_follow_invocations_in_subgroups_of_one_width() {
        let pairs =
            |width: u32| (0..256).flat_map(|index| [width, index % width]).collect::<Vec<_>>();
        for width in [8, 32, 64] {
            assert_eq!(one_width(&pairs(width)), Some(width));
        }
        let mut mixed = pairs(32);
        mixed[300] = 16;
        assert_eq!(one_width(&mixed), None);
        let mut turned = pairs(32);
        turned.swap(3, 5);
        assert_eq!(one_width(&turned), None);
        assert_eq!(one_width(&[0; 512]), None);
        assert_eq!(one_width(&[]), None);
    }
}
