// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
};

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint channels;
    uint key_heads;
    uint dim;
};
struct type_4 {
    float inner[256];
};

float sixteen(
    uint first,
    uint step,
    threadgroup type_4& red
) {
    float _e4 = red.inner[first];
    float _e8 = red.inner[first + step];
    float _e15 = red.inner[first + (2u * step)];
    float _e21 = red.inner[first + (3u * step)];
    float a = (_e4 + _e8) + (_e15 + _e21);
    float _e29 = red.inner[first + (4u * step)];
    float _e35 = red.inner[first + (5u * step)];
    float _e42 = red.inner[first + (6u * step)];
    float _e48 = red.inner[first + (7u * step)];
    float b = (_e29 + _e35) + (_e42 + _e48);
    float _e56 = red.inner[first + (8u * step)];
    float _e62 = red.inner[first + (9u * step)];
    float _e69 = red.inner[first + (10u * step)];
    float _e75 = red.inner[first + (11u * step)];
    float c = (_e56 + _e62) + (_e69 + _e75);
    float _e83 = red.inner[first + (12u * step)];
    float _e89 = red.inner[first + (13u * step)];
    float _e96 = red.inner[first + (14u * step)];
    float _e102 = red.inner[first + (15u * step)];
    float d = (_e83 + _e89) + (_e96 + _e102);
    return (a + b) + (c + d);
}

float tree_sum(
    uint lid_1,
    threadgroup type_4& red
) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e4 = sixteen(lid_1 & 15u, 16u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid_1 < 16u) {
        red.inner[lid_1] = _e4;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e11 = sixteen(0u, 1u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return _e11;
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1& x [[buffer(1)]]
, device type_3 const& control [[buffer(2)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(3)]]
) {
    float value = 0.0;
    float factor = 1.0;
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e10 = p.channels;
    uint _e15 = p.dim;
    uint at = (wid.y * _e10) + (wid.x * _e15);
    uint _e22 = p.dim;
    if (lid < _e22) {
        float _e27 = x[at + lid];
        value = _e27;
    }
    float _e30 = value;
    float _e31 = value;
    red.inner[lid] = _e30 * _e31;
    float _e33 = tree_sum(lid, red);
    float root = metal::sqrt(_e33 + 0.000001);
    uint _e42 = p.key_heads;
    if (wid.x < _e42) {
        uint _e46 = p.dim;
        factor = 1.0 / metal::sqrt(static_cast<float>(_e46));
    }
    uint _e53 = p.dim;
    if (lid < _e53) {
        float _e58 = value;
        float _e59 = factor;
        x[at + lid] = _e58 * (_e59 / root);
        return;
    } else {
        return;
    }
}
